//! One record per generated sequence, and the one table of its columns.
//!
//! CSV, JSON, reports and `docs/METRICS.md` walk [`COLUMNS`]; a column exists nowhere else.

use std::borrow::Cow;

use crate::clock::Stamp;

pub use super::outcome::Outcome;

use super::endpoint::Endpoint;
use super::timeline::{ClockOf, Moment, Relation, Span, Timeline};

/// What is known of a whole request, shared by its sequences.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The request id, the client's or ours.
    pub req_id: String,
    /// The server that served it, `host:port`.
    pub host: Option<String>,
    /// Where it was sent.
    pub endpoint: Endpoint,
    /// The model the request named.
    pub model: Option<String>,
    /// Whether the request asked for a stream.
    pub stream: Option<bool>,
    /// Words of the prompt, split at white space.
    pub input_length: Option<u64>,
    /// The most tokens the request asked for.
    pub expected_output_length: Option<u64>,
    /// Samples per prompt the request asked for.
    pub n: u64,
    /// HTTP status of the response.
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: Outcome,
    /// What happened, in a few words; empty when it went well.
    pub error: String,
    /// How many times the request was sent upstream.
    pub attempts: u32,
    /// Whether the upstream connection had been used before.
    pub upstream_reused: Option<bool>,
    /// W3C trace id, 32 hex digits.
    pub trace_id: Option<String>,
    /// Nanoseconds in which a write to the client was held up.
    pub client_stall_nanos: Option<i64>,
    /// `usage.prompt_tokens` of the whole request.
    pub usage_prompt_tokens: Option<u64>,
    /// `usage.completion_tokens` of the whole request.
    pub usage_completion_tokens: Option<u64>,
}

/// What is known of one generated sequence.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// Place among the request's sequences.
    pub index: u32,
    /// The engine's id of it.
    pub engine_id: Option<String>,
    /// Any text came.
    pub has_text: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Tokens generated, as the engine says.
    pub output_tokens: Option<u64>,
    /// Events that carried a token.
    pub token_events: u64,
    /// Prompt tokens served from the cache.
    pub cached_tokens: Option<u64>,
    /// Times the scheduler took it out of the batch again.
    pub num_retractions: Option<u64>,
    /// Data-parallel rank.
    pub dp_rank: Option<u64>,
    /// Total queue time when the pair of moments is unknown, nanoseconds.
    pub queue_nanos: Option<i64>,
    /// Where the engine's moments came from.
    pub timing_source: Option<TimingSource>,
    /// Mean gap between tokens, nanoseconds.
    pub itl_mean_nanos: Option<i64>,
    /// 99th percentile of the gaps, nanoseconds.
    pub itl_p99_nanos: Option<i64>,
    /// Longest gap, nanoseconds.
    pub itl_max_nanos: Option<i64>,
}

/// Where the engine's moments came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimingSource {
    /// The response's `meta_info`.
    MetaInfo,
}

/// One row: a generated sequence with all its moments.
#[derive(Clone, Debug)]
pub struct Record {
    /// The request's part.
    pub facts: Facts,
    /// The sequence's part.
    pub sequence: Sequence,
    /// How many sequences the request has.
    pub sequences: u32,
    /// The moments.
    pub timeline: Timeline,
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Nobody knows.
    Empty,
    /// Words.
    Text(Cow<'a, str>),
    /// Yes or no.
    Bool(bool),
    /// A number of things.
    Count(u64),
    /// A duration, nanoseconds; written as seconds.
    Nanos(i64),
    /// A moment; written as seconds from the file's base.
    Time(Stamp),
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Words.
    Text,
    /// `True` or `False`.
    Bool,
    /// A number of things.
    Count,
    /// A duration in seconds that summaries take quantiles of.
    Latency,
    /// A duration in seconds.
    Seconds,
    /// A moment, in seconds from the file's base.
    Time,
}

/// A column of the per-request table.
pub struct Column {
    /// Name, as in the CSV header.
    pub name: &'static str,
    /// What it holds.
    pub unit: Unit,
    /// One sentence: what it is and how to read it.
    pub help: &'static str,
    /// Its cell in a record.
    pub get: for<'a> fn(&'a Record) -> Value<'a>,
}

impl Facts {
    /// What is known of a request before any of it has been read.
    pub fn new(endpoint: Endpoint, req_id: String) -> Facts {
        Facts {
            req_id,
            host: None,
            endpoint,
            model: None,
            stream: None,
            input_length: None,
            expected_output_length: None,
            n: 1,
            status: None,
            outcome: Outcome::ProxyError,
            error: String::new(),
            attempts: 0,
            upstream_reused: None,
            trace_id: None,
            client_stall_nanos: None,
            usage_prompt_tokens: None,
            usage_completion_tokens: None,
        }
    }
}

