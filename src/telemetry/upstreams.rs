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
    use crate::telemetry::prometheus::tests::shown;

    #[test]
    fn upstreams_are_shown_while_somebody_uses_them() {
        let metrics = Metrics::new().unwrap();
        let upstreams = ["a:1", "a:1", "b:1"].map(|name| {
            let upstream = Arc::new(UpstreamFigures {
                name: name.into(),
                in_flight: 1.into(),
                connect_failures: 1.into(),
                ..UpstreamFigures::default()
            });
            metrics.upstreams.add(upstream.clone());
            upstream
        });
        upstreams[1].is_out.store(true, Relaxed);
        let figures = |name: &str| {
            let shown = shown(&metrics);
            ["connect_failures_total", "healthy", "in_flight"].map(|figure| {
                let line = format!("queuescope_upstream_{figure}{{upstream=\"{name}\"}}");
                shown.get(&line).copied()
            })
        };
        // Nothing is added twice.
        for _ in 0..2 {
            assert_eq!(figures("a:1"), [2.0, 0.0, 2.0].map(Some));
            assert_eq!(figures("b:1"), [1.0, 1.0, 1.0].map(Some));
        }
        let [first, second, gone] = upstreams;
        drop((second, gone));
        first.in_flight.fetch_sub(1, Relaxed);
        assert_eq!(figures("a:1"), [1.0, 1.0, 0.0].map(Some));
        assert_eq!(figures("b:1"), [None; 3]);
    }
}
