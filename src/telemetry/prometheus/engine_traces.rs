//! What the receiver of servers' traces counts.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry, Result};

use crate::telemetry::metric::Metric;

use super::traces::Dropped;

/// What became of the batches of spans that servers sent. Cheap to clone; the clones count together.
#[derive(Clone, Debug)]
pub struct EngineTraceMetrics {
    batches: IntCounterVec,
    forwards: IntCounterVec,
    refused: IntCounter,
}

/// What came of a batch of spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// It was read.
    Taken,
    /// It is no message of OTLP traces.
    Malformed,
    /// It is larger than a message may be.
    TooLarge,
    /// There was no room for it.
    NoRoom,
}

const BATCHES: Metric = Metric::counter(
    "queuescope_engine_trace_batches_total",
    &["outcome"],
    "Batches of spans that servers sent to `[engine.traces] listen`: `taken`, `malformed` (no message of OTLP traces), `too_large` (above \
        16 MiB, or inflated beyond 64 times what came), `no_room` (more came than could be read, of all or of one connection, which \
        was told to send it again; their requests may lack the engine's moments).",
);
const FORWARDS: Metric = Metric::counter(
    "queuescope_engine_trace_forwards_total",
    &["outcome"],
    "The same batches on their way to the collector: `sent`, or lost by `queue_full`, `rejected` (the collector refused it), \
        `unreachable` (no connection), `timeout`, `shutdown`.",
);
const REFUSED: Metric = Metric::counter(
    "queuescope_engine_trace_connections_refused_total",
    &[],
    "Connections to `[engine.traces] listen` that were closed at once, as too many were open.",
);
const SENT: &str = "sent";

/// Those of servers' traces; `docs/METRICS.md` walks this table.
pub(super) const METRICS: &[Metric] = &[BATCHES, FORWARDS, REFUSED];

impl EngineTraceMetrics {
    /// Counters at zero, shown in `registry`.
    ///
    /// # Errors
    /// When Prometheus refuses a name, which a test rules out.
    pub fn new(registry: &Registry) -> Result<EngineTraceMetrics> {
        let by = |of: Metric| IntCounterVec::new(Opts::new(of.name, of.help), of.labels);
        let metrics = EngineTraceMetrics {
            batches: by(BATCHES)?,
            forwards: by(FORWARDS)?,
            refused: IntCounter::new(REFUSED.name, REFUSED.help)?,
        };
        // A rate needs a value before the first loss.
        for outcome in Batch::ALL {
            metrics.batches.with_label_values(&[outcome.name()]);
        }
        metrics.forwards.with_label_values(&[SENT]);
        for why in Dropped::ALL {
            metrics.forwards.with_label_values(&[why.name()]);
        }
        registry.register(Box::new(metrics.batches.clone()))?;
        registry.register(Box::new(metrics.forwards.clone()))?;
        registry.register(Box::new(metrics.refused.clone()))?;
        Ok(metrics)
    }

    /// A batch came.
    pub fn batch(&self, outcome: Batch) {
        self.batches.with_label_values(&[outcome.name()]).inc();
    }

    /// A connection was closed, as too many were open.
    pub fn refused(&self) {
        self.refused.inc();
    }

    /// How many connections were.
    pub fn refusals(&self) -> u64 {
        self.refused.get()
    }

    /// How many batches had this outcome.
    pub fn batches(&self, outcome: Batch) -> u64 {
        self.batches.with_label_values(&[outcome.name()]).get()
    }

    /// The collector took a batch.
    pub fn forwarded(&self) {
        self.forwards.with_label_values(&[SENT]).inc();
    }

    /// Batches are lost on their way to the collector.
    pub fn not_forwarded(&self, why: Dropped, batches: usize) {
        self.forwards
            .with_label_values(&[why.name()])
            .inc_by(batches as u64);
    }
}

impl Batch {
    const ALL: [Batch; 4] = [
        Batch::Taken,
        Batch::Malformed,
        Batch::TooLarge,
        Batch::NoRoom,
    ];

    /// The name in the metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Batch::Taken => "taken",
            Batch::Malformed => "malformed",
            Batch::TooLarge => "too_large",
            Batch::NoRoom => "no_room",
        }
    }
}
