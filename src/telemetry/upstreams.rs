//! What is known of the upstreams at this moment: the balancer decides by it, and `/metrics` shows it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGaugeVec};

/// One upstream's numbers. Those who send to it share them.
#[derive(Debug)]
pub struct UpstreamCounts {
    name: String,
    in_flight: AtomicUsize,
    is_out: AtomicBool,
    connect_failures: AtomicU64,
}

/// The upstreams that are shown, for as long as somebody uses them.
#[derive(Clone, Debug)]
pub struct ShownUpstreams {
    all: Arc<Mutex<Vec<Weak<UpstreamCounts>>>>,
    in_flight: IntGaugeVec,
    healthy: IntGaugeVec,
    connect_failures: IntCounterVec,
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

    /// `host:port`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A request was given to it.
    pub fn request_began(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// A request that was given to it has ended, or went elsewhere.
    pub fn request_ended(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Requests that it has.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// It is left out, or no longer.
    pub fn set_out(&self, is_out: bool) {
        self.is_out.store(is_out, Ordering::Relaxed);
    }

    /// Whether it is left out.
    pub fn is_out(&self) -> bool {
        self.is_out.load(Ordering::Relaxed)
    }

    /// A request's connection to it did not come about.
    pub fn connect_failed(&self) {
        self.connect_failures.fetch_add(1, Ordering::Relaxed);
    }
}

impl ShownUpstreams {
    /// None yet; they will be shown in these.
    pub fn new(
        in_flight: IntGaugeVec,
        healthy: IntGaugeVec,
        connect_failures: IntCounterVec,
    ) -> ShownUpstreams {
        ShownUpstreams {
            all: Arc::default(),
            in_flight,
            healthy,
            connect_failures,
        }
    }

    /// Shows one from now on.
    pub fn add(&self, upstream: &Arc<UpstreamCounts>) {
        let mut all = self.all.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(upstream));
    }

    /// Puts the present numbers into the metrics and calls `read` before anyone else can change them. Listeners
    /// that send to the same upstream show as one.
    pub fn with_present<T>(&self, read: impl FnOnce() -> T) -> T {
        let all = self.all.lock();
        self.in_flight.reset();
        self.healthy.reset();
        self.connect_failures.reset();
        let present: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        for upstream in &present {
            let label = [upstream.name.as_str()];
            let in_flight = i64::try_from(upstream.in_flight()).unwrap_or(i64::MAX);
            self.in_flight.with_label_values(&label).add(in_flight);
            self.healthy.with_label_values(&label).set(1);
            let failures = upstream.connect_failures.load(Ordering::Relaxed);
            self.connect_failures
                .with_label_values(&label)
                .inc_by(failures);
        }
        for upstream in present.iter().filter(|upstream| upstream.is_out()) {
            self.healthy.with_label_values(&[&upstream.name]).set(0);
        }
        read()
    }
}
