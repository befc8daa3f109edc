//! What is told of requests that have ended: their rows, put into histograms and counters.

use std::borrow::Cow;

use prometheus::{Error, Registry, Result};

use crate::request::column::{Column, Scope, Value};
use crate::request::columns::COLUMNS;
use crate::request::endpoint::Endpoint;
use crate::request::gaps::GAP_BOUNDS;
use crate::request::impossible::{Impossible, believed};
use crate::request::row::Row;
use crate::request::sequence::Untold;
use crate::request::silence::Silence;
use crate::request::stages::{Breakdown, Spent};
use crate::request::timeline::{Moment, Period};
use crate::telemetry::family::{Buckets, Count, Family, Reading};
use crate::telemetry::metric::Metric;

/// What is counted of requests that have ended.
#[derive(Clone, Debug)]
pub(super) struct RequestMetrics {
    pub(super) requests: Family<Count>,
    timed: Vec<Timed>,
    stage_duration: Family<Buckets>,
    overhead: Family<Buckets>,
    overhead_column: &'static Column,
    inter_token: Family<Buckets>,
    tokens: Family<Count>,
    ended_in: Family<Count>,
    timing_missing: Family<Count>,
    impossible: Family<Count>,
    clocks: Vec<Clock>,
    clock_offset: Family<Reading>,
    clock_offset_error: Family<Reading>,
}

/// A histogram of a column, under the labels of the GenAI conventions.
#[derive(Clone, Debug)]
struct Timed {
    family: Family<Buckets>,
    column: &'static Column,
    /// It also holds requests that did not go well, told apart by a last label.
    has_failed: bool,
}

/// Another clock: the columns with its offset, the error of that, and its name.
#[derive(Clone, Debug)]
struct Clock {
    offset: &'static Column,
    error: &'static Column,
    name: &'static Column,
}

/// What a request is counted under.
struct Labels<'a> {
    endpoint: &'static str,
    outcome: &'static str,
    worker: &'a str,
    /// Those of the GenAI conventions, and the error's type.
    gen_ai: [&'a str; 7],
}

