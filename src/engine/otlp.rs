//! Picks the spans that a join needs out of an OTLP `ExportTraceServiceRequest`, without decoding the rest
//! (<https://github.com/open-telemetry/opentelemetry-proto>).
//!
//! A span's name decides whether it is needed. Of the others, such as the span of each token, only the name is read.

use bytes::Bytes;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::{DecodeError, Message};

use crate::clock::{NANOS, Stamp};
use crate::request::{EngineReport, ServerRole, TimingSource};
use crate::telemetry::prometheus::LeftOut;

/// A span picked out of a batch, or a line of a request log. Its timestamps are on the engine's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSpan {
    /// The trace's id. The upper half is zero if the engine began the trace.
    pub trace: u128,
    /// The span's own id.
    pub id: u64,
    /// The id of the parent span; 0 if there is none.
    pub parent: u64,
    /// When it began.
    pub start: Stamp,
    /// When it ended.
    pub end: Stamp,
    /// What it describes.
    pub kind: SpanKind,
    /// How often the request was retracted during the span.
    pub retractions: u32,
}

/// What a span describes.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanKind {
    /// The whole request at the server, with the span's own times, parent and trace. If the request never generated, its `rid` is only the part after the last `_`.
    Root(Box<EngineReport>),
    /// A scheduler's work on the request: a child of the root, and the parent of the stages.
    Scheduler(Scheduler),
    /// One step of a scheduler's work.
    Stage(Stage),
    /// A router's handling of the request.
    Router {
        /// The request's `x-request-id`.
        request_id: Box<str>,
    },
}

/// A step of a scheduler's work on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From receipt to the waiting queue.
    Process,
    /// In the waiting queue.
    Waiting,
    /// Prefill, all chunks of it.
    Prefill,
    /// At a decode server: until memory was reserved and the prefill server was notified.
    Bootstrap,
    /// At a decode server: until the KV cache had arrived.
    KvTransfer,
    /// At a decode server: until the request entered the batch.
    DecodeWaiting,
    /// At a prefill server: sending the KV cache.
    KvSend,
}

/// The attributes of a scheduler's span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduler {
    /// Tensor-parallel rank.
    pub tp_rank: Option<u64>,
    /// Pipeline-parallel rank.
    pub pp_rank: Option<u64>,
    /// Data-parallel rank.
    pub dp_rank: Option<u64>,
    /// Whether the request left the scheduler before its end, for example by an abort in the waiting queue.
    pub is_aborted: bool,
}

/// The message, with its spans not yet decoded.
#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(bytes = "bytes", repeated, tag = "2")]
    spans: Vec<Bytes>,
}

/// A span's name alone. Most spans are of single tokens, which are not needed.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(bytes = "bytes", tag = "5")]
    name: Bytes,
}

/// Engines send no longer spans. Decoded, a span takes at most about 50 times its length.
const MAX_SPAN_BYTES: usize = 256 << 10;
/// Engines make no longer ids.
const MAX_ID_BYTES: usize = 512;

impl EngineSpan {
    /// The root span, without any other, that a line of a request log stands for. `number`: unique among the lines. A trace
    /// with the upper half zero is no request's of ours.
    pub fn of_log_line(report: EngineReport, number: u64) -> EngineSpan {
        EngineSpan {
            trace: number.into(),
            id: number,
            parent: 0,
            start: Stamp::EPOCH,
            end: Stamp::EPOCH,
            kind: SpanKind::Root(Box::new(report)),
            retractions: 0,
        }
    }

    /// Returns what the span reports if it is a request's root.
    pub fn root(&self) -> Option<&EngineReport> {
        match &self.kind {
            SpanKind::Root(root) => Some(root),
            _ => None,
        }
    }
}

/// Returns the needed spans of a message. `left_out` is called for each of them that cannot be used.
///
/// # Errors
/// The message is malformed.
pub fn spans(
    message: Bytes,
    mut left_out: impl FnMut(LeftOut),
) -> Result<Vec<EngineSpan>, DecodeError> {
    let scopes = Request::decode(message)?.resources.into_iter();
    let scopes = scopes.flat_map(|resource| resource.scopes);
    let spans = scopes.flat_map(|scope| scope.spans);
    let read = |span| read(span, &mut left_out).transpose();
    spans.filter_map(read).collect()
}

/// Decodes a span. `None` if it is not needed or cannot be used.
fn read(
    span: Bytes,
    left_out: &mut impl FnMut(LeftOut),
) -> Result<Option<EngineSpan>, DecodeError> {
    let Some(mut kind) = kind_of(&Named::decode(span.clone())?.name) else {
        return Ok(None);
    };
    if span.len() > MAX_SPAN_BYTES {
        left_out(LeftOut::TooLarge);
        return Ok(None);
    }
    let span = Span::decode(span)?;
    let trace: Option<[u8; 16]> = span.trace_id.try_into().ok();
    let id: Option<[u8; 8]> = span.span_id.try_into().ok();
    let times = [span.start_time_unix_nano, span.end_time_unix_nano];
    let [start, end] = times.map(|nanos| i64::try_from(nanos).ok().filter(|nanos| *nanos > 0));
    let (Some(trace), Some(id), Some(start), Some(end)) = (trace, id, start, end) else {
        left_out(LeftOut::Malformed);
        return Ok(None);
    };
    let [start, end] = [start, end].map(Stamp::from_nanos);
    let trace = u128::from_be_bytes(trace);
    let parent = span.parent_span_id.try_into().map_or(0, u64::from_be_bytes);
    for pair in span.attributes {
        attribute(&mut kind, start, pair);
    }
    match &mut kind {
        SpanKind::Root(root) => {
            root.trace = Some(trace);
            root.parent = Some(parent).filter(|id| *id != 0);
            root.received = Some(start);
            root.finished = Some(end);
        }
        SpanKind::Scheduler(scheduler) => {
            let status = span.status.unwrap_or_default();
            scheduler.is_aborted = status.code() == StatusCode::Error;
        }
        _ => {}
    }
    let retractions = span.events.iter().filter(|event| event.name == "retract");
    let retractions = u32::try_from(retractions.count()).unwrap_or(u32::MAX);
    let has_no_id = matches!(&kind, SpanKind::Router { request_id } if request_id.is_empty());
    Ok((!has_no_id).then(|| EngineSpan {
        trace,
        id: u64::from_be_bytes(id),
        parent,
        start,
        end,
        kind,
        retractions,
    }))
}