impl TimingSource {
    /// The name in the column.
    pub const fn name(self) -> &'static str {
        match self {
            TimingSource::MetaInfo => "meta_info",
        }
    }
}

impl Record {
    /// Whether the request went well.
    pub fn is_ok(&self) -> bool {
        self.facts.outcome == Outcome::Ok
    }

    /// The id of the row: the request's, with `#index` when it has several sequences.
    pub fn row_id(&self) -> Cow<'_, str> {
        if self.sequences > 1 {
            Cow::Owned(format!("{}#{}", self.facts.req_id, self.sequence.index))
        } else {
            Cow::Borrowed(&self.facts.req_id)
        }
    }

    /// Whether this row stands for its request in sums of request-wide figures.
    pub fn is_first_of_request(&self) -> bool {
        self.sequence.index == 0
    }

    /// Whether this row stands for its prompt in sums: the samples of one prompt share its tokens.
    pub fn is_first_of_prompt(&self) -> bool {
        u64::from(self.sequence.index).is_multiple_of(self.facts.n.max(1))
    }

    /// Prompt tokens: `meta_info`, else `usage`.
    pub fn prompt_tokens(&self) -> Option<u64> {
        self.sequence
            .prompt_tokens
            .or(self.facts.usage_prompt_tokens)
    }

    /// Generated tokens: `meta_info`, else `usage`, which speaks of the whole request and so counts
    /// only where there is one sequence.
    pub fn output_tokens(&self) -> Option<u64> {
        let usage = self
            .facts
            .usage_completion_tokens
            .filter(|_| self.sequences == 1);
        self.sequence.output_tokens.or(usage)
    }

    /// Tokens generated, or else the events that carried one.
    pub fn decode_length(&self) -> Option<u64> {
        let events = Some(self.sequence.token_events).filter(|events| *events > 0);
        self.output_tokens().or(events)
    }

    /// Time to first token in nanoseconds, and where it came from: the engine's own first token where
    /// the clocks compare, else what the observer read.
    pub fn ttft(&self) -> Option<(i64, &'static str)> {
        let engine = self.timeline.nanos(Span::TTFT_ENGINE);
        let observed = || self.timeline.nanos(Span::TTFT_OBSERVED);
        match engine {
            Some(nanos) => Some((nanos, "server_first_token")),
            None => observed().map(|nanos| (nanos, "first_token")),
        }
    }

    /// Nanoseconds in the scheduler's queue.
    pub fn pure_queue(&self) -> Option<i64> {
        let pair = self.timeline.nanos(Span::PURE_QUEUE);
        pair.or(self.sequence.queue_nanos)
    }

    /// Time per output token after the first, nanoseconds.
    pub fn tpot(&self) -> Option<i64> {
        let gaps = i64::try_from(self.decode_length()?)
            .ok()?
            .checked_sub(1)
            .filter(|n| *n > 0)?;
        Some(self.timeline.nanos(Span::TOKENS)? / gaps)
    }

    /// What is out of order, named: pairs of moments of one clock, then negative durations. Empty when
    /// all is sane. Engine moments may differ by a float's rounding.
    pub fn inconsistency(&self) -> String {
        let mut found: Vec<String> = Vec::new();
        for (from, to) in ORDER {
            let span = Span { from, to };
            if self.timeline.on_one_clock(span)
                && self
                    .timeline
                    .nanos(span)
                    .is_some_and(|nanos| nanos < -TOLERANCE_NANOS)
            {
                found.push(format!("{}<{}", to.name(), from.name()));
            }
        }
        for column in COLUMNS.iter().filter(|column| column.unit == Unit::Latency) {
            if let Value::Nanos(nanos) = (column.get)(self)
                && nanos < -self.tolerance()
            {
                found.push(format!("{}<0", column.name));
            }
        }
        found.join(";")
    }

    /// How far below zero a duration may be measured without being wrong, nanoseconds: the clocks'
    /// offset is known only so well.
    fn tolerance(&self) -> i64 {
        let error = |clock| match self.timeline.relation(clock) {
            Relation::Apart(offset) => offset.error_nanos,
            Relation::Same | Relation::Unknown => 0,
        };
        let clocks = [
            ClockOf::Traffic,
            ClockOf::Front,
            ClockOf::Hop,
            ClockOf::Engine,
        ];
        TOLERANCE_NANOS + clocks.into_iter().map(error).sum::<i64>()
    }

    fn engine_offset(&self) -> Option<super::timeline::Offset> {
        match self.timeline.relation(ClockOf::Engine) {
            Relation::Apart(offset) => Some(offset),
            Relation::Same | Relation::Unknown => None,
        }
    }

    fn has_engine_times(&self) -> bool {
        self.timeline.raw(Moment::ServerCreated).is_some()
            || self.timeline.raw(Moment::QueueEnd).is_some()
    }
}

