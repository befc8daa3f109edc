//! The counters of a proxy, for Prometheus.

mod labels;

pub use labels::{Limit, Loss};

use prometheus::core::Collector;
use prometheus::{
    Encoder, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, Result, TextEncoder,
};

use crate::request::endpoint::Endpoint;
use crate::request::record::Outcome;
use crate::request::response::Unread;

use super::metric::Metric;
use super::process;
use super::upstreams::ShownUpstreams;

mod total;
pub mod traces;

pub use total::Total;
use traces::TraceMetrics;

/// What a proxy counts. Cheap to clone; the clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    responses_unread: IntCounterVec,
    rows_written: IntCounter,
    rows_lost: IntCounterVec,
    reloads: IntCounterVec,
    rotations: IntCounter,
    passed_through: IntCounter,
    broken_heads: IntCounter,
    in_flight: IntGauge,
    client_limits: IntCounterVec,
    tls_failures: IntCounter,
    faults_injected: IntCounterVec,
    joins: IntCounterVec,
    joins_dropped: IntCounter,
    hop_stamps_refused: IntCounter,
    upstreams: ShownUpstreams,
    traces: TraceMetrics,
}

const REQUESTS: Metric = Metric {
    name: "queuescope_requests_total",
    is_gauge: false,
    help: "Generation requests that have ended.",
    labels: &["endpoint", "outcome"],
};
const RESPONSES_UNREAD: Metric = Metric {
    name: "queuescope_responses_unread_total",
    is_gauge: false,
    help: "2xx responses whose body was not read: the column `unread` says what the reasons mean.",
    labels: &["reason"],
};
const ROWS_WRITTEN: Metric = Metric {
    name: "queuescope_rows_written_total",
    is_gauge: false,
    help: "Rows on disk.",
    labels: &[],
};
const RELOADS: Metric = Metric {
    name: "queuescope_reloads_total",
    is_gauge: false,
    help: "Reloads of the config on SIGHUP: `applied`, or `refused` with nothing changed.",
    labels: &["result"],
};
const ROWS_LOST: Metric = Metric {
    name: "queuescope_rows_lost_total",
    is_gauge: false,
    help: "Rows that never reached the disk.",
    labels: &["reason"],
};
const ROTATIONS: Metric = Metric {
    name: "queuescope_records_rotations_total",
    is_gauge: false,
    help: "Times that this process moved the records file away to begin a new one.",
    labels: &[],
};
const PASSED_THROUGH: Metric = Metric {
    name: "queuescope_passed_through_total",
    is_gauge: false,
    help: "Requests to paths that are not recorded.",
    labels: &[],
};
const BROKEN_HEADS: Metric = Metric {
    name: "queuescope_broken_heads_total",
    is_gauge: false,
    help: "Connections on which bytes came that made no request.",
    labels: &[],
};
const IN_FLIGHT: Metric = Metric {
    name: "queuescope_in_flight",
    is_gauge: true,
    help: "Generation requests under way.",
    labels: &[],
};
const UPSTREAM_IN_FLIGHT: Metric = Metric {
    name: "queuescope_upstream_in_flight",
    is_gauge: true,
    help: "Requests that an upstream has: from its choice to the request's end.",
    labels: &["upstream"],
};
const UPSTREAM_HEALTHY: Metric = Metric {
    name: "queuescope_upstream_healthy",
    is_gauge: true,
    help: "1, or 0 while an upstream is left out because it could not be connected to.",
    labels: &["upstream"],
};
const UPSTREAM_CONNECT_FAILURES: Metric = Metric {
    name: "queuescope_upstream_connect_failures_total",
    is_gauge: false,
    help: "Requests' connections to an upstream that did not come about.",
    labels: &["upstream"],
};

const JOINS: Metric = Metric {
    name: "queuescope_joins_total",
    is_gauge: false,
    help: "Attempts at worker hops, by what joined them to a request of the front: `span`, `request_id`, `response` \
        (the answer named it), `late` (the request had ended), `ambiguous` (several requests had its id), `nothing` \
        (it has a row of its own), `elsewhere` (nothing here, while another process serves the same listeners: its front's row tells it).",
    labels: &["by"],
};
const JOINS_DROPPED: Metric = Metric {
    name: "queuescope_joins_dropped_total",
    is_gauge: false,
    help: "Requests and attempts that the full join tables did not take.",
    labels: &[],
};
const HOP_STAMPS_REFUSED: Metric = Metric {
    name: "queuescope_hop_stamps_refused_total",
    is_gauge: false,
    help: "Responses with an `x-queuescope-hop` that no hop of ours had signed for the request: taken off, not used.",
    labels: &[],
};

const CLIENT_LIMITS: Metric = Metric {
    name: "queuescope_client_limits_total",
    is_gauge: false,
    help: "Connections and requests that were given up because they came to a limit on clients.",
    labels: &["limit"],
};
const TLS_FAILURES: Metric = Metric {
    name: "queuescope_tls_failures_total",
    is_gauge: false,
    help: "TLS handshakes that failed, but for those that took too long.",
    labels: &[],
};
const FAULTS_INJECTED: Metric = Metric {
    name: "queuescope_faults_injected_total",
    is_gauge: false,
    help: "Faults that were injected on demand.",
    labels: &["worker", "kind"],
};

