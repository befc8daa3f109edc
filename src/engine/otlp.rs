//! Picks the spans that a join needs out of an `ExportTraceServiceRequest` of OTLP, without decoding the rest
//! (<https://github.com/open-telemetry/opentelemetry-proto>).
//!
//! A span's name says whether it is needed; of one that is not, such as the span of each token, nothing but the name is read.

use bytes::Bytes;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::{DecodeError, Message};

use crate::clock::{NANOS, Stamp};

use crate::request::attempt::ServerRole;
use crate::request::engine_report::Told;
use crate::request::sequence::TimingSource;
use crate::telemetry::prometheus::LeftOut;

use super::span::{EngineSpan, Part, Scheduler, Stage};

/// The message, with its spans as bytes until their turn comes.
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

/// Of a span what says whether the rest is decoded: most are those of tokens, which nobody needs.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(bytes = "bytes", tag = "5")]
    name: Bytes,
}

/// A longer span is none of an engine's; decoded it takes some 50 times its length at most.
const LONGEST_SPAN: usize = 256 << 10;
/// Longer ids are none of an engine's.
const LONGEST_ID: usize = 512;

/// The needed spans of a message; `left_out` is told why one of them cannot be used.
///
/// # Errors
/// The message is broken.
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

/// The span, if it is needed and its ids and times are such.
fn read(
    span: Bytes,
    left_out: &mut impl FnMut(LeftOut),
) -> Result<Option<EngineSpan>, DecodeError> {
    let Some(mut part) = named(&Named::decode(span.clone())?.name) else {
        return Ok(None);
    };
    if span.len() > LONGEST_SPAN {
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
    let start = Stamp::from_nanos(start);
    for pair in span.attributes {
        attribute(&mut part, start, pair);
    }
    if let Part::Scheduler(scheduler) = &mut part {
        let status = span.status.unwrap_or_default();
        scheduler.is_cut_short = status.code() == StatusCode::Error;
    }
    let retractions = span.events.iter().filter(|event| event.name == "retract");
    let retractions = u32::try_from(retractions.count()).unwrap_or(u32::MAX);
    let is_nameless = matches!(&part, Part::Router { request_id } if request_id.is_empty());
    Ok((!is_nameless).then(|| EngineSpan {
        trace: u128::from_be_bytes(trace),
        id: u64::from_be_bytes(id),
        parent: span.parent_span_id.try_into().map_or(0, u64::from_be_bytes),
        start,
        end: Stamp::from_nanos(end),
        part,
        retractions,
    }))
}

/// What a span of this name is, before its attributes are read.
fn named(name: &[u8]) -> Option<Part> {
    let name = str::from_utf8(name).ok()?;
    let stage = |stage| Some(Part::Stage(stage));
    match name {
        "request_process" | "prefill_prepare" | "decode_prepare" => stage(Stage::Process),
        "prefill_waiting" => stage(Stage::Waiting),
        "prefill_forward" => stage(Stage::Prefill),
        "decode_bootstrap" => stage(Stage::Bootstrap),
        "decode_transferred" => stage(Stage::Transferred),
        "decode_waiting" => stage(Stage::Slot),
        "prefill_transfer_kv_cache" => stage(Stage::Sending),
        "http_request" => Some(Part::Router {
            request_id: Box::default(),
        }),
        _ if is_scheduler(name) => Some(Part::Scheduler(Scheduler::default())),
        _ => root(name),
    }
}

/// ` Req 1a2b3c4d`; a server of a disaggregated pair sets its role before.
fn root(name: &str) -> Option<Part> {
    let mut words = name.split(' ');
    let (role, word) = (words.next()?, words.next()?);
    let is_root = matches!(role, "" | "prefill" | "decode" | "unknown") && word == "Req";
    is_root.then(|| {
        let role = ServerRole::named(role);
        let told = Told::of(TimingSource::Trace);
        Part::Root(Box::new(Told { role, ..told }))
    })
}

/// `Scheduler [TP 0]  [PP 0] (host:1a2b3c4d | pid:1)`; of a disaggregated pair `Prefill Scheduler`, `Decode Scheduler`.
fn is_scheduler(name: &str) -> bool {
    let label = name.strip_prefix("Prefill ");
    let label = label.or(name.strip_prefix("Decode ")).unwrap_or(name);
    label.starts_with("Scheduler")
}

fn attribute(part: &mut Part, start: Stamp, pair: KeyValue) {
    let value = pair.value.and_then(|any| any.value);
    match (part, &*pair.key) {
        (Part::Root(root), "gen_ai.request.id") => root.rid = text(value).or(root.rid.take()),
        // What follows a worker's name, where the whole id is not told.
        (Part::Root(root), "rid") if root.rid.is_none() => root.rid = text(value),
        (Part::Root(root), "bootstrap_room") => root.room = room(value),
        (Part::Root(root), "gen_ai.latency.time_to_first_token") => {
            root.first_token = nanos(value).map(|nanos| start.plus_nanos(nanos));
        }
        (Part::Root(root), "gen_ai.usage.prompt_tokens") => root.prompt_tokens = whole(value),
        (Part::Root(root), "gen_ai.usage.cached_tokens") => root.cached_tokens = whole(value),
        (Part::Root(root), "gen_ai.usage.completion_tokens") => root.output_tokens = whole(value),
        (Part::Scheduler(scheduler), "tp_rank") => scheduler.tp_rank = whole(value),
        (Part::Scheduler(scheduler), "pp_rank") => scheduler.pp_rank = whole(value),
        (Part::Scheduler(scheduler), "dp_rank") => scheduler.dp_rank = whole(value),
        (Part::Router { request_id }, "request_id") => {
            *request_id = text(value).unwrap_or_default().into();
        }
        _ => {}
    }
}

/// `0xa0e9da65514fc1c`; 0 is none.
fn room(value: Option<Value>) -> Option<u64> {
    let room = u64::from_str_radix(text(value)?.strip_prefix("0x")?, 16).ok();
    room.filter(|room| *room != 0)
}

fn text(value: Option<Value>) -> Option<String> {
    match value? {
        Value::StringValue(text) if (1..=LONGEST_ID).contains(&text.len()) => Some(text),
        _ => None,
    }
}

fn whole(value: Option<Value>) -> Option<u64> {
    match value? {
        Value::IntValue(number) => u64::try_from(number).ok(),
        _ => None,
    }
}

/// Seconds as nanoseconds, of a duration that a request may have.
fn nanos(value: Option<Value>) -> Option<i64> {
    let seconds = match value? {
        Value::DoubleValue(seconds) => seconds,
        Value::IntValue(seconds) => seconds as f64,
        _ => return None,
    };
    let is_duration = (0.0..1e9).contains(&seconds);
    is_duration.then(|| (seconds * NANOS as f64).round() as i64)
}