/// Returns what a span with this name describes, before its attributes are read.
fn kind_of(name: &[u8]) -> Option<SpanKind> {
    let name = str::from_utf8(name).ok()?;
    let stage = |stage| Some(SpanKind::Stage(stage));
    match name {
        "request_process" | "prefill_prepare" | "decode_prepare" => stage(Stage::Process),
        "prefill_waiting" => stage(Stage::Waiting),
        "prefill_forward" => stage(Stage::Prefill),
        "decode_bootstrap" => stage(Stage::Bootstrap),
        "decode_transferred" => stage(Stage::KvTransfer),
        "decode_waiting" => stage(Stage::DecodeWaiting),
        "prefill_transfer_kv_cache" => stage(Stage::KvSend),
        "http_request" => Some(SpanKind::Router {
            request_id: Box::default(),
        }),
        _ if is_scheduler(name) => Some(SpanKind::Scheduler(Scheduler::default())),
        _ => root_kind(name),
    }
}

/// Parses the name of a root span, ` Req 1a2b3c4d`; the servers of a disaggregated pair put their role first.
fn root_kind(name: &str) -> Option<SpanKind> {
    let mut words = name.split(' ');
    let (role, word) = (words.next()?, words.next()?);
    let is_root = matches!(role, "" | "prefill" | "decode" | "unknown") && word == "Req";
    is_root.then(|| {
        let role = ServerRole::named(role);
        let report = EngineReport::of(TimingSource::Trace);
        SpanKind::Root(Box::new(EngineReport { role, ..report }))
    })
}

/// Whether a name is like `Scheduler [TP 0]  [PP 0] (host:1a2b3c4d | pid:1)`. A disaggregated pair has `Prefill Scheduler` and
/// `Decode Scheduler`.
fn is_scheduler(name: &str) -> bool {
    let label = name.strip_prefix("Prefill ");
    let label = label.or(name.strip_prefix("Decode ")).unwrap_or(name);
    label.starts_with("Scheduler")
}

/// Reads one attribute into what the span describes.
fn attribute(kind: &mut SpanKind, start: Stamp, pair: KeyValue) {
    let value = pair.value.and_then(|any| any.value);
    match kind {
        SpanKind::Root(root) => match &*pair.key {
            "gen_ai.request.id" => root.rid = text(value).or(root.rid.take()),
            // The part of the id after the worker's name, if the whole id is missing.
            "rid" => root.rid = root.rid.take().or(text(value)),
            "bootstrap_room" => root.room = room(value),
            "gen_ai.latency.time_to_first_token" => {
                root.first_token = nanos(value).map(|nanos| start.plus_nanos(nanos));
            }
            "gen_ai.usage.prompt_tokens" => root.prompt_tokens = count(value),
            "gen_ai.usage.cached_tokens" => root.cached_tokens = count(value),
            "gen_ai.usage.completion_tokens" => root.output_tokens = count(value),
            _ => {}
        },
        SpanKind::Scheduler(scheduler) => match &*pair.key {
            "tp_rank" => scheduler.tp_rank = count(value),
            "pp_rank" => scheduler.pp_rank = count(value),
            "dp_rank" => scheduler.dp_rank = count(value),
            _ => {}
        },
        SpanKind::Router { request_id } if pair.key == "request_id" => {
            *request_id = text(value).unwrap_or_default().into();
        }
        _ => {}
    }
}

/// Parses a room like `0xa0e9da65514fc1c`; 0 means none.
fn room(value: Option<Value>) -> Option<u64> {
    let room = u64::from_str_radix(text(value)?.strip_prefix("0x")?, 16).ok();
    room.filter(|room| *room != 0)
}

fn text(value: Option<Value>) -> Option<String> {
    match value? {
        Value::StringValue(text) if (1..=MAX_ID_BYTES).contains(&text.len()) => Some(text),
        _ => None,
    }
}

fn count(value: Option<Value>) -> Option<u64> {
    match value? {
        Value::IntValue(number) => u64::try_from(number).ok(),
        _ => None,
    }
}

/// Converts seconds to nanoseconds; `None` if no request can take so long.
fn nanos(value: Option<Value>) -> Option<i64> {
    let seconds = match value? {
        Value::DoubleValue(seconds) => seconds,
        Value::IntValue(seconds) => seconds as f64,
        _ => return None,
    };
    let is_duration = (0.0..1e9).contains(&seconds);
    is_duration.then(|| (seconds * NANOS as f64).round() as i64)
}
