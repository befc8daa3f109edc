//! What the exporter of traces counts.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry, Result};

use crate::telemetry::metric::Metric;

/// What became of the traces of requests. Cheap to clone; the clones count together.
#[derive(Clone, Debug)]
pub struct TraceMetrics {
    /// Traces that a collector took.
    pub exported: IntCounter,
    /// Those that did not get there, by [`Dropped`].
    dropped: IntCounterVec,
    /// Those that sampling left out.
    pub sampled_out: IntCounter,
    /// Those that wait.
    pub queue: IntGauge,
}

/// Why a trace is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Too many waited.
    QueueFull,
    /// The collector did not take it.
    Rejected,
    /// There was no connection to the collector.
    Unreachable,
    /// The collector did not answer in time.
    Timeout,
    /// It still waited when the process ended.
    Shutdown,
}

const EXPORTED: Metric = Metric::counter(
    "queuescope_traces_exported_total",
    &[],
    "Traces of requests that the collector took.",
);
const DROPPED: Metric = Metric::counter(
    "queuescope_traces_dropped_total",
    &["reason"],
    "Traces that were to be exported and were lost: `queue_full`, `rejected` (the collector refused them), \
        `unreachable` (no connection), `timeout`, `shutdown` (they still waited when the process ended).",
);
const SAMPLED_OUT: Metric = Metric::counter(
    "queuescope_traces_sampled_out_total",
    &[],
    "Traces that sampling left out when their requests had ended.",
);
const QUEUE: Metric = Metric::gauge(
    "queuescope_trace_queue_length",
    &[],
    "Traces that wait to be exported.",
);

/// Those of traces; `docs/METRICS.md` walks this table.
pub(super) const METRICS: &[Metric] = &[EXPORTED, DROPPED, SAMPLED_OUT, QUEUE];

impl TraceMetrics {
    /// Counters at zero, shown in `registry`.
    ///
    /// # Errors
    /// When Prometheus refuses a name, which a test rules out.
    pub fn new(registry: &Registry) -> Result<TraceMetrics> {
        let metrics = TraceMetrics {
            exported: IntCounter::new(EXPORTED.name, EXPORTED.help)?,
            dropped: IntCounterVec::new(Opts::new(DROPPED.name, DROPPED.help), DROPPED.labels)?,
            sampled_out: IntCounter::new(SAMPLED_OUT.name, SAMPLED_OUT.help)?,
            queue: IntGauge::new(QUEUE.name, QUEUE.help)?,
        };
        // A rate needs a value before the first loss.
        for why in Dropped::ALL {
            metrics.dropped(why, 0);
        }
        registry.register(Box::new(metrics.exported.clone()))?;
        registry.register(Box::new(metrics.dropped.clone()))?;
        registry.register(Box::new(metrics.sampled_out.clone()))?;
        registry.register(Box::new(metrics.queue.clone()))?;
        Ok(metrics)
    }

    /// So many are lost.
    pub fn dropped(&self, why: Dropped, traces: usize) {
        self.dropped
            .with_label_values(&[why.name()])
            .inc_by(traces as u64);
    }

    /// How many are lost, for whatever reason.
    pub fn lost(&self) -> u64 {
        let all = Dropped::ALL.into_iter();
        all.map(|why| self.dropped.with_label_values(&[why.name()]).get())
            .sum()
    }
}

impl Dropped {
    /// Each of them.
    pub const ALL: [Dropped; 5] = [
        Dropped::QueueFull,
        Dropped::Rejected,
        Dropped::Unreachable,
        Dropped::Timeout,
        Dropped::Shutdown,
    ];

    /// The name in the metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Dropped::QueueFull => "queue_full",
            Dropped::Rejected => "rejected",
            Dropped::Unreachable => "unreachable",
            Dropped::Timeout => "timeout",
            Dropped::Shutdown => "shutdown",
        }
    }
}
