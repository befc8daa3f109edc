//! The counters of a proxy, for Prometheus.

mod in_flight;
mod labels;
mod requests;
mod table;
mod total;

pub use in_flight::UnderWay;
pub use labels::{Batch, ChosenBy, Dropped, Join, Limit, Loss, Progress};
pub use table::Families;

use std::ops::Deref;
use std::sync::Arc;

use prometheus::{IntGauge, Registry, Result, TextEncoder};

use crate::request::endpoint::Endpoint;

use super::family::LABEL_SETS;
use super::metric::Metric;
use super::process;
use super::upstreams::ShownUpstreams;

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

/// Every metric of a proxy; `docs/METRICS.md` walks these tables.
pub const TABLES: &[&[Metric]] = &[&table::METRICS, process::METRICS];

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
        process::register(&registry)?;
        let families = Families::new(&registry, most)?;
        for endpoint in Endpoint::ALL {
            for reason in requests::reasons(endpoint) {
                families.timing_missing.with(&[reason, endpoint.path()]);
            }
        }
        Ok(Metrics {
            upstreams: ShownUpstreams::new(
                families.upstream_in_flight.clone(),
                families.upstream_healthy.clone(),
                families.upstream_connect_failures.clone(),
            ),
            in_flight_levels: Progress::ALL.map(|phase| families.in_flight.with(&[phase.name()])),
            families: Arc::new(families),
            registry,
        })
    }

    /// A client met `limit`.
    pub fn client_limit(&self, limit: Limit) {
        self.client_limits.with(&[limit.name()]).inc();
    }

    /// All metrics in Prometheus's text format.
    pub fn text(&self) -> String {
        let families = self.upstreams.with_present(|| self.registry.gather());
        // What it writes to takes all.
        TextEncoder::new()
            .encode_to_string(&families)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
