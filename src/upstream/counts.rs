//! What is known of an upstream at this moment: the balancer decides by it, and `/metrics` shows it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::telemetry::upstreams::UpstreamFigures;

/// One upstream's numbers. Those who send to it share them.
#[derive(Debug)]
pub struct UpstreamCounts {
    name: String,
    in_flight: AtomicUsize,
    is_out: AtomicBool,
    connect_failures: AtomicU64,
}

impl UpstreamCounts {
    /// An upstream with nothing in flight, `host:port`.
    pub fn new(name: &str) -> UpstreamCounts {
        UpstreamCounts {
            name: name.into(),
            in_flight: AtomicUsize::new(0),
            is_out: AtomicBool::new(false),
            connect_failures: AtomicU64::new(0),
        }
    }

    /// A request was given to it.
    pub fn request_began(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// A request that was given to it has ended, or went elsewhere.
    pub fn request_ended(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// It is left out, or no longer.
    pub fn set_out(&self, is_out: bool) {
        self.is_out.store(is_out, Ordering::Relaxed);
    }

    /// A request's connection to it did not come about.
    pub fn connect_failed(&self) {
        self.connect_failures.fetch_add(1, Ordering::Relaxed);
    }
}

impl UpstreamFigures for UpstreamCounts {
    fn name(&self) -> &str {
        &self.name
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn is_out(&self) -> bool {
        self.is_out.load(Ordering::Relaxed)
    }

    fn connect_failures(&self) -> u64 {
        self.connect_failures.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::prometheus::Metrics;
    use std::sync::Arc;

    #[test]
    fn upstreams_are_shown_while_somebody_uses_them() {
        let metrics = Metrics::new().unwrap();
        let upstreams = ["a:1", "a:1", "b:1"].map(|name| Arc::new(UpstreamCounts::new(name)));
        for upstream in &upstreams {
            metrics.upstreams().add(upstream.clone());
            upstream.request_began();
            upstream.connect_failed();
        }
        upstreams[1].set_out(true);
        let lines = || {
            let text = metrics.text();
            let lines = text.lines().filter(|l| l.contains("{upstream="));
            let lines = lines.map(|line| line.strip_prefix("queuescope_upstream_").unwrap());
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let both = [
            r#"connect_failures_total{upstream="a:1"} 2"#,
            r#"connect_failures_total{upstream="b:1"} 1"#,
            r#"healthy{upstream="a:1"} 0"#,
            r#"healthy{upstream="b:1"} 1"#,
            r#"in_flight{upstream="a:1"} 2"#,
            r#"in_flight{upstream="b:1"} 1"#,
        ];
        assert_eq!(lines(), both);
        assert_eq!(lines(), both, "nothing is added twice");
        let [first, second, gone] = upstreams;
        drop(second);
        drop(gone);
        first.request_ended();
        assert_eq!(
            lines(),
            [
                r#"connect_failures_total{upstream="a:1"} 1"#,
                r#"healthy{upstream="a:1"} 1"#,
                r#"in_flight{upstream="a:1"} 0"#,
            ]
        );
    }
}
