//! The counters of a proxy, for Prometheus.

pub mod engine_joins;
pub mod engine_traces;
mod in_flight;
mod labels;
mod requests;
mod text;
mod total;
pub mod traces;

pub use in_flight::{Progress, UnderWay};
pub use labels::{ChosenBy, Limit, Loss};
pub use total::Total;

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{Error, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, Result};

use crate::request::endpoint::{PASSED, passed};
use crate::request::response::Unread;
use crate::request::row::Row;

use self::engine_joins::EngineJoinMetrics;
use self::engine_traces::EngineTraceMetrics;
use self::in_flight::InFlight;
use self::requests::RequestMetrics;
use self::traces::TraceMetrics;

use super::family::{Buckets, Count, Family, LABEL_SETS, Level};
use super::metric::Metric;
use super::process;
use super::upstreams::ShownUpstreams;

/// What a proxy counts. Cheap to clone; the clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    requests: RequestMetrics,
    in_flight: InFlight,
    attempts: Family<Count>,
    connections: Family<Count>,
    bytes: Family<Count>,
    join_entries: Family<Level>,
    lag: Arc<Buckets>,
    responses_unread: IntCounterVec,
    rows_written: IntCounter,
    rows_lost: IntCounterVec,
    reloads: IntCounterVec,
    rotations: IntCounter,
    passed_through: IntCounterVec,
    broken_heads: IntCounter,
    client_limits: IntCounterVec,
    tls_failures: IntCounter,
    faults_injected: Family<Count>,
    joins: IntCounterVec,
    joins_dropped: IntCounter,
    hop_stamps_refused: IntCounter,
    upstreams: ShownUpstreams,
    chosen: IntCounterVec,
    traces: TraceMetrics,
    engine_joins: EngineJoinMetrics,
    engine_traces: EngineTraceMetrics,
}

const ATTEMPTS: Metric = Metric::counter(
    "queuescope_attempts_total",
    &["worker", "outcome"],
    "Attempts at servers that have ended, as the hops saw them; without hops, where the upstream is the server itself, our \
        own sendings. More of them than requests: the router retries. The hop of a front's own process judges by status and framing \
        alone: a 200 whose stream tells of an error counts as `ok` here, and as what it is in `queuescope_requests_total`.",
);
const CONNECTIONS: Metric = Metric::counter(
    "queuescope_upstream_connections_total",
    &["upstream", "reused"],
    "Sendings, by whether their connection had been used before. Each that is `false` paid for a connect. Those to paths that \
        are not recorded count too.",
);
const BYTES: Metric = Metric::counter(
    "queuescope_bytes_total",
    &["direction"],
    "Body bytes of generation requests that have ended, as read: `request` from clients, `response` from upstreams.",
);
const JOIN_ENTRIES: Metric = Metric::gauge(
    "queuescope_join_table_entries",
    &["table"],
    "Entries of the tables by which attempts at hops find their request, looked at once a second. Each holds 65,536; it \
        keeps them for a minute after the end.",
);
const LAG: Metric = Metric::histogram(
    "queuescope_runtime_lag_seconds",
    &[],
    &LAG_BOUNDS,
    "How much later than asked a task that wakes every 50 ms was run: up to 1 ms is the timer's own. Above that the proxy \
        has no CPU left, and what it times is late by as much.",
);
const LAG_BOUNDS: [f64; 16] = [
    0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
    10.0,
];
const RESPONSES_UNREAD: Metric = Metric::counter(
    "queuescope_responses_unread_total",
    &["reason"],
    "2xx responses whose body told nothing of the generation: the column `unread` says what the reasons mean.",
);
const ROWS_WRITTEN: Metric = Metric::counter("queuescope_rows_written_total", &[], "Rows on disk.");
const RELOADS: Metric = Metric::counter(
    "queuescope_reloads_total",
    &["result"],
    "Reloads of the config on SIGHUP: `applied`, or `refused` with nothing changed.",
);
const ROWS_LOST: Metric = Metric::counter(
    "queuescope_rows_lost_total",
    &["reason"],
    "Rows that never reached the disk: `queue_full` (the disk was too slow), `write` (it could not be written), `shutdown` (they came \
        after the file's end).",
);
const ROTATIONS: Metric = Metric::counter(
    "queuescope_records_rotations_total",
    &[],
    "Times that this process moved the records file away to begin a new one.",
);
const PASSED_THROUGH: Metric = Metric::counter(
    "queuescope_passed_through_total",
    &["endpoint"],
    "Requests to paths that are not recorded: SGLang's by name, any other as `other`.",
);
const BROKEN_HEADS: Metric = Metric::counter(
    "queuescope_broken_heads_total",
    &[],
    "Connections on which bytes came that made no request.",
);
const UPSTREAM_IN_FLIGHT: Metric = Metric::gauge(
    "queuescope_upstream_in_flight",
    &["upstream"],
    "Requests that an upstream has: from its choice to the request's end.",
);
const UPSTREAM_HEALTHY: Metric = Metric::gauge(
    "queuescope_upstream_healthy",
    &["upstream"],
    "1, or 0 while an upstream is left out because it could not be connected to.",
);
const UPSTREAM_CONNECT_FAILURES: Metric = Metric::counter(
    "queuescope_upstream_connect_failures_total",
    &["upstream"],
    "Requests' connections to an upstream that did not come about.",
);
const CHOSEN: Metric = Metric::counter(
    "queuescope_cache_aware_choices_total",
    &["by"],
    "Choices of an upstream with the policy `cache_aware`, by what decided: `prefix` (it was given the beginning of the prompt \
        before), else the least loaded, as `load` (too little of the prompt was known), `imbalance` (the queues were too uneven) or \
        `unread` (no prompt to go by: none of 128 bytes, no JSON, or a request that is not recorded). One that is sent again is chosen for again.",
);

