//! The numbers of upstreams, for balancing and for `/metrics`.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// The numbers of one upstream. All senders to it share them.
#[derive(Debug, Default)]
pub struct UpstreamFigures {
    /// `host:port`.
    pub name: String,
    /// Requests that were given to it and have neither ended nor been moved to another upstream.
    pub in_flight: AtomicUsize,
    /// Whether it is left out, since it could not be connected to.
    pub is_out: AtomicBool,
    /// Failed connections for requests.
    pub connect_failures: AtomicU64,
}

/// The upstreams in `/metrics`. One is removed when no sender uses it any more.
#[derive(Clone, Debug, Default)]
pub struct ShownUpstreams(Arc<Mutex<Vec<Weak<UpstreamFigures>>>>);

impl ShownUpstreams {
    /// Adds an upstream.
    pub fn add(&self, upstream: Arc<UpstreamFigures>) {
        let mut all = self.0.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&upstream));
    }

    /// Calls `read` with the upstreams in use, those left out last, while none can be added.
    pub fn with_present<T>(&self, read: impl FnOnce(&[Arc<UpstreamFigures>]) -> T) -> T {
        let all = self.0.lock();
        let mut present: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        present.sort_by_key(|upstream| upstream.is_out.load(Ordering::Relaxed));
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
    fn upstreams_are_shown_while_they_are_in_use() {
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
        // A second scrape shows the same numbers.
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
