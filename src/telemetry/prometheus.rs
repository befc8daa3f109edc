//! The counters of a proxy, for Prometheus.

mod in_flight;
mod labels;
mod requests;
mod table;
mod total;

pub use in_flight::UnderWay;
pub use labels::{Batch, ChosenBy, Dropped, Join, Limit, Loss, Progress};
pub use table::Families;
pub use total::Total;

use std::ops::Deref;
use std::sync::Arc;

use prometheus::{IntGauge, Registry, Result, TextEncoder};

use crate::request::endpoint::{Endpoint, PASSED, passed};
use crate::request::impossible::Impossible;
use crate::request::response::Unread;

use super::family::LABEL_SETS;
use super::metric::Metric;
use super::process;
use super::upstreams::ShownUpstreams;

/// What a proxy counts. Cheap to clone; the clones count together.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

/// The metrics, and what is done with them.
#[derive(Debug)]
pub struct Inner {
    registry: Registry,
    families: Families,
    /// The upstreams that are shown.
    pub upstreams: ShownUpstreams,
    /// Requests under way by [`Progress`].
    in_flight_levels: [IntGauge; 3],
}

/// Every metric of a proxy; `docs/METRICS.md` walks these tables.
pub const TABLES: &[&[Metric]] = &[&table::METRICS, process::METRICS];

/// An attempt whose batch the collector took.
const SENT: &str = "sent";

impl Deref for Metrics {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Deref for Inner {
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
        let upstreams = ShownUpstreams::new(
            families.upstream_in_flight.vector().clone(),
            families.upstream_healthy.vector().clone(),
            families.upstream_connect_failures.vector().clone(),
            most,
        );
        // What has not happened is shown as 0: the first time is then seen as an increase.
        for (family, values) in [
            (&families.chosen, &ChosenBy::NAMES[..]),
            (&families.responses_unread, &Unread::ALL.map(Unread::name)),
            (&families.rows_lost, &Loss::NAMES),
            (&families.reloads, &["applied", "refused"]),
            (&families.passed_through, &PASSED),
            (&families.client_limits, &Limit::NAMES),
            (&families.traces_dropped, &Dropped::NAMES),
            (&families.trace_batches, &Batch::NAMES),
            (&families.trace_forwards, &[SENT]),
            (&families.trace_forwards, &Dropped::NAMES),
            (&families.impossible, &Impossible::KINDS),
        ] {
            for value in values {
                family.with(&[*value]);
            }
        }
        for endpoint in Endpoint::ALL {
            for reason in requests::reasons(endpoint) {
                families.timing_missing.with(&[reason, endpoint.path()]);
            }
        }
        let levels = Progress::NAMES.map(|phase| families.in_flight.with(&[phase]));
        Ok(Metrics(Arc::new(Inner {
            registry,
            families,
            upstreams,
            in_flight_levels: levels,
        })))
    }

    /// An attempt at `worker` ended with this outcome.
    pub fn attempt_ended(&self, worker: &str, outcome: &str) {
        self.attempts.with(&[worker, outcome]).inc();
    }

    /// So many body bytes of a generation request passed.
    pub fn bytes_passed(&self, request: u64, response: u64) {
        self.bytes.with(&["request"]).inc_by(request);
        self.bytes.with(&["response"]).inc_by(response);
    }

    /// A request got a connection to `upstream`; `reused` when that had been used before.
    pub fn connected(&self, upstream: &str, reused: bool) {
        let reused = if reused { "true" } else { "false" };
        self.connections.with(&[upstream, reused]).inc();
    }

    /// A response's body told nothing.
    pub fn response_unread(&self, why: Unread) {
        self.responses_unread.with(&[why.name()]).inc();
    }

    /// Rows are lost.
    pub fn rows_lost(&self, why: Loss, rows: usize) {
        self.rows_lost.with(&[why.name()]).inc_by(rows as u64);
    }

    /// A reload was applied or refused.
    pub fn reloaded(&self, is_applied: bool) {
        let result = if is_applied { "applied" } else { "refused" };
        self.reloads.with(&[result]).inc();
    }

    /// A request to an unrecorded path came.
    pub fn passed_through(&self, path: &str) {
        self.passed_through.with(&[passed(path)]).inc();
    }

    /// A client came to a limit.
    pub fn client_limit(&self, limit: Limit) {
        self.client_limits.with(&[limit.name()]).inc();
    }

    /// So many traces of ours are lost.
    pub fn traces_dropped(&self, why: Dropped, traces: usize) {
        self.traces_dropped
            .with(&[why.name()])
            .inc_by(traces as u64);
    }

    /// How many traces of ours are lost, for whatever reason.
    pub fn traces_lost(&self) -> u64 {
        Dropped::NAMES
            .map(|why| self.traces_dropped.with(&[why]).get())
            .iter()
            .sum()
    }

    /// This source tells of sequences: shows that nothing has come of it yet.
    pub fn expect_engine_joins(&self, source: &str) {
        for outcome in Join::NAMES {
            self.engine_joins.with(&[source, outcome]);
        }
    }

    /// So many things told by `source` ended so.
    pub fn engine_joined(&self, source: &str, outcome: Join, many: usize) {
        self.engine_joins
            .with(&[source, outcome.name()])
            .inc_by(many as u64);
    }

    /// A batch of servers' spans came.
    pub fn batch(&self, outcome: Batch) {
        self.trace_batches.with(&[outcome.name()]).inc();
    }

    /// How many of them had this outcome.
    pub fn batches(&self, outcome: Batch) -> u64 {
        self.trace_batches.with(&[outcome.name()]).get()
    }

    /// The collector took a batch of servers' spans.
    pub fn forwarded(&self) {
        self.trace_forwards.with(&[SENT]).inc();
    }

    /// Batches of servers' spans are lost on their way to the collector.
    pub fn not_forwarded(&self, why: Dropped, batches: usize) {
        self.trace_forwards
            .with(&[why.name()])
            .inc_by(batches as u64);
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
