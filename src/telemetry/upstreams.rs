//! The metrics of upstreams, as long as somebody uses them.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// One upstream's numbers: balancing goes by them, and `/metrics` shows them. Those who send to it share them.
#[derive(Debug, Default)]
pub struct UpstreamFigures {
    /// `host:port`.
    pub name: String,
    /// Requests that it has: that were given to it and have neither ended nor gone elsewhere.
    pub in_flight: AtomicUsize,
    /// It is left out.
    pub is_out: AtomicBool,
    /// Requests' connections to it that did not come about.
    pub connect_failures: AtomicU64,
}

/// The upstreams that are shown, for as long as somebody uses them.
#[derive(Clone, Debug, Default)]
pub struct ShownUpstreams(Arc<Mutex<Vec<Weak<UpstreamFigures>>>>);

impl ShownUpstreams {
    /// Shows one from now on.
    pub fn add(&self, upstream: Arc<UpstreamFigures>) {
        let mut all = self.0.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&upstream));
    }

    /// Reads those that are shown, by name, before anyone else can change them.
    pub fn with_present<T>(&self, read: impl FnOnce(&[Arc<UpstreamFigures>]) -> T) -> T {
        let all = self.0.lock();
        let mut present: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        present.sort_by(|a, b| a.name.cmp(&b.name));
        read(&present)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::telemetry::prometheus::Metrics;

    #[test]
    fn upstreams_are_shown_while_somebody_uses_them() {
        let metrics = Metrics::new().unwrap();
        let upstreams = ["a:1", "a:1", "b:1"].map(|name| {
            Arc::new(UpstreamFigures {
                name: name.into(),
                ..UpstreamFigures::default()
            })
        });
        for upstream in &upstreams {
            metrics.upstreams.add(upstream.clone());
            upstream.in_flight.fetch_add(1, Relaxed);
            upstream.connect_failures.fetch_add(1, Relaxed);
        }
        upstreams[1].is_out.store(true, Relaxed);
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
        first.in_flight.fetch_sub(1, Relaxed);
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
