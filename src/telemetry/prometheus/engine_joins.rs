//! What the join of rows with the engine's trace and log counts.

use prometheus::{IntCounterVec, IntGauge, Opts, Registry, Result};

use crate::telemetry::metric::Metric;

/// What became of what engines told. Cheap to clone; the clones count together.
#[derive(Clone, Debug)]
pub struct EngineJoinMetrics {
    joins: IntCounterVec,
    /// Requests that have ended and wait.
    pub waiting: IntGauge,
}

/// What became of something told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// It is in its row.
    Joined,
    /// Its row had gone out.
    Late,
    /// Its row had gone out with it, or with what the other source told.
    Again,
    /// No row came for it.
    NoRow,
    /// There was no room for it.
    NoRoom,
}

const JOINS: Metric = Metric::counter(
    "queuescope_engine_joins_total",
    &["source", "outcome"],
    "Sequences that engines told of in their traces (`trace`) or request logs (`log`): `joined` with a row, `late` (the row was \
        written before: raise `wait_s`), `again` (the row was written with what came first, as from the other source), `no_row` (none came in 5 minutes: other clients of the server, samples that never \
        ran; of both sources, counted as `trace` where that is on), `no_room` (batches of spans, lines).",
);
const WAITING: Metric = Metric::gauge(
    "queuescope_engine_waiting",
    &[],
    "Requests that have ended and wait for what the engine tells of them.",
);

/// Those of the join; `docs/METRICS.md` walks this table.
pub(super) const METRICS: &[Metric] = &[JOINS, WAITING];

impl EngineJoinMetrics {
    /// Counters at zero, shown in `registry`.
    ///
    /// # Errors
    /// When Prometheus refuses a name, which a test rules out.
    pub fn new(registry: &Registry) -> Result<EngineJoinMetrics> {
        let metrics = EngineJoinMetrics {
            joins: IntCounterVec::new(Opts::new(JOINS.name, JOINS.help), JOINS.labels)?,
            waiting: IntGauge::new(WAITING.name, WAITING.help)?,
        };
        registry.register(Box::new(metrics.joins.clone()))?;
        registry.register(Box::new(metrics.waiting.clone()))?;
        Ok(metrics)
    }

    /// This source is on: shows that nothing has come of it yet.
    pub fn expect(&self, source: &str) {
        for outcome in Join::ALL {
            self.joined(source, outcome, 0);
        }
    }

    /// So many things told by `source` ended so.
    pub fn joined(&self, source: &str, outcome: Join, many: usize) {
        let labels = [source, outcome.name()];
        self.joins.with_label_values(&labels).inc_by(many as u64);
    }
}

impl Join {
    const ALL: [Join; 5] = [
        Join::Joined,
        Join::Late,
        Join::Again,
        Join::NoRow,
        Join::NoRoom,
    ];

    /// The name in the metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Join::Joined => "joined",
            Join::Late => "late",
            Join::Again => "again",
            Join::NoRow => "no_row",
            Join::NoRoom => "no_room",
        }
    }
}
