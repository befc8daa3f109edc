//! The table of all metrics of a proxy: name, type, labels, bounds and help.

use prometheus::{Counter, Gauge, Histogram, IntCounter, IntGauge, Registry, Result};

use crate::request::{GAP_BOUNDS, Impossible, Unread};
use crate::telemetry::family::{BatchHistogram, Family, Metric, Series};

use super::{BatchOutcome, ChosenBy, Dropped, LeftOut};

/// Below 0.1 s our own, then SGLang's for comparison, then up to an hour.
const LATENCY_BOUNDS: [f64; 29] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
    10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0, 600.0, 1200.0, 1800.0, 3600.0,
];
/// [`GAP_BOUNDS`], then up to an hour.
const PER_TOKEN_BOUNDS: [f64; 28] = {
    let mut all = [0.0; 28];
    let (gaps, longer) = all.split_at_mut(GAP_BOUNDS.len());
    gaps.copy_from_slice(&GAP_BOUNDS);
    longer.copy_from_slice(&[10.0, 30.0, 60.0, 600.0, 3600.0]);
    all
};
const OVERHEAD_BOUNDS: [f64; 16] = [
    0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
    0.1, 0.2, 0.5, 1.0,
];
const LAG_BOUNDS: [f64; 16] = [
    0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
    10.0,
];
const GEN_AI_AND_ERROR: [&str; 7] = [
    "gen_ai_operation_name",
    "gen_ai_provider_name",
    "gen_ai_request_model",
    "server_address",
    "server_port",
    "http_route",
    "error_type",
];
const GEN_AI: &[&str] = GEN_AI_AND_ERROR.split_at(6).0;
const ROWS_LOST: [Dropped; 3] = [Dropped::QueueFull, Dropped::Write, Dropped::Shutdown];
const TRACES_DROPPED: [Dropped; 5] = [
    Dropped::QueueFull,
    Dropped::Rejected,
    Dropped::Unreachable,
    Dropped::Timeout,
    Dropped::Shutdown,
];