/// SGLang's own stamps of one moment differ by up to 0.24 µs between events (sglang-facts.md, 1).
const TOLERANCE_NANOS: i64 = 1_000;

/// Pairs that must not run backwards when both come from one clock.
const ORDER: [(Moment, Moment); 16] = [
    (Moment::Scheduled, Moment::Sent),
    (Moment::Sent, Moment::ResponseHead),
    (Moment::Arrival, Moment::Forwarded),
    (Moment::Arrival, Moment::RequestEnd),
    (Moment::Forwarded, Moment::ResponseHead),
    (Moment::WorkerArrival, Moment::WorkerForwarded),
    (Moment::Forwarded, Moment::WorkerArrival),
    (Moment::ServerCreated, Moment::QueueStart),
    (Moment::QueueStart, Moment::QueueEnd),
    (Moment::QueueEnd, Moment::PrefillEnd),
    (Moment::PrefillEnd, Moment::ServerFirstToken),
    (Moment::ServerFirstToken, Moment::ServerFinish),
    (Moment::ResponseHead, Moment::FirstEvent),
    (Moment::FirstEvent, Moment::FirstToken),
    (Moment::FirstToken, Moment::LastToken),
    (Moment::LastToken, Moment::Finish),
];

fn text(value: Option<&str>) -> Value<'_> {
    value.map_or(Value::Empty, |text| Value::Text(Cow::Borrowed(text)))
}

fn count(value: Option<u64>) -> Value<'static> {
    value.map_or(Value::Empty, Value::Count)
}

fn nanos(value: Option<i64>) -> Value<'static> {
    value.map_or(Value::Empty, Value::Nanos)
}

fn yes_no(value: Option<bool>) -> Value<'static> {
    value.map_or(Value::Empty, Value::Bool)
}

fn time(record: &Record, moment: Moment) -> Value<'static> {
    record
        .timeline
        .time(moment)
        .map_or(Value::Empty, Value::Time)
}

fn span(record: &Record, span: Span) -> Value<'static> {
    nanos(record.timeline.nanos(span))
}

macro_rules! column {
    ($name:literal, $unit:ident, $help:literal, $get:expr) => {
        Column {
            name: $name,
            unit: Unit::$unit,
            help: $help,
            get: $get,
        }
    };
}