/// Below 0.1 s our own; from there on SGLang's, so that the two can be laid over each other; then up to an hour.
const LATENCY_BOUNDS: [f64; 29] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
    10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0, 600.0, 1200.0, 1800.0, 3600.0,
];
/// [`GAP_BOUNDS`], then up to an hour.
const PER_TOKEN_BOUNDS: [f64; 28] = [
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080,
    0.100, 0.200, 0.400, 0.600, 0.800, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 30.0, 60.0, 600.0, 3600.0,
];
const OVERHEAD_BOUNDS: [f64; 16] = [
    0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
    0.1, 0.2, 0.5, 1.0,
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

const DURATION: Metric = Metric::histogram(
    "gen_ai_server_request_duration_seconds",
    &GEN_AI_AND_ERROR,
    &LATENCY_BOUNDS,
    "Generation requests from the head's arrival to the end, whoever ended it: column `elapsed`. `error_type` is the outcome \
        of those that did not go well, else absent; `server_address` and `server_port` are those of the server that served it, where \
        that is known. Without those that the server only took to generate in the background (`unread` is `background`).",
);
const FIRST_TOKEN: Metric = Metric::histogram(
    "gen_ai_server_time_to_first_token_seconds",
    GEN_AI,
    &LATENCY_BOUNDS,
    "From a request's arrival to its first token: column `ttft`. Beside `sglang:time_to_first_token_seconds` it also holds \
        what came before the server: the difference is proxy, router and network. Each sequence of a request counts; replies \
        that are no stream only where the engine told its timings.",
);
const PER_TOKEN: Metric = Metric::histogram(
    "gen_ai_server_time_per_output_token_seconds",
    GEN_AI,
    &PER_TOKEN_BOUNDS,
    "Mean time per output token after the first, one value a sequence, without the time that a client held up writes: column \
        `tpot`. Its inverse is how fast a reader sees text.",
);
const STAGE_DURATION: Metric = Metric::histogram(
    "queuescope_stage_duration_seconds",
    &["stage", "worker"],
    &LATENCY_BOUNDS,
    "Where the time of requests that went well was spent. `router_queue`: held by the router; `proxy`: by us, where we send to the \
        server itself; `prompt_wait`: by a client that had not sent its prompt yet, where `cache_aware` chooses by it; `network`: on the way into the server; `tokenize`; `server_queue`: in the scheduler's queue; `prefill`; \
        `return`: the first token's way to the hop (to us, router and all, where no hop saw it pass); `router_return`: from the \
        hop to us; `decode`: until the last byte was read, without stalls (of replies that are no stream with `return` in it). `server`: \
        what could not be told apart: `network` to `return` of streamed OpenAI answers, `decode` too of their replies. Of a \
        sequence they add up to its time; only behind a router without hops the part before the first token is missing. \
        `client_stall`: writes to the client held up, after the last byte was read too. `_sum` / `_count` is the mean where a stage was seen; where it was not, its time is in `server`, never counted as 0.",
);
const OVERHEAD: Metric = Metric::histogram(
    "queuescope_overhead_seconds",
    &[],
    &OVERHEAD_BOUNDS,
    "What this listener added to a request (column `overhead`): before the first sending, between resendings and after the \
        last byte. Passing pieces on while an upstream has the request is not in it, nor are hops. Above a few ms at the median, the proxy is short of CPU.",
);
const INTER_TOKEN: Metric = Metric::histogram(
    "queuescope_inter_token_seconds",
    &["worker"],
    &GAP_BOUNDS,
    "Every gap between two tokens as read from streams, where events or `usage` tell how many tokens there were; of the \
        first sequences of a request, within 3 % of a bound. A long tail beside a good mean: prefills of others stop the decoding.",
);
const REQUESTS: Metric = Metric::counter(
    "queuescope_requests_total",
    &["endpoint", "outcome", "worker"],
    "Generation requests that have ended, by how: the [outcomes](#outcomes). `worker` is the hop's name, else the server, else absent.",
);
const TOKENS: Metric = Metric::counter(
    "queuescope_tokens_total",
    &["type", "worker"],
    "Tokens of requests that have ended, as engines told them: `prompt`, `output`, and `cached`: those of the prompts that \
        the prefix cache served.",
);
const ENDED_IN: Metric = Metric::counter(
    "queuescope_ended_in_total",
    &["outcome", "stage"],
    "Requests that did not go well, by the stage that they were last seen in: column `ended_in`, in the words of \
        `queuescope_stage_duration_seconds`. Where clients gave up.",
);
const TIMING_MISSING: Metric = Metric::counter(
    "queuescope_timing_missing_total",
    &["reason", "endpoint"],
    "Requests that went well and whose (first) sequence has no time in the server's queue. `metrics_off`: the server needs `--enable-metrics`; \
        `too_old`: its SGLang, before 0.5.5, tells none; `openai_stream`: streams of OpenAI's APIs and of `/v1/messages` carry no \
        timings: switch on the trace join ([ENGINE.md](ENGINE.md)); `openai_reply`: their replies neither, but chat's with `return_meta_info`; \
        `retracted`: taken out of the batch again before the first event (of a reply: at all); `unread`: the body could not be read; `other`. \
        Where the engine's trace or log is joined: `no_spans`, `no_log_line`: waited for, and nothing came; \
        `incomplete`: some of its spans came, the queue perhaps among them (an SGLang of several tokenizer workers sends none of its \
        scheduler: join its log); `unsampled`: it went upstream without the sampled flag; `no_room`: too many waited. \
        `impossible`: told, and left out (`queuescope_impossible_total`).",
);
const IMPOSSIBLE: Metric = Metric::counter(
    "queuescope_impossible_total",
    &["what"],
    "Rows in which something cannot be and is in no other metric of this list, nor in the live page's figures; the row has it as \
        it came, and its column `inconsistency` names it. `times`: the server's (longer than the request, or out of order); \
        `clocks`: what lies between two clocks; `tokens`.",
);
const CLOCK_OFFSET: Metric = Metric::gauge(
    "queuescope_clock_offset_seconds",
    &["clock"],
    "Another clock minus this process's, as last used for a request: engines by host, hops of other processes by name.",
);
const CLOCK_OFFSET_ERROR: Metric = Metric::gauge(
    "queuescope_clock_offset_error_seconds",
    &["clock"],
    "The true offset lies within ± this. Stages across the two clocks are no better than it.",
);

pub(super) const METRICS: &[Metric] = &[
    DURATION,
    FIRST_TOKEN,
    PER_TOKEN,
    STAGE_DURATION,
    OVERHEAD,
    INTER_TOKEN,
    REQUESTS,
    TOKENS,
    ENDED_IN,
    TIMING_MISSING,
    IMPOSSIBLE,
    CLOCK_OFFSET,
    CLOCK_OFFSET_ERROR,
];

const CLOCKS: [[&str; 3]; 2] = [
    ["clock_offset", "clock_offset_error", "host"],
    ["hop_clock_offset", "hop_clock_offset_error", "worker"],
];

impl RequestMetrics {
    pub(super) fn new(registry: &Registry, most: usize) -> Result<RequestMetrics> {
        let buckets = |metric| Family::<Buckets>::new(registry, metric, most);
        let counts = |metric| Family::<Count>::new(registry, metric, most);
        let readings = |metric| Family::<Reading>::new(registry, metric, most);
        let timed = |metric, name, has_failed| {
            Ok::<_, Error>(Timed {
                family: buckets(metric)?,
                column: column(name)?,
                has_failed,
            })
        };
        let clocks = CLOCKS.map(|[offset, error, name]| {
            Ok::<_, Error>(Clock {
                offset: column(offset)?,
                error: column(error)?,
                name: column(name)?,
            })
        });
        let timing_missing = counts(&TIMING_MISSING)?;
        // What has not happened is shown as 0: the first time is then seen as an increase.
        for endpoint in Endpoint::ALL {
            let untold = Untold::ALL.map(Untold::name);
            for reason in reasons(endpoint).iter().chain(&untold) {
                timing_missing.with(&[reason, endpoint.path()]);
            }
        }
        let impossible = counts(&IMPOSSIBLE)?;
        for kind in Impossible::KINDS {
            impossible.with(&[kind]);
        }
        Ok(RequestMetrics {
            requests: counts(&REQUESTS)?,
            timed: vec![
                timed(&DURATION, "elapsed", true)?,
                timed(&FIRST_TOKEN, "ttft", false)?,
                timed(&PER_TOKEN, "tpot", false)?,
            ],
            stage_duration: buckets(&STAGE_DURATION)?,
            overhead: buckets(&OVERHEAD)?,
            overhead_column: column("overhead")?,
            inter_token: buckets(&INTER_TOKEN)?,
            tokens: counts(&TOKENS)?,
            ended_in: counts(&ENDED_IN)?,
            timing_missing,
            impossible,
            clocks: clocks.into_iter().collect::<Result<_>>()?,
            clock_offset: readings(&CLOCK_OFFSET)?,
            clock_offset_error: readings(&CLOCK_OFFSET_ERROR)?,
        })
    }

    /// Counts a request that has ended: all its rows.
    pub(super) fn record(&self, rows: &[Row]) {
        let believed = believed(rows);
        if let Cow::Owned(_) = believed {
            for kind in rows
                .iter()
                .map(Impossible::of)
                .flat_map(|row| row.kinds().collect::<Vec<_>>())
            {
                self.impossible.with(&[kind]).add(1);
            }
        }
        let rows = &*believed;
        let Some(first) = rows.first() else { return };
        let labels = Labels::of(first);
        let (endpoint, worker) = (labels.endpoint, labels.worker);
        let by = [endpoint, labels.outcome, worker];
        self.requests.with(&by).add(1);
        let is_timed = !first.is_in_background();
        for timed in self
            .timed
            .iter()
            .filter(|timed| is_timed && (timed.has_failed || first.is_ok()))
        {
            let shown = if timed.has_failed { 7 } else { 6 };
            observe(
                &timed.family,
                &labels.gen_ai[..shown],
                values(rows, timed.column),
            );
        }
        for (kind, tokens) in [
            ("prompt", first.request_prompt_tokens),
            ("cached", first.request_cached_tokens),
            ("output", first.request_output_tokens),
        ] {
            if let Some(tokens) = tokens {
                self.tokens.with(&[kind, worker]).add(tokens);
            }
        }
        if first.is_ok() {
            if is_timed {
                self.went_well(rows, &labels);
            }
        } else if let Some(last_seen) = first.last_seen() {
            let stage = last_seen.metric_name();
            self.ended_in.with(&[labels.outcome, &stage]).add(1);
        }
        self.look_at_clocks(first);
    }

    fn went_well(&self, rows: &[Row], labels: &Labels<'_>) {
        for (stage, nanos) in rows.iter().flat_map(stages) {
            let durations = self.stage_duration.with(&[stage, labels.worker]);
            durations.observe(nanos);
        }
        observe(&self.overhead, &[], values(rows, self.overhead_column));
        for gaps in rows.iter().filter_map(|row| row.more.gaps.as_ref()) {
            let inter_token = self.inter_token.with(&[labels.worker]);
            inter_token.add(&gaps.counts, gaps.sum_nanos);
        }
        if let Some(reason) = rows.first().and_then(missing) {
            self.timing_missing.with(&[reason, labels.endpoint]).add(1);
        }
    }

    fn look_at_clocks(&self, row: &Row) {
        for clock in &self.clocks {
            if let (Some(offset), Some(error), Value::Text(name)) = (
                nanos(row, clock.offset),
                nanos(row, clock.error),
                (clock.name.get)(row),
            ) {
                self.clock_offset.with(&[&name]).set_nanos(offset);
                self.clock_offset_error.with(&[&name]).set_nanos(error);
            }
        }
    }
}

impl<'a> Labels<'a> {
    fn of(row: &'a Row) -> Labels<'a> {
        let host = row.host.as_deref().unwrap_or_default();
        let (address, port) = host.rsplit_once(':').unwrap_or((host, ""));
        let outcome = row.outcome().name();
        let endpoint = row.endpoint().path();
        Labels {
            endpoint,
            outcome,
            worker: row.worker.as_deref().unwrap_or(host),
            gen_ai: [
                row.endpoint().operation(),
                "sglang",
                row.model.as_deref().unwrap_or_default(),
                address,
                port,
                endpoint,
                if row.is_ok() { "" } else { outcome },
            ],
        }
    }
}

/// The column of that name.
fn column(name: &str) -> Result<&'static Column> {
    let found = COLUMNS.iter().find(|column| column.name == name);
    found.ok_or_else(|| Error::Msg(format!("no column is named {name}")))
}

fn nanos(row: &Row, column: &Column) -> Option<i64> {
    match (column.get)(row) {
        Value::Nanos(nanos) => Some(nanos),
        _ => None,
    }
}

/// The durations of a column: one a request, or one a sequence.
fn values<'a>(rows: &'a [Row], column: &'a Column) -> impl Iterator<Item = i64> + 'a {
    let count = match column.scope {
        Scope::Request => 1,
        Scope::Sequence => rows.len(),
    };
    let rows = rows.iter().take(count);
    rows.filter_map(move |row| nanos(row, column))
}

/// What a row's time was spent on, nanoseconds by stage: all of its time, but for a stretch that holds a router and the
/// server. What is the request's is told by its first row.
fn stages(row: &Row) -> Vec<(&'static str, i64)> {
    let is_first = row.is_first_of_request();
    // Known by itself where the engine told how long, not when.
    let queue = row.pure_queue_time;
    let stall = row.client_stall.filter(|_| is_first);
    let parts = Breakdown::of(row).map(|all| all.parts);
    let parts = parts.unwrap_or_default().into_iter().filter_map(|part| {
        let (stage, is_of_request) = stage_of(part.spent)?;
        let is_queue_too = part.spent.holds(Period::PURE_QUEUE);
        let queue = queue.filter(|_| is_queue_too).unwrap_or(0);
        (is_first || !is_of_request).then_some((stage, part.nanos - queue))
    });
    let own = [("server_queue", queue), ("client_stall", stall)];
    let own = own
        .into_iter()
        .filter_map(|(name, nanos)| Some((name, nanos?)));
    parts.chain(own).collect()
}

/// The stage of a part in [`stages`] that is not told by itself, and whether it is the request's.
fn stage_of(spent: Spent) -> Option<(&'static str, bool)> {
    let set = match spent {
        Spent::Stages(set) => set,
        Spent::Proxy => return Some(("proxy", true)),
        Spent::Prompt => return Some(("prompt_wait", true)),
        Spent::ClientStall | Spent::Connecting => return None,
    };
    let mut stages = set.stages();
    let (first, is_one) = (stages.next()?, stages.next().is_none());
    match first.period {
        Period::PURE_QUEUE if is_one => None,
        Period::QUEUE_IN_ROUTER => is_one.then_some((first.metric_name(), true)),
        // Of a reply that is no stream: nobody sees its first token pass.
        Period::RETURN if !is_one => Some(("decode", false)),
        period if period.from < Moment::RouterSend => None,
        _ if is_one => Some((first.metric_name(), false)),
        _ => Some(("server", false)),
    }
}

fn observe(family: &Family<Buckets>, labels: &[&str], values: impl Iterator<Item = i64>) {
    let mut values = values.peekable();
    if values.peek().is_some() {
        let buckets = family.with(labels);
        values.for_each(|nanos| buckets.observe(nanos));
    }
}

/// What [`missing`] may say of an endpoint's rows, but for what [`Untold`] says.
fn reasons(endpoint: Endpoint) -> &'static [&'static str] {
    match endpoint {
        Endpoint::Generate => &["metrics_off", "too_old", "retracted", "unread", "other"],
        // Its replies may have `meta_info`.
        Endpoint::Chat => &[
            "metrics_off",
            "too_old",
            "retracted",
            "openai_stream",
            "openai_reply",
            "unread",
            "other",
        ],
        _ => &["openai_stream", "openai_reply", "unread", "other"],
    }
}

/// Why a row that went well has no time in the server's queue.
fn missing(row: &Row) -> Option<&'static str> {
    // Where parts of what it tells were lost, others may be there.
    let is_part = row.more.untold == Some(Untold::Incomplete);
    if row.pure_queue_time.is_some() && !is_part {
        return None;
    }
    if let Some(why) = row.more.untold {
        return Some(why.name());
    }
    Some(match Silence::of(row) {
        Silence::Hidden => "unread",
        Silence::MetricsOff => "metrics_off",
        Silence::TooOld => "too_old",
        Silence::Retracted => "retracted",
        Silence::Stream => "openai_stream",
        Silence::ChatReply | Silence::Reply => "openai_reply",
        Silence::Part
        | Silence::FirstToken
        | Silence::FirstTokenOfReply
        | Silence::Incomplete
        | Silence::Joined
        | Silence::NoMeta
        | Silence::Impossible => "other",
    })
}
