//! The metrics of upstreams, as long as somebody uses them.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// One upstream's numbers: balancing goes by them, and `/metrics` shows them. Those who send to it share them.
#[derive(Debug, Default)]
pub struct UpstreamFigures {
    /// `host:port`.
    pub name: String,
    in_flight: AtomicUsize,
    is_out: AtomicBool,
    connect_failures: AtomicU64,
}

/// The upstreams that are shown, for as long as somebody uses them.
#[derive(Clone, Debug, Default)]
pub struct ShownUpstreams(Arc<Mutex<Vec<Weak<UpstreamFigures>>>>);

impl UpstreamFigures {
    /// An upstream with nothing in flight, `host:port`.
    pub fn new(name: String) -> UpstreamFigures {
        UpstreamFigures {
            name,
            ..UpstreamFigures::default()
        }
    }

    /// A request was given to it.
    pub fn request_began(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// A request that was given to it has ended, or went elsewhere.
    pub fn request_ended(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Requests that it has.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// A request's connection to it did not come about.
    pub fn connect_failed(&self) {
        self.connect_failures.fetch_add(1, Relaxed);
    }

    /// How many did not.
    pub fn connect_failures(&self) -> u64 {
        self.connect_failures.load(Relaxed)
    }

    /// It is left out, or no longer. Whether it was.
    pub fn set_out(&self, is_out: bool) -> bool {
        self.is_out.swap(is_out, Relaxed)
    }

    /// Whether it is left out.
    pub fn is_out(&self) -> bool {
        self.is_out.load(Relaxed)
    }
}

impl ShownUpstreams {
    /// Shows one from now on.
    pub fn add(&self, upstream: Arc<UpstreamFigures>) {
        let mut all = self.0.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&upstream));
    }

    /// Those that are shown.
    pub fn present(&self) -> Vec<Arc<UpstreamFigures>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
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
    use super::*;
    use crate::telemetry::prometheus::Metrics;

    #[test]
    fn upstreams_are_shown_while_somebody_uses_them() {
        let metrics = Metrics::new().unwrap();
        let upstreams =
            ["a:1", "a:1", "b:1"].map(|name| Arc::new(UpstreamFigures::new(name.into())));
        for upstream in &upstreams {
            metrics.upstreams.add(upstream.clone());
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