/// Every column, in the order of the CSV. New ones go to the end.
pub static COLUMNS: [Column; 60] = [
    column!(
        "req_id",
        Text,
        "Request id; `#index` is added when a request has several sequences.",
        |r| Value::Text(r.row_id())
    ),
    column!(
        "success",
        Bool,
        "`True` only when `outcome` is `ok`.",
        |r| Value::Bool(r.is_ok())
    ),
    column!(
        "error",
        Text,
        "What went wrong, in a few words.",
        |r| if r.facts.error.is_empty() {
            Value::Empty
        } else {
            text(Some(&r.facts.error))
        }
    ),
    column!(
        "host",
        Text,
        "The server that served it: the hop's upstream, smg's \
        `x-smg-routed-worker-id`, or the only upstream.",
        |r| text(r.facts.host.as_deref())
    ),
    column!("has_generated_text", Bool, "Any text came back.", |r| {
        Value::Bool(r.sequence.has_text)
    }),
    column!(
        "input_length",
        Count,
        "Words of the prompt split at white space (chat: of all messages).",
        |r| count(r.facts.input_length)
    ),
    column!(
        "expected_output_length",
        Count,
        "`max_new_tokens`, `max_tokens` or \
        `max_completion_tokens` of the request.",
        |r| count(r.facts.expected_output_length)
    ),
    column!(
        "actual_prompt_tokens",
        Count,
        "Prompt tokens by `meta_info`, else `usage`.",
        |r| count(r.prompt_tokens())
    ),
    column!(
        "actual_output_tokens",
        Count,
        "Generated tokens by `meta_info`, else `usage` (which \
        speaks of a whole request: empty when it has several sequences).",
        |r| count(r.output_tokens())
    ),
    column!(
        "actual_total_tokens",
        Count,
        "Prompt and generated tokens.",
        |r| {
            count(
                r.prompt_tokens()
                    .zip(r.output_tokens())
                    .map(|(a, b)| a.saturating_add(b)),
            )
        }
    ),
    column!(
        "output_tokens_from_trace",
        Count,
        "Generated tokens by a joined trace; no trace is joined \
        yet, so always empty.",
        |_| Value::Empty
    ),
    column!(
        "decode_length",
        Count,
        "`actual_output_tokens`, else the number of token events seen.",
        |r| count(r.decode_length())
    ),
    column!(
        "arrival_time",
        Time,
        "The front listener had read the request head (no proxy: the \
        generator began to send).",
        |r| time(r, Moment::Arrival)
    ),
    column!(
        "router_send_time",
        Time,
        "The worker hop read the head: the router had forwarded it. \
        Without a hop only known when the upstream is the server itself.",
        |r| time(r, Moment::RouterSend)
    ),
    column!(
        "server_created_time",
        Time,
        "The server received the request.",
        |r| time(r, Moment::ServerCreated)
    ),
    column!(
        "queue_time_start",
        Time,
        "It entered the scheduler's waiting queue.",
        |r| time(r, Moment::QueueStart)
    ),
    column!(
        "queue_time_end",
        Time,
        "It left the queue into its first batch.",
        |r| time(r, Moment::QueueEnd)
    ),
    column!(
        "server_first_token_time",
        Time,
        "The server made its first token.",
        |r| time(r, Moment::ServerFirstToken)
    ),
    column!(
        "finish_time",
        Time,
        "The last byte of the response was read.",
        |r| time(r, Moment::Finish)
    ),
    column!(
        "server_latency",
        Latency,
        "`finish_time − router_send_time`.",
        |r| span(r, Span::SERVER_LATENCY)
    ),
    column!(
        "total_latency",
        Latency,
        "`finish_time − arrival_time`.",
        |r| span(r, Span::TOTAL_LATENCY)
    ),
    column!(
        "ttft",
        Latency,
        "Time to first token: `server_first_token_time − arrival_time`; where the \
        clocks do not compare, `ttft_observed`. `ttft_source` says which.",
        |r| nanos(r.ttft().map(|(nanos, _)| nanos))
    ),
    column!(
        "queue_time_in_router",
        Latency,
        "`router_send_time − arrival_time`: what the router held.",
        |r| span(r, Span::QUEUE_IN_ROUTER)
    ),
    column!(
        "queue_time_in_server",
        Latency,
        "`server_first_token_time − server_created_time`: holds \
        tokenizing, queue and prefill.",
        |r| span(r, Span::QUEUE_IN_SERVER)
    ),
    column!(
        "tokenize_time",
        Latency,
        "`queue_time_start − server_created_time`: tokenizing and the \
        hand-over to the scheduler.",
        |r| span(r, Span::TOKENIZE)
    ),
    column!(
        "pure_queue_time",
        Latency,
        "`queue_time_end − queue_time_start`: waiting in the \
        scheduler's queue and nothing else.",
        |r| nanos(r.pure_queue())
    ),
    column!(
        "scheduled_time",
        Time,
        "The generator's schedule said: now.",
        |r| time(r, Moment::Scheduled)
    ),
    column!("sent_time", Time, "The generator began to send.", |r| time(
        r,
        Moment::Sent
    )),
    column!(
        "schedule_lag",
        Latency,
        "`sent_time − scheduled_time`: the generator's own lateness, or \
        its wait for a `--max-concurrency` slot.",
        |r| span(r, Span::SCHEDULE_LAG)
    ),
    column!(
        "first_token_time",
        Time,
        "The first event with a generated token was read.",
        |r| time(r, Moment::FirstToken)
    ),
    column!("prefill_end_time", Time, "Prefill finished.", |r| time(
        r,
        Moment::PrefillEnd
    )),
    column!(
        "prefill_time",
        Latency,
        "`server_first_token_time − queue_time_end`.",
        |r| span(r, Span::PREFILL)
    ),
    column!(
        "decode_time",
        Latency,
        "`finish_time − first_token_time`.",
        |r| span(r, Span::DECODE)
    ),
    column!(
        "network_time",
        Latency,
        "`server_created_time − router_send_time`: the way to the server \
        and its wait to be accepted.",
        |r| span(r, Span::NETWORK)
    ),
    column!(
        "server_queue_wait",
        Latency,
        "`queue_time_end − router_send_time`.",
        |r| span(r, Span::SERVER_QUEUE_WAIT)
    ),
    column!(
        "ttft_observed",
        Latency,
        "`first_token_time − arrival_time`: as read from the stream.",
        |r| span(r, Span::TTFT_OBSERVED)
    ),
    column!(
        "ttft_from_schedule",
        Latency,
        "`first_token_time − scheduled_time`: free of coordinated \
        omission.",
        |r| span(r, Span::TTFT_FROM_SCHEDULE)
    ),
    column!(
        "tpot",
        Latency,
        "Time per output token after the first: (last − first token) / (output \
        tokens − 1).",
        |r| nanos(r.tpot())
    ),
    column!(
        "itl_mean",
        Latency,
        "Mean gap between tokens; an event that brings several shares its gap \
        among them.",
        |r| nanos(r.sequence.itl_mean_nanos)
    ),
    column!(
        "itl_p99",
        Latency,
        "99th percentile of the gaps between tokens, within 3 %.",
        |r| nanos(r.sequence.itl_p99_nanos)
    ),
    column!(
        "itl_max",
        Latency,
        "Longest gap between tokens.",
        |r| nanos(r.sequence.itl_max_nanos)
    ),
    column!(
        "client_stall",
        Latency,
        "Time in which a write to the client was held up: it delays what is \
        read after it and is not the engine's.",
        |r| nanos(r.facts.client_stall_nanos)
    ),
    column!(
        "cached_tokens",
        Count,
        "Prompt tokens served from the prefix cache.",
        |r| count(r.sequence.cached_tokens)
    ),
    column!(
        "num_retractions",
        Count,
        "Times the scheduler took the sequence out of the batch again.",
        |r| count(r.sequence.num_retractions)
    ),
    column!(
        "dp_rank",
        Count,
        "Data-parallel rank that served it.",
        |r| count(r.sequence.dp_rank)
    ),
    column!("model", Text, "The model the request named.", |r| text(
        r.facts.model.as_deref()
    )),
    column!("endpoint", Text, "The request's path.", |r| text(Some(
        r.facts.endpoint.path()
    ))),
    column!(
        "stream",
        Bool,
        "Whether the request asked for a stream.",
        |r| yes_no(r.facts.stream)
    ),
    column!("status", Count, "HTTP status of the response.", |r| count(
        r.facts.status.map(u64::from)
    )),
    column!(
        "outcome",
        Text,
        "`ok`, `client_error`, `server_error`, `rejected`, `client_abort`, \
        `upstream_died`, `timeout` or `proxy_error`.",
        |r| text(Some(r.facts.outcome.name()))
    ),
    column!(
        "attempts",
        Count,
        "How many times the request was sent upstream.",
        |r| Value::Count(u64::from(r.facts.attempts))
    ),
    column!(
        "upstream_reused",
        Bool,
        "Whether the upstream connection had been used before.",
        |r| yes_no(r.facts.upstream_reused)
    ),
    column!(
        "clock_offset",
        Seconds,
        "The engine's clock minus ours.",
        |r| nanos(r.engine_offset().map(|offset| offset.nanos))
    ),
    column!(
        "clock_offset_error",
        Seconds,
        "The true offset lies within ± this.",
        |r| nanos(r.engine_offset().map(|offset| offset.error_nanos))
    ),
    column!(
        "clock_state",
        Text,
        "`offset`: the engine's times were put on our clock; `raw`: they stand \
        as the engine gave them.",
        |r| match r.timeline.relation(ClockOf::Engine) {
            _ if !r.has_engine_times() => Value::Empty,
            Relation::Unknown => text(Some("raw")),
            Relation::Same | Relation::Apart(_) => text(Some("offset")),
        }
    ),
    column!(
        "timing_source",
        Text,
        "Where the engine's moments came from: `meta_info`, or empty.",
        |r| text(r.sequence.timing_source.map(TimingSource::name))
    ),
    column!(
        "ttft_source",
        Text,
        "The moment that `ttft` ends at: `server_first_token` or `first_token`.",
        |r| text(r.ttft().map(|(_, source)| source))
    ),
    column!(
        "inconsistency",
        Text,
        "Moments out of order and negative durations, named; the values stand \
        as they came.",
        |r| {
            let found = r.inconsistency();
            if found.is_empty() {
                Value::Empty
            } else {
                Value::Text(Cow::Owned(found))
            }
        }
    ),
    column!("trace_id", Text, "W3C trace id of the request.", |r| text(
        r.facts.trace_id.as_deref()
    )),
    column!(
        "engine_id",
        Text,
        "The engine's own id of the sequence.",
        |r| text(r.sequence.engine_id.as_deref())
    ),
];
