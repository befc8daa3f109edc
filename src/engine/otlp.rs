//! Picks the spans that a join needs out of an `ExportTraceServiceRequest` of OTLP, without decoding the rest
//! (<https://github.com/open-telemetry/opentelemetry-proto>).
//!
//! The message is walked as slices. A span's name says whether it is needed; of one that is not, such as the span of
//! each token, nothing but the name is looked for.

use crate::clock::{NANOS, Stamp};

use crate::request::attempt::ServerRole;
use crate::request::sequence::TimingSource;
use crate::request::told::Told;

use super::span::{EngineSpan, Part, Scheduler, Stage};

/// The bytes are no such message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message of OTLP traces")]
pub struct Malformed;

/// A field's value.
#[derive(Clone, Copy)]
enum Value<'a> {
    /// A varint.
    Number(u64),
    /// Eight bytes.
    Fixed(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    /// Four bytes, which nothing here is made of.
    Short,
}

/// The fields of a message, one after the other.
struct Fields<'a> {
    rest: &'a [u8],
}

/// Longer ids are none of an engine's.
const LONGEST_ID: usize = 512;

// Field numbers of ExportTraceServiceRequest, ResourceSpans, ScopeSpans.
const RESOURCE_SPANS: u64 = 1;
const SCOPE_SPANS: u64 = 2;
const SPANS: u64 = 2;
// Of Span.
const TRACE_ID: u64 = 1;
const SPAN_ID: u64 = 2;
const PARENT: u64 = 4;
const NAME: u64 = 5;
const START: u64 = 7;
const END: u64 = 8;
const ATTRIBUTES: u64 = 9;
const EVENTS: u64 = 11;
const STATUS: u64 = 15;
// Of Event, Status, KeyValue.
const EVENT_NAME: u64 = 2;
const STATUS_CODE: u64 = 3;
const STATUS_ERROR: u64 = 2;
const KEY: u64 = 1;
const VALUE: u64 = 2;
// Of AnyValue.
const TEXT: u64 = 1;
const WHOLE: u64 = 3;
const FLOAT: u64 = 4;

/// Appends the needed spans of `message` to `found`.
///
/// # Errors
/// The message is broken; what stood before that has been appended.
pub fn spans(message: &[u8], found: &mut Vec<EngineSpan>) -> Result<(), Malformed> {
    let mut all = Fields { rest: message };
    while let Some(of_resource) = all.next_message(RESOURCE_SPANS)? {
        let mut scopes = Fields { rest: of_resource };
        while let Some(of_scope) = scopes.next_message(SCOPE_SPANS)? {
            let mut spans = Fields { rest: of_scope };
            while let Some(span) = spans.next_message(SPANS)? {
                found.extend(read(span)?);
            }
        }
    }
    Ok(())
}

/// The span, if it is needed and its ids and times are such.
fn read(span: &[u8]) -> Result<Option<EngineSpan>, Malformed> {
    let mut fields = Fields { rest: span };
    let Some(mut part) = fields.next_message(NAME)?.and_then(named) else {
        return Ok(None);
    };
    let (mut trace, mut id, mut parent) = (None, None, 0);
    let (mut start, mut end, mut retractions) = (None, None, 0_u32);
    let mut fields = Fields { rest: span };
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (TRACE_ID, Value::Bytes(bytes)) => trace = bytes.try_into().ok(),
            (SPAN_ID, Value::Bytes(bytes)) => id = bytes.try_into().ok(),
            (PARENT, Value::Bytes(bytes)) => {
                parent = bytes.try_into().map_or(0, u64::from_be_bytes);
            }
            (START, Value::Fixed(nanos)) => start = stamp(nanos),
            (END, Value::Fixed(nanos)) => end = stamp(nanos),
            (EVENTS, Value::Bytes(event)) => {
                let name = Fields { rest: event }.next_message(EVENT_NAME)?;
                retractions = retractions.saturating_add((name == Some(b"retract")).into());
            }
            (STATUS, Value::Bytes(status)) => ended(&mut part, status)?,
            _ => {}
        }
    }
    let (Some(trace), Some(id), Some(start), Some(end)) = (trace, id, start, end) else {
        return Ok(None);
    };
    let mut fields = Fields { rest: span };
    while let Some(pair) = fields.next_message(ATTRIBUTES)? {
        attribute(&mut part, start, pair)?;
    }
    let is_nameless = matches!(&part, Part::Router { request_id } if request_id.is_empty());
    Ok((!is_nameless).then(|| EngineSpan {
        trace: u128::from_be_bytes(trace),
        id: u64::from_be_bytes(id),
        parent,
        start,
        end,
        part,
        retractions,
    }))
}

fn stamp(nanos: u64) -> Option<Stamp> {
    i64::try_from(nanos).ok().map(Stamp::from_nanos)
}

/// What a span of this name is, before its attributes are read.
fn named(name: &[u8]) -> Option<Part> {
    let stage = |stage| Some(Part::Stage(stage));
    match name {
        b"request_process" | b"prefill_prepare" | b"decode_prepare" => stage(Stage::Process),
        b"prefill_waiting" => stage(Stage::Waiting),
        b"prefill_forward" => stage(Stage::Prefill),
        b"decode_bootstrap" => stage(Stage::Bootstrap),
        b"decode_transferred" => stage(Stage::Transferred),
        b"decode_waiting" => stage(Stage::Slot),
        b"prefill_transfer_kv_cache" => stage(Stage::Sending),
        b"http_request" => Some(Part::Router {
            request_id: Box::default(),
        }),
        _ if is_root(name) => Some(Part::Root(Box::new(Told {
            role: role(name),
            ..Told::of(TimingSource::Trace)
        }))),
        _ if is_scheduler(name) => Some(Part::Scheduler(Scheduler::default())),
        _ => None,
    }
}