/// Every metric of a proxy but those of its process; `docs/METRICS.md` walks this table.
pub const METRICS: &[Metric] = &[
    REQUESTS,
    IN_FLIGHT,
    RESPONSES_UNREAD,
    ROWS_WRITTEN,
    ROWS_LOST,
    RELOADS,
    ROTATIONS,
    PASSED_THROUGH,
    BROKEN_HEADS,
    CLIENT_LIMITS,
    TLS_FAILURES,
    FAULTS_INJECTED,
    JOINS,
    JOINS_DROPPED,
    HOP_STAMPS_REFUSED,
    UPSTREAM_IN_FLIGHT,
    UPSTREAM_HEALTHY,
    UPSTREAM_CONNECT_FAILURES,
    traces::EXPORTED,
    traces::DROPPED,
    traces::SAMPLED_OUT,
    traces::QUEUE,
];

impl Metrics {
    /// Counters at zero, in a registry of their own.
    ///
    /// # Errors
    /// When Prometheus refuses a name, which a test rules out.
    pub fn new() -> Result<Metrics> {
        let registry = Registry::new();
        process::register(&registry)?;
        let counter = |of: Metric| registered(&registry, IntCounter::new(of.name, of.help)?);
        let by = |of: Metric| {
            let counters = IntCounterVec::new(Opts::new(of.name, of.help), of.labels)?;
            registered(&registry, counters)
        };
        let gauge = |of: Metric| registered(&registry, IntGauge::new(of.name, of.help)?);
        let gauges = |of: Metric| {
            let gauges = IntGaugeVec::new(Opts::new(of.name, of.help), of.labels)?;
            registered(&registry, gauges)
        };
        let upstreams = ShownUpstreams::new(
            gauges(UPSTREAM_IN_FLIGHT)?,
            gauges(UPSTREAM_HEALTHY)?,
            by(UPSTREAM_CONNECT_FAILURES)?,
        );
        Ok(Metrics {
            upstreams,
            traces: TraceMetrics::new(&registry)?,
            requests: by(REQUESTS)?,
            responses_unread: by(RESPONSES_UNREAD)?,
            rows_written: counter(ROWS_WRITTEN)?,
            rows_lost: by(ROWS_LOST)?,
            reloads: by(RELOADS)?,
            rotations: counter(ROTATIONS)?,
            passed_through: counter(PASSED_THROUGH)?,
            broken_heads: counter(BROKEN_HEADS)?,
            in_flight: gauge(IN_FLIGHT)?,
            client_limits: by(CLIENT_LIMITS)?,
            tls_failures: counter(TLS_FAILURES)?,
            faults_injected: by(FAULTS_INJECTED)?,
            joins: by(JOINS)?,
            joins_dropped: counter(JOINS_DROPPED)?,
            hop_stamps_refused: counter(HOP_STAMPS_REFUSED)?,
            registry,
        })
    }

    /// A generation request came.
    pub fn request_began(&self) {
        self.in_flight.inc();
    }

    /// A generation request ended.
    pub fn request_ended(&self, endpoint: Endpoint, outcome: Outcome) {
        self.in_flight.dec();
        self.requests
            .with_label_values(&[endpoint.path(), outcome.name()])
            .inc();
    }

    /// A response's body told nothing.
    pub fn response_unread(&self, why: Unread) {
        self.responses_unread.with_label_values(&[why.name()]).inc();
    }

    /// Rows reached the file.
    pub fn rows_written(&self, rows: u64) {
        self.rows_written.inc_by(rows);
    }

    /// Rows are lost.
    pub fn rows_lost(&self, why: Loss, rows: u64) {
        self.rows_lost.with_label_values(&[why.name()]).inc_by(rows);
    }

    /// A reload was applied or refused.
    pub fn reloaded(&self, is_applied: bool) {
        let result = if is_applied { "applied" } else { "refused" };
        self.reloads.with_label_values(&[result]).inc();
    }

    /// The records file was moved away.
    pub fn records_rotated(&self) {
        self.rotations.inc();
    }

    /// A request to an unrecorded path came.
    pub fn passed_through(&self) {
        self.passed_through.inc();
    }

    /// Bytes came that made no request.
    pub fn broken_head(&self) {
        self.broken_heads.inc();
    }

    /// A client came to a limit.
    pub fn client_limit(&self, limit: Limit) {
        self.client_limits.with_label_values(&[limit.name()]).inc();
    }

    /// A TLS handshake failed.
    pub fn tls_failed(&self) {
        self.tls_failures.inc();
    }

    /// A fault was injected.
    pub fn fault_injected(&self, worker: &str, kind: &str) {
        self.faults_injected
            .with_label_values(&[worker, kind])
            .inc();
    }

    /// An attempt at a worker hop was joined, or not.
    pub fn joined(&self, by: &str) {
        self.joins.with_label_values(&[by]).inc();
    }

    /// A full join table did not take a request or an attempt.
    pub fn join_dropped(&self) {
        self.joins_dropped.inc();
    }

    /// A response had stamps in a hop's name that no hop of ours wrote.
    pub fn hop_stamps_refused(&self) {
        self.hop_stamps_refused.inc();
    }

    /// Generation requests under way.
    pub fn in_flight(&self) -> i64 {
        self.in_flight.get()
    }

    /// What became of traces.
    pub fn traces(&self) -> &TraceMetrics {
        &self.traces
    }

    /// The upstreams that are shown.
    pub fn upstreams(&self) -> &ShownUpstreams {
        &self.upstreams
    }

    /// All counters in Prometheus's text format.
    ///
    /// # Errors
    /// What the encoder answers.
    pub fn text(&self) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        let families = self.upstreams.with_present(|| self.registry.gather());
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

#[cfg(test)]
mod tests;