const JOINS: Metric = Metric::counter(
    "queuescope_joins_total",
    &["by"],
    "Attempts at worker hops, by what joined them to a request of the front: `span`, `request_id`, `late` \
        (the request had ended); `ambiguous` (several requests had its id), counted at its arrival, and at its end as all that \
        have a row of their own: `nothing`, or `elsewhere` (nothing here, while another process serves the same listeners: its front's row tells it).",
);
const JOINS_DROPPED: Metric = Metric::counter(
    "queuescope_joins_dropped_total",
    &[],
    "Requests and attempts that the full join tables did not take.",
);
const HOP_STAMPS_REFUSED: Metric = Metric::counter(
    "queuescope_hop_stamps_refused_total",
    &[],
    "Responses with an `x-queuescope-hop` that no hop of ours had signed for the request: taken off, not used.",
);

const CLIENT_LIMITS: Metric = Metric::counter(
    "queuescope_client_limits_total",
    &["limit"],
    "Connections and requests that were given up because they came to a limit on clients.",
);
const TLS_FAILURES: Metric = Metric::counter(
    "queuescope_tls_failures_total",
    &[],
    "TLS handshakes that failed, but for those that took too long.",
);
const FAULTS_INJECTED: Metric = Metric::counter(
    "queuescope_faults_injected_total",
    &["kind", "worker"],
    "Faults that were injected on demand.",
);

/// Every metric of a proxy; `docs/METRICS.md` walks these tables.
pub const TABLES: &[&[Metric]] = &[
    requests::METRICS,
    in_flight::METRICS,
    METRICS,
    traces::METRICS,
    engine_joins::METRICS,
    engine_traces::METRICS,
    process::METRICS,
];

