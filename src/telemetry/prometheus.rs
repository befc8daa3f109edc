//! The metrics of a proxy, for Prometheus.

mod in_flight;
mod labels;
mod process;
mod requests;
mod table;

pub use in_flight::InFlight;
pub use labels::{Batch, ChosenBy, Dropped, Join, LeftOut, Loss, RequestPhase};
pub use table::{Families, METRICS};

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus::{IntGauge, Registry, Result, TextEncoder};

use crate::request::endpoint::Endpoint;
use crate::stats::waits::Cause;

use super::family::MAX_LABEL_SETS;
use super::upstreams::{ShownUpstreams, UpstreamFigures};

/// The metrics of a proxy. Clones are cheap and share the values.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    families: Arc<Families>,
    /// The upstreams whose numbers are shown.
    pub upstreams: ShownUpstreams,
    /// The gauges of requests in flight, by [`RequestPhase`].
    in_flight_gauges: [IntGauge; 3],
}

impl Deref for Metrics {
    type Target = Families;

    fn deref(&self) -> &Families {
        &self.families
    }
}

impl Metrics {
    /// Creates metrics at zero, in a registry of their own.
    ///
    /// # Errors
    /// If Prometheus refuses a name, which a test rules out.
    pub fn new() -> Result<Metrics> {
        Metrics::with_label_sets(MAX_LABEL_SETS)
    }

    /// The same with another maximum number of label sets of a metric.
    ///
    /// # Errors
    /// If Prometheus refuses a name, which a test rules out.
    pub fn with_label_sets(max_sets: usize) -> Result<Metrics> {
        let registry = Registry::new();
        let families = Families::new(&registry, max_sets)?;
        process::set_constants(&families);
        for endpoint in Endpoint::ALL {
            for reason in requests::reasons() {
                families.timing_missing.with(&[reason, endpoint.path()]);
            }
        }
        Ok(Metrics {
            upstreams: ShownUpstreams::default(),
            in_flight_gauges: RequestPhase::ALL
                .map(|phase| families.in_flight.with(&[phase.name()])),
            families: Arc::new(families),
            registry,
        })
    }

    /// Adds a wait at a worker for this cause, nanoseconds.
    pub fn add_wait(&self, worker: &str, cause: Cause, nanos: i64) {
        let seconds = self.wait_causes.with(&[worker, cause.name()]);
        seconds.inc_by(requests::seconds(nanos));
    }

    /// Returns all metrics in Prometheus's text format.
    pub fn text(&self) -> String {
        let families = self.upstreams.with_present(|present| {
            self.update_upstreams(present);
            process::update(self);
            self.registry.gather()
        });
        // Writing to a string cannot fail.
        TextEncoder::new()
            .encode_to_string(&families)
            .unwrap_or_default()
    }

    /// Returns the totals as a sentence, for the last line of the log.
    pub fn totals(&self) -> String {
        let served = self.requests.sets();
        let served: u64 = served.iter().map(|(_, count)| count.get()).sum();
        let lost = self.rows_lost.sets();
        let lost: u64 = lost.iter().map(|(_, rows)| rows.get()).sum();
        format!(
            "served {served} requests, passed {} others through, wrote {} rows, lost {lost}",
            self.passed_through.with(&[]).get(),
            self.rows_written.with(&[]).get(),
        )
    }

    /// Copies the upstreams' current numbers into the metrics. Those of the same name are added up.
    fn update_upstreams(&self, present: &[Arc<UpstreamFigures>]) {
        self.upstream_in_flight.clear();
        self.upstream_healthy.clear();
        self.upstream_connect_failures.clear();
        for upstream in present {
            let label = [upstream.name.as_str()];
            let in_flight = upstream.in_flight.load(Relaxed);
            self.upstream_in_flight.with(&label).add(in_flight as i64);
            // One that is left out counts, of several of the same name.
            let is_healthy = !upstream.is_out.load(Relaxed);
            self.upstream_healthy.with(&label).set(is_healthy.into());
            let failures = upstream.connect_failures.load(Relaxed);
            self.upstream_connect_failures.with(&label).inc_by(failures);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
