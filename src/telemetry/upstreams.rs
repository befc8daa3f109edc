//! The metrics of upstreams, as long as somebody uses them.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGaugeVec};

use super::family::OTHER;

/// What is shown of an upstream at this moment.
pub trait UpstreamFigures: Send + Sync + Debug {
    /// `host:port`.
    fn name(&self) -> &str;
    /// Requests that it has.
    fn in_flight(&self) -> usize;
    /// Whether it is left out.
    fn is_out(&self) -> bool;
    /// Requests' connections to it that did not come about.
    fn connect_failures(&self) -> u64;
}

/// The upstreams that are shown, for as long as somebody uses them.
#[derive(Clone, Debug)]
pub struct ShownUpstreams {
    all: Arc<Mutex<Vec<Weak<dyn UpstreamFigures>>>>,
    in_flight: IntGaugeVec,
    healthy: IntGaugeVec,
    connect_failures: IntCounterVec,
    /// Of so many upstreams, at most; those beyond are shown as one.
    most: usize,
}

impl ShownUpstreams {
    /// None yet; they will be shown in these, at most so many label sets of each.
    pub fn new(
        in_flight: IntGaugeVec,
        healthy: IntGaugeVec,
        connect_failures: IntCounterVec,
        most: usize,
    ) -> ShownUpstreams {
        ShownUpstreams {
            all: Arc::default(),
            in_flight,
            healthy,
            connect_failures,
            most,
        }
    }

    /// Shows one from now on.
    pub fn add(&self, upstream: Arc<dyn UpstreamFigures>) {
        let mut all = self.all.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&upstream));
    }

    /// Those that are shown.
    pub fn present(&self) -> Vec<Arc<dyn UpstreamFigures>> {
        self.all.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Puts the present numbers into the metrics and calls `read` before anyone else can change them. Listeners
    /// that send to the same upstream show as one.
    pub fn with_present<T>(&self, read: impl FnOnce() -> T) -> T {
        let all = self.all.lock();
        self.in_flight.reset();
        self.healthy.reset();
        self.connect_failures.reset();
        let present: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        let names: BTreeSet<&str> = present.iter().map(|upstream| upstream.name()).collect();
        let own: BTreeSet<&str> = names.into_iter().take(self.most - 1).collect();
        let label = |upstream: &Arc<dyn UpstreamFigures>| match own.get(upstream.name()) {
            Some(name) => [*name],
            None => [OTHER],
        };
        for upstream in &present {
            let label = label(upstream);
            let in_flight = i64::try_from(upstream.in_flight()).unwrap_or(i64::MAX);
            self.in_flight.with_label_values(&label).add(in_flight);
            self.healthy.with_label_values(&label).set(1);
            self.connect_failures
                .with_label_values(&label)
                .inc_by(upstream.connect_failures());
        }
        for upstream in present.iter().filter(|upstream| upstream.is_out()) {
            self.healthy.with_label_values(&label(upstream)).set(0);
        }
        read()
    }
}
