//! The counters of a proxy, for Prometheus.

mod in_flight;
mod labels;
mod process;
mod requests;
mod table;
mod total;

pub use in_flight::UnderWay;
pub use labels::{Batch, ChosenBy, Dropped, Join, LeftOut, Limit, Loss, Progress};
pub use table::{Families, METRICS};

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus::{IntGauge, Registry, Result, TextEncoder};

use crate::request::endpoint::Endpoint;
use crate::stats::waits::Cause;

use super::family::LABEL_SETS;
use super::upstreams::{ShownUpstreams, UpstreamFigures};

/// What a proxy counts. Cheap to clone; the clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    families: Arc<Families>,
    /// The upstreams that are shown.
    pub upstreams: ShownUpstreams,
    /// Requests under way by [`Progress`].
    in_flight_levels: [IntGauge; 3],
}

impl Deref for Metrics {
    type Target = Families;

    fn deref(&self) -> &Families {
        &self.families
    }
}

impl Metrics {
    /// Counters at zero, in a registry of their own.
    ///
    /// # Errors
    /// When Prometheus refuses a name, which a test rules out.
    pub fn new() -> Result<Metrics> {
        Metrics::with_label_sets(LABEL_SETS)
    }

    /// The same with so many label sets a metric, at most.
    ///
    /// # Errors
    /// When Prometheus refuses a name, which a test rules out.
    pub fn with_label_sets(most: usize) -> Result<Metrics> {
        let registry = Registry::new();
        let families = Families::new(&registry, most)?;
        process::begin(&families);
        for endpoint in Endpoint::ALL {
            for reason in requests::reasons(endpoint) {
                families.timing_missing.with(&[reason, endpoint.path()]);
            }
        }
        Ok(Metrics {
            upstreams: ShownUpstreams::default(),
            in_flight_levels: Progress::ALL.map(|phase| families.in_flight.with(&[phase.name()])),
            families: Arc::new(families),
            registry,
        })
    }

    /// A client met `limit`.
    pub fn client_limit(&self, limit: Limit) {
        self.client_limits.with(&[limit.name()]).inc();
    }

    /// A request waited so long at a worker, for this; nanoseconds.
    pub fn waited(&self, worker: &str, cause: Cause, nanos: i64) {
        let sum = self.wait_causes.with(&[worker, cause.name()]);
        sum.inc_by(requests::seconds(nanos));
    }

    /// All metrics in Prometheus's text format.
    pub fn text(&self) -> String {
        let families = self.upstreams.with_present(|present| {
            self.show_upstreams(present);
            process::show(self);
            self.registry.gather()
        });
        // What it writes to takes all.
        TextEncoder::new()
            .encode_to_string(&families)
            .unwrap_or_default()
    }

    /// Puts the present numbers of upstreams into the metrics. Listeners that send to the same upstream show as one.
    fn show_upstreams(&self, present: &[Arc<UpstreamFigures>]) {
        self.upstream_in_flight.clear();
        self.upstream_healthy.clear();
        self.upstream_connect_failures.clear();
        for upstream in present {
            let label = [upstream.name.as_str()];
            let in_flight = upstream.in_flight.load(Relaxed);
            self.upstream_in_flight.with(&label).add(in_flight as i64);
            self.upstream_healthy.with(&label).set(1);
            let failures = upstream.connect_failures.load(Relaxed);
            self.upstream_connect_failures.with(&label).inc_by(failures);
        }
        for upstream in present.iter().filter(|one| one.is_out.load(Relaxed)) {
            self.upstream_healthy.with(&[&upstream.name]).set(0);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