const METRICS: &[Metric] = &[
    ATTEMPTS,
    CONNECTIONS,
    BYTES,
    LAG,
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
    JOIN_ENTRIES,
    HOP_STAMPS_REFUSED,
    UPSTREAM_IN_FLIGHT,
    UPSTREAM_HEALTHY,
    UPSTREAM_CONNECT_FAILURES,
    CHOSEN,
];

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
        let counter = |of: Metric| registered(&registry, IntCounter::new(of.name, of.help)?);
        let by = |of: Metric| {
            let counters = IntCounterVec::new(Opts::new(of.name, of.help), of.labels)?;
            registered(&registry, counters)
        };
        let gauges = |of: Metric| {
            let gauges = IntGaugeVec::new(Opts::new(of.name, of.help), of.labels)?;
            registered(&registry, gauges)
        };
        let upstreams = ShownUpstreams::new(
            gauges(UPSTREAM_IN_FLIGHT)?,
            gauges(UPSTREAM_HEALTHY)?,
            by(UPSTREAM_CONNECT_FAILURES)?,
            most,
        );
        // What has not happened is shown as 0: the first time is then seen as an increase.
        let known = |of: Metric, values: &[&str]| {
            let counters = by(of)?;
            for value in values {
                counters.with_label_values(&[*value]);
            }
            Ok::<_, Error>(counters)
        };
        Ok(Metrics {
            upstreams,
            chosen: known(CHOSEN, &ChosenBy::ALL.map(ChosenBy::name))?,
            traces: TraceMetrics::new(&registry)?,
            engine_joins: EngineJoinMetrics::new(&registry)?,
            engine_traces: EngineTraceMetrics::new(&registry)?,
            requests: RequestMetrics::new(&registry, most)?,
            in_flight: InFlight::new(&registry, most)?,
            attempts: Family::new(&registry, &ATTEMPTS, most)?,
            connections: Family::new(&registry, &CONNECTIONS, most)?,
            bytes: Family::new(&registry, &BYTES, most)?,
            join_entries: Family::new(&registry, &JOIN_ENTRIES, most)?,
            lag: Family::new(&registry, &LAG, most)?.with(&[]),
            responses_unread: known(RESPONSES_UNREAD, &Unread::ALL.map(Unread::name))?,
            rows_written: counter(ROWS_WRITTEN)?,
            rows_lost: known(ROWS_LOST, &Loss::ALL.map(Loss::name))?,
            reloads: known(RELOADS, &["applied", "refused"])?,
            rotations: counter(ROTATIONS)?,
            passed_through: known(PASSED_THROUGH, &PASSED)?,
            broken_heads: counter(BROKEN_HEADS)?,
            client_limits: known(CLIENT_LIMITS, &Limit::ALL.map(Limit::name))?,
            tls_failures: counter(TLS_FAILURES)?,
            faults_injected: Family::new(&registry, &FAULTS_INJECTED, most)?,
            joins: by(JOINS)?,
            joins_dropped: counter(JOINS_DROPPED)?,
            hop_stamps_refused: counter(HOP_STAMPS_REFUSED)?,
            registry,
        })
    }

    /// A generation request came: it is in flight until what this gives is dropped.
    pub fn request_began(&self) -> UnderWay {
        self.in_flight.request()
    }

    /// An attempt at `worker` began: it is in flight until what this gives is dropped.
    pub fn attempt_began(&self, worker: &str) -> UnderWay {
        self.in_flight.attempt(worker)
    }

    /// There may be attempts at `worker`: shows that there have been none yet.
    pub fn expect_worker(&self, worker: &str) {
        self.attempts.with(&[worker, "ok"]);
        self.in_flight.expect_worker(worker);
    }

    /// An attempt at `worker` ended with this outcome.
    pub fn attempt_ended(&self, worker: &str, outcome: &str) {
        self.attempts.with(&[worker, outcome]).add(1);
    }

    /// A generation request ended: all its rows.
    pub fn request_ended(&self, rows: &[Row]) {
        self.requests.record(rows);
    }

    /// So many body bytes of a generation request passed.
    pub fn bytes_passed(&self, request: u64, response: u64) {
        self.bytes.with(&["request"]).add(request);
        self.bytes.with(&["response"]).add(response);
    }

    /// A request got a connection to `upstream`; `reused` when that had been used before.
    pub fn connected(&self, upstream: &str, reused: bool) {
        let reused = if reused { "true" } else { "false" };
        self.connections.with(&[upstream, reused]).add(1);
    }

    /// An upstream was chosen with the policy `cache_aware`.
    pub fn chosen(&self, by: ChosenBy) {
        self.chosen.with_label_values(&[by.name()]).inc();
    }

    /// So many entries are in a join table.
    pub fn join_entries(&self, table: &str, entries: usize) {
        self.join_entries.with(&[table]).set(entries);
    }

    /// A task was run so much later than it had asked for.
    pub fn lagged(&self, nanos: i64) {
        self.lag.observe(nanos);
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
    pub fn passed_through(&self, path: &str) {
        self.passed_through.with_label_values(&[passed(path)]).inc();
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
        self.faults_injected.with(&[kind, worker]).add(1);
    }

    /// Attempts at worker hops may be joined so: shows that none has been yet.
    pub fn expect_joined(&self, by: &str) {
        self.joins.with_label_values(&[by]);
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
        self.in_flight.requests()
    }

    /// Generation requests under way by phase.
    pub fn in_flight_by_phase(&self) -> [(&'static str, i64); 3] {
        self.in_flight.by_phase()
    }

    /// Attempts under way: worker, phase and how many.
    pub fn in_flight_by_worker(&self) -> Vec<(String, String, i64)> {
        self.in_flight.by_worker()
    }

    /// What became of traces.
    pub fn traces(&self) -> &TraceMetrics {
        &self.traces
    }

    /// What became of what engines told of sequences.
    pub fn engine_joins(&self) -> &EngineJoinMetrics {
        &self.engine_joins
    }

    /// What became of the spans that servers sent.
    pub fn engine_traces(&self) -> &EngineTraceMetrics {
        &self.engine_traces
    }

    /// The upstreams that are shown.
    pub fn upstreams(&self) -> &ShownUpstreams {
        &self.upstreams
    }

    /// All metrics in Prometheus's text format.
    pub fn text(&self) -> String {
        let families = self.upstreams.with_present(|| self.registry.gather());
        text::of(&families)
    }
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

#[cfg(test)]
mod tests;