/// ` Req 1a2b3c4d`; a server of a disaggregated pair sets its role before.
fn is_root(name: &[u8]) -> bool {
    let mut words = name.splitn(3, |byte| *byte == b' ');
    let role = words.next();
    matches!(role, Some(b"" | b"prefill" | b"decode" | b"unknown")) && words.next() == Some(b"Req")
}

/// What stands before a root's name.
fn role(name: &[u8]) -> Option<ServerRole> {
    let word = name.split(|byte| *byte == b' ').next()?;
    ServerRole::named(str::from_utf8(word).ok()?)
}

/// `0xa0e9da65514fc1c`; 0 is none.
fn room(any: &[u8]) -> Result<Option<u64>, Malformed> {
    let hex = text(any)?;
    let digits = hex.as_deref().and_then(|hex| hex.strip_prefix("0x"));
    let room = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    Ok(room.filter(|room| *room != 0))
}

/// `Scheduler [TP 0]  [PP 0] (host:1a2b3c4d | pid:1)`; of a disaggregated pair `Prefill Scheduler`, `Decode Scheduler`.
fn is_scheduler(name: &[u8]) -> bool {
    let label = [&b"Prefill "[..], b"Decode "]
        .into_iter()
        .find_map(|role| name.strip_prefix(role))
        .unwrap_or(name);
    label.starts_with(b"Scheduler")
}

fn attribute(part: &mut Part, start: Stamp, pair: &[u8]) -> Result<(), Malformed> {
    let mut fields = Fields { rest: pair };
    let (mut key, mut value) = (&[][..], &[][..]);
    while let Some((field, content)) = fields.next()? {
        match (field, content) {
            (KEY, Value::Bytes(bytes)) => key = bytes,
            (VALUE, Value::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    match part {
        Part::Root(root) => match key {
            b"gen_ai.request.id" => root.rid = text(value)?.map(String::from).or(root.rid.take()),
            // What follows a worker's name, where the whole id is not told.
            b"rid" if root.rid.is_none() => root.rid = text(value)?.map(String::from),
            b"bootstrap_room" => root.room = room(value)?,
            b"gen_ai.latency.time_to_first_token" => {
                root.first_token = nanos(value)?.map(|nanos| start.plus_nanos(nanos));
            }
            b"gen_ai.usage.prompt_tokens" => root.prompt_tokens = whole(value)?,
            b"gen_ai.usage.cached_tokens" => root.cached_tokens = whole(value)?,
            b"gen_ai.usage.completion_tokens" => root.output_tokens = whole(value)?,
            _ => {}
        },
        Part::Scheduler(scheduler) => match key {
            b"tp_rank" => scheduler.tp_rank = whole(value)?,
            b"pp_rank" => scheduler.pp_rank = whole(value)?,
            b"dp_rank" => scheduler.dp_rank = whole(value)?,
            _ => {}
        },
        Part::Router { request_id } if key == b"request_id" => {
            *request_id = text(value)?.unwrap_or_default();
        }
        _ => {}
    }
    Ok(())
}

fn ended(part: &mut Part, status: &[u8]) -> Result<(), Malformed> {
    if let Part::Scheduler(scheduler) = part {
        let mut fields = Fields { rest: status };
        while let Some((field, value)) = fields.next()? {
            if let (STATUS_CODE, Value::Number(code)) = (field, value) {
                scheduler.is_cut_short = code == STATUS_ERROR;
            }
        }
    }
    Ok(())
}

/// The one value of an `AnyValue`.
fn value(any: &[u8]) -> Result<Option<(u64, Value<'_>)>, Malformed> {
    Fields { rest: any }.next()
}

fn text(any: &[u8]) -> Result<Option<Box<str>>, Malformed> {
    Ok(match value(any)? {
        Some((TEXT, Value::Bytes(bytes))) if (1..=LONGEST_ID).contains(&bytes.len()) => {
            std::str::from_utf8(bytes).ok().map(Into::into)
        }
        _ => None,
    })
}

fn whole(any: &[u8]) -> Result<Option<u64>, Malformed> {
    Ok(match value(any)? {
        // A negative one has the highest bit set.
        Some((WHOLE, Value::Number(number))) => i64::try_from(number).is_ok().then_some(number),
        _ => None,
    })
}

/// Seconds as nanoseconds, of a duration that a request may have.
fn nanos(any: &[u8]) -> Result<Option<i64>, Malformed> {
    let seconds = match value(any)? {
        Some((FLOAT, Value::Fixed(bits))) => f64::from_bits(bits),
        Some((WHOLE, Value::Number(seconds))) => seconds as f64,
        _ => return Ok(None),
    };
    let is_duration = (0.0..1e9).contains(&seconds);
    Ok(is_duration.then(|| (seconds * NANOS as f64).round() as i64))
}

impl<'a> Fields<'a> {
    /// The next field and its value; `None` at the end.
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Fixed(self.take(8)?.try_into().map_or(0, u64::from_le_bytes)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Value::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Value::Short
            }
            _ => return Err(Malformed),
        };
        Ok(Some((tag >> 3, value)))
    }

    /// The next one with this number that has bytes.
    fn next_message(&mut self, number: u64) -> Result<Option<&'a [u8]>, Malformed> {
        while let Some((field, value)) = self.next()? {
            if let (true, Value::Bytes(bytes)) = (field == number, value) {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for (i, byte) in self.rest.iter().take(10).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[i + 1..];
                return Ok(number);
            }
        }
        Err(Malformed)
    }
}