/// Generates from the table the metrics, one field each, and their descriptions for `docs/METRICS.md`. Label values after `of` have
/// a series from the start: without one at 0, Prometheus would not see the first count as an increase.
macro_rules! metrics {
    ($($field:ident: $series:ident = $name:literal, $labels:expr $(, buckets $bounds:expr)? $(, of $values:expr)?; $help:literal;)*) => {
        /// The metrics, one field each.
        #[derive(Debug)]
        pub struct Families {
            $(#[doc = $help] pub $field: Family<$series>,)*
        }

        /// Their descriptions; `docs/METRICS.md` is made from them.
        pub const METRICS: [Metric; [$($name),*].len()] = [$(
            Metric {
                name: $name,
                kind: <$series as Series>::TYPE,
                bounds: metrics!(@ $($bounds)?),
                help: $help,
                labels: $labels,
            },
        )*];

        impl Families {
            /// Creates all of them in `registry`, each with this maximum number of label sets.
            pub(super) fn new(registry: &Registry, max_sets: usize) -> Result<Families> {
                let [$($field),*] = METRICS;
                $(
                    let $field = Family::new(registry, $field, max_sets)?;
                    $($values.into_iter().for_each(|value| drop($field.with(&[value])));)?
                )*
                Ok(Families { $($field,)* })
            }
        }
    };
    (@) => { &[] };
    (@ $bounds:expr) => { $bounds };
}

metrics! {
    duration: Histogram = "gen_ai_server_request_duration_seconds", &GEN_AI_AND_ERROR, buckets &LATENCY_BOUNDS;
        "Generation requests from the head's arrival to the end, whoever ended it: column `elapsed`. `error_type` is the outcome \
        of those that did not go well, else absent; `server_address` and `server_port` are those of the server that served it, where \
        that is known. Without those that the server only took to generate in the background (`unread` is `background`).";
    first_token: Histogram = "gen_ai_server_time_to_first_token_seconds", GEN_AI, buckets &LATENCY_BOUNDS;
        "From a request's arrival to its first token: column `ttft`. Beside `sglang:time_to_first_token_seconds` it also holds \
        what came before the server: the difference is proxy, router and network. Each sequence of a request counts; replies \
        that are no stream only where the engine reported its timings.";
    per_token: Histogram = "gen_ai_server_time_per_output_token_seconds", GEN_AI, buckets &PER_TOKEN_BOUNDS;
        "Mean time per output token after the first, one value a sequence, without the time that a client held up writes: column \
        `tpot`. Its inverse is how fast a reader sees text.";
    stage_duration: Histogram = "queuescope_stage_duration_seconds", &["stage", "worker"], buckets &LATENCY_BOUNDS;
        "Where the time of requests that went well was spent. `router_queue`: held by the router; `proxy`: by us, where we send to the \
        server itself; `prompt_wait`: by a client that had not sent its prompt yet, where `cache_aware` chooses by it; `network`: on the way into the server; `tokenize`; `server_queue`: waiting for a place in a batch; `prefill`; \
        `return`: the first token's way to the hop (to us, router and all, where no hop saw it pass); `router_return`: from the \
        hop to us; `decode`: until the last byte was read, without stalls (of replies that are no stream with `return` in it). `server`: \
        unseen in the server: `network` to `return` of streamed OpenAI answers, `decode` too of their replies. Of a \
        sequence they add up to its time; only behind a router without hops the part before the first token is missing. \
        `client_stall`: writes to the client held up, after the last byte was read too. `_sum` / `_count` is the mean where a stage was seen; where it was not, its time is in `server`, never counted as 0.";
    overhead: Histogram = "queuescope_overhead_seconds", &[], buckets &OVERHEAD_BOUNDS;
        "What this listener added to a request (column `overhead`): before it was sent and after the last byte. Passing pieces on while an upstream has the request is not in it, nor are hops. Above a few ms at the median, the proxy is short of CPU.";
    inter_token: BatchHistogram = "queuescope_inter_token_seconds", &["worker"], buckets &GAP_BOUNDS;
        "Every gap between two tokens as read from streams, where events or `usage` tell how many tokens there were; of the \
        first sequences of a request, within 3 % of a bound. A long tail beside a good mean: prefills of others stop the decoding.";
    requests: IntCounter = "queuescope_requests_total", &["endpoint", "outcome", "worker"];
        "Generation requests that have ended, by how: the [outcomes](#outcomes). `worker` is the hop's name, else the server, else absent.";
    tokens: IntCounter = "queuescope_tokens_total", &["type", "worker"];
        "Tokens of requests that have ended, as engines reported them: `prompt`, `output`, and `cached`: those of the prompts that \
        the prefix cache served.";
    wait_causes: Counter = "queuescope_wait_cause_seconds_total", &["worker", "cause"];
        "What sequences waited for in the server queues, and requests on the way to them: [the causes](CAUSES.md#causes). Waits at the two \
        servers of a pair are counted at once, prefill's queue for the worker that prefilled. Other waits are judged, every 10 s, \
        when those that ran meanwhile have ended: as long after its request's end as the longest recent one ran, at most a minute. The servers' \
        limits are known from rows alone here: a wait for requests that did not come through this proxy is `not_seen_here` or `unknown`.";
    label_requests: IntCounter = "queuescope_label_requests_total", &["header", "value", "outcome"];
        "Generation requests that have ended, by what the headers of `label_headers` said: column `labels`. `value` is `other` where there are too many.";
    label_wait: Counter = "queuescope_label_wait_seconds_total", &["header", "value"];
        "How long their sequences waited in the server queues: column `pure_queue_time`.";
    ended_in: IntCounter = "queuescope_ended_in_total", &["outcome", "stage"];
        "Requests that did not go well, by the stage that they were last seen in: column `ended_in`, in the words of \
        `queuescope_stage_duration_seconds`. Where clients gave up.";
    timing_missing: IntCounter = "queuescope_timing_missing_total", &["reason", "endpoint"];
        "Requests that went well and whose (first) sequence has no time in the server queue. `metrics_off`: the server needs `--enable-metrics`; \
        `too_old`: its SGLang, before 0.5.5, has none; `openai_stream`: streams of OpenAI's APIs and of `/v1/messages` carry no \
        timings: switch on the trace join ([ENGINE.md](ENGINE.md)); `openai_reply`: their replies neither, but chat's with `return_meta_info`; \
        `retracted`: taken out of the batch again before the first event (of a reply: at all); `unread`: the body could not be read; `other`. \
        Where the engine's trace or log is joined: `no_spans`, `no_log_line`: waited for, and nothing came; \
        `incomplete`: some of its spans came, the queue perhaps among them (an SGLang of several tokenizer workers sends none of its \
        scheduler: join its log); `unsampled`: it went upstream without the sampled flag; `no_room`: too many waited. \
        `impossible`: reported, and left out (`queuescope_impossible_total`).";
    impossible: IntCounter = "queuescope_impossible_total", &["what"], of Impossible::KINDS;
        "Rows with impossible values, which no other metric of this list and no figure of the live page includes; the row has them as \
        reported, and its column `inconsistency` names them. `times`: the server's (longer than the request, or out of order); \
        `clocks`: what lies between two clocks; `tokens`.";
    clock_offset: Gauge = "queuescope_clock_offset_seconds", &["clock"];
        "Another clock minus this process's, as last used for a request: engines by host, hops of other processes by name.";
    clock_offset_error: Gauge = "queuescope_clock_offset_error_seconds", &["clock"];
        "The true offset lies within ± this. Stages across the two clocks are no better than it.";
    in_flight: IntGauge = "queuescope_in_flight", &["phase"];
        "Generation requests under way. `receiving`: not yet sent on; `waiting`: sent or held back by `max_concurrent_requests`, and no \
        token back (in the router queue, the server queue or prefill); `streaming`: a token was seen. Replies that are no stream wait to their end.";
    worker_in_flight: IntGauge = "queuescope_worker_in_flight", &["worker", "phase"];
        "Attempts at each worker, as its hop sees them (without hops, where the upstream is the server itself, by upstream): \
        `waiting`, or `streaming` once the first bytes came back; `prefilling` is a pair's leg to its prefill server, while the \
        request waits at decode. Requests in the router queue now: \
        `queuescope_in_flight{phase=\"waiting\"}` less the sum of these that wait.";
    attempts: IntCounter = "queuescope_attempts_total", &["worker", "outcome"];
        "Attempts at servers that have ended, as the hops saw them; without hops, where the upstream is the server itself, our \
        own sendings. More of them than requests: the router retries. The hop of a front's own process judges by status and framing \
        alone: a 200 whose stream has an error counts as `ok` here, and as what it is in `queuescope_requests_total`.";
    connections: IntCounter = "queuescope_upstream_connections_total", &["upstream", "reused"];
        "Sendings, by whether their connection had been used before. Each that is `false` paid for a connect. Those to paths that \
        are not recorded count too.";
    bytes: IntCounter = "queuescope_bytes_total", &["direction"];
        "Body bytes of generation requests that have ended, as read: `request` from clients, `response` from upstreams.";
    runtime_lag: Histogram = "queuescope_runtime_lag_seconds", &[], buckets &LAG_BOUNDS;
        "How late a task that wakes every 200 ms was run: up to 1 ms is the timer's own. Above that the proxy \
        has no CPU left, and what it times is late by as much.";
    responses_unread: IntCounter = "queuescope_responses_unread_total", &["reason"], of Unread::ALL.map(Unread::name);
        "2xx responses whose body was not read: the column `unread` says what the reasons mean.";
    rows_written: IntCounter = "queuescope_rows_written_total", &[];
        "Rows on disk.";
    rows_lost: IntCounter = "queuescope_rows_lost_total", &["reason"], of ROWS_LOST.map(Dropped::name);
        "Rows that never reached the disk: `queue_full` (the disk was too slow), `write` (it could not be written), `shutdown` (they came \
        after the file's end).";
    reloads: IntCounter = "queuescope_reloads_total", &["result"], of ["applied", "refused"];
        "Reloads of the config on SIGHUP: `applied`, or `refused` with nothing changed.";
    passed_through: IntCounter = "queuescope_passed_through_total", &[];
        "Requests to paths that are not recorded.";
    broken_heads: IntCounter = "queuescope_broken_heads_total", &[];
        "Connections on which bytes came that made no request, or whose TLS handshake failed.";
    connections_refused: IntCounter = "queuescope_connections_refused_total", &[];
        "Connections beyond `max_connections`: answered 503, or reset under TLS. Nothing of them was read, so they have no row; \
        streams of HTTP/2 beyond it have one.";
    faults_injected: IntCounter = "queuescope_faults_injected_total", &["kind", "worker"];
        "Faults that were injected on demand.";
    joins: IntCounter = "queuescope_joins_total", &["by"];
        "Attempts at worker hops, by what joined them to a request of the front: `span`, `request_id`, `reply` (the \
        server's id in it, behind a router that passes on no header), `late` (the request had ended); `ambiguous` (several requests had its id), counted at its arrival, and at its end as all that \
        have a row of their own: `nothing`, or `elsewhere` (nothing here, while another process serves the same listeners: its front's row tells it).";
    joins_dropped: IntCounter = "queuescope_joins_dropped_total", &[];
        "Attempts beyond the first 16 of a request, which its row lacks.";
    join_entries: IntGauge = "queuescope_join_table_entries", &["table"];
        "Entries of the tables by which attempts at hops find their request, looked at once a second: the ids of open requests; \
        the spans that they were sent with, until a minute after their end.";
    hop_stamps_refused: IntCounter = "queuescope_hop_stamps_refused_total", &[];
        "Responses with an `x-queuescope-hop` that no hop of ours had signed for the request: taken off, not used.";
    upstream_in_flight: IntGauge = "queuescope_upstream_in_flight", &["upstream"];
        "Requests that an upstream has: from its choice to the request's end.";
    upstream_healthy: IntGauge = "queuescope_upstream_healthy", &["upstream"];
        "1, or 0 while an upstream is left out because it could not be connected to.";
    upstream_connect_failures: IntCounter = "queuescope_upstream_connect_failures_total", &["upstream"];
        "Requests' connections to an upstream that failed. A series stays when its upstream goes; it counts towards `metrics_label_sets`.";
    chosen: IntCounter = "queuescope_cache_aware_choices_total", &["by"], of ChosenBy::ALL.map(ChosenBy::name);
        "Choices of an upstream with the policy `cache_aware`, by what decided: `prefix` (it was given the beginning of the prompt \
        before), else the least loaded, as `load` (too little of the prompt was known), `imbalance` (the queues were too uneven) or \
        `unread` (no prompt to go by: under 128 bytes, no JSON, or a request that is not recorded). Where connecting fails it is chosen again.";
    traces_exported: IntCounter = "queuescope_traces_exported_total", &[];
        "Traces of requests that the collector took.";
    traces_dropped: IntCounter = "queuescope_traces_dropped_total", &["reason"], of TRACES_DROPPED.map(Dropped::name);
        "Traces that were to be exported and were lost: `queue_full`, `rejected` (the collector refused them), \
        `unreachable` (no connection), `timeout`, `shutdown` (they still waited when the process ended).";
    traces_sampled_out: IntCounter = "queuescope_traces_sampled_out_total", &[];
        "Traces that sampling left out when their requests had ended.";
    trace_queue: IntGauge = "queuescope_trace_queue_length", &[];
        "Rows of requests whose traces wait to be exported.";
    engine_joins: IntCounter = "queuescope_engine_joins_total", &["source", "outcome"];
        "Sequences in engines' traces (`trace`) or request logs (`log`): `joined` with a row, `late` (the row was \
        written before, with nothing: raise `wait_s`), `no_row` (none came in 5 minutes: other clients of the server, samples that never \
        ran), `no_room` (batches of spans).";
    engine_waiting: IntGauge = "queuescope_engine_waiting", &[];
        "Requests that have ended and wait for the engine's trace or log.";
    trace_batches: IntCounter = "queuescope_engine_trace_batches_total", &["outcome"], of BatchOutcome::ALL.map(BatchOutcome::name);
        "Batches of spans that servers sent to `[engine.traces] listen`: `taken`, `malformed` (no message of OTLP traces), `too_large` (above \
        4 MiB, inflated too), `no_room` (more came than could be held, whose sender \
        was told to send it again, or than could be looked through; their requests may lack the engine's moments).";
    trace_spans_left_out: IntCounter = "queuescope_engine_trace_spans_left_out_total", &["reason"], of LeftOut::ALL.map(LeftOut::name);
        "Spans of an engine or router in batches that were read, left out by themselves: `malformed` (no trace id, span id, start or end that \
        can be), `too_large` (above 256 KiB); rows of their requests may lack the engine's moments.";
    trace_forwards: IntCounter = "queuescope_engine_trace_forwards_total", &["outcome"], of ["sent"].into_iter().chain(TRACES_DROPPED.map(Dropped::name));
        "The same batches on their way to the collector: `sent`, or lost, for the reasons of `queuescope_traces_dropped_total`.";
    trace_connections_refused: IntCounter = "queuescope_engine_trace_connections_refused_total", &[];
        "Connections to `[engine.traces] listen` that were closed at once, as too many were open.";
    build: IntGauge = "queuescope_build_info", &["version"];
        "Always 1; the label is the version.";
    process_start: Gauge = "process_start_time_seconds", &[];
        "When this process started, seconds since 1970.";
    process_cpu: Counter = "process_cpu_seconds_total", &[];
        "Processor time of this process, user and system, seconds.";
    process_resident: Gauge = "process_resident_memory_bytes", &[];
        "Memory that it holds.";
    process_open_fds: Gauge = "process_open_fds", &[];
        "Open files, sockets included: two a request under way.";
    process_max_fds: Gauge = "process_max_fds", &[];
        "How many it may have open.";
}
