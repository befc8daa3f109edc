//! The metrics of a proxy, for Prometheus.

mod labels;
mod process;
mod requests;
mod table;

pub use labels::{Batch, ChosenBy, Dropped, Join, LeftOut, RequestPhase};
pub use table::{Families, METRICS};

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus::{IntCounter, IntGauge, Registry, Result, TextEncoder};

use crate::request::Endpoint;
use crate::stats::waits::Cause;

use super::family::{Family, MAX_LABEL_SETS};
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

/// The only phase of a pair's leg to its prefill server: meanwhile the request waits for, or streams from, the decode server.
const PREFILLING: &str = "prefilling";

/// A request or attempt in flight. Dropping it ends it.
#[derive(Debug)]
pub struct InFlight {
    /// By [`RequestPhase`].
    gauges: [IntGauge; 3],
    phase: RequestPhase,
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
        let sum = |of: &Family<IntCounter>| of.sets().iter().map(|set| set.1.get()).sum::<u64>();
        format!(
            "served {} requests, passed {} others through, wrote {} rows, lost {}",
            sum(&self.requests),
            sum(&self.passed_through),
            sum(&self.rows_written),
            sum(&self.rows_lost),
        )
    }

    /// Counts a generation request as in flight until the returned value is dropped.
    pub fn begin_request(&self) -> InFlight {
        InFlight::new(self.in_flight_gauges.clone(), RequestPhase::Receiving)
    }

    /// Counts an attempt at `worker` as in flight until the returned value is dropped.
    pub fn begin_attempt(&self, worker: &str) -> InFlight {
        let gauge = |phase: RequestPhase| self.worker_in_flight.with(&[worker, phase.name()]);
        let (waiting, streaming) = (gauge(RequestPhase::Waiting), gauge(RequestPhase::Streaming));
        InFlight::new([waiting.clone(), waiting, streaming], RequestPhase::Waiting)
    }

    /// The same for a leg to the prefill server `worker` of a pair.
    pub fn begin_leg(&self, worker: &str) -> InFlight {
        let gauge = self.worker_in_flight.with(&[worker, PREFILLING]);
        InFlight::new([gauge.clone(), gauge.clone(), gauge], RequestPhase::Waiting)
    }

    /// Creates the series of `worker`, so that it is shown before its first attempt.
    pub fn expect_worker(&self, worker: &str) {
        self.attempts.with(&[worker, "ok"]);
        for phase in [RequestPhase::Waiting, RequestPhase::Streaming] {
            self.worker_in_flight.with(&[worker, phase.name()]);
        }
    }

    /// Returns the number of generation requests in flight.
    pub fn in_flight(&self) -> i64 {
        self.in_flight_gauges.iter().map(IntGauge::get).sum()
    }

    /// Returns the number of generation requests in flight, by phase.
    pub fn in_flight_by_phase(&self) -> [(&'static str, i64); 3] {
        RequestPhase::ALL.map(|phase| (phase.name(), self.in_flight_gauges[phase as usize].get()))
    }

    /// Returns the number of attempts in flight, with worker and phase.
    pub fn in_flight_by_worker(&self) -> Vec<(String, String, i64)> {
        let sets = self.worker_in_flight.sets().into_iter();
        let of_set = |(values, gauge): (Vec<String>, IntGauge)| {
            let [worker, phase] = values.try_into().ok()?;
            Some((worker, phase, gauge.get()))
        };
        let mut all: Vec<_> = sets.filter_map(of_set).collect();
        all.sort();
        all
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

impl InFlight {
    fn new(gauges: [IntGauge; 3], phase: RequestPhase) -> InFlight {
        gauges[phase as usize].inc();
        InFlight { gauges, phase }
    }

    /// Moves it to another phase.
    pub fn enter(&mut self, phase: RequestPhase) {
        if phase != self.phase {
            // In this order a reader may count it twice, but never misses it.
            self.gauges[phase as usize].inc();
            self.gauges[self.phase as usize].dec();
            self.phase = phase;
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.gauges[self.phase as usize].dec();
    }
}

#[cfg(test)]
pub(crate) mod tests;
