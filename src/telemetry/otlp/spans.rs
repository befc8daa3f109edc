//! Makes the spans of an ended request from its rows. Pure, except for random ids of spans that no other process refers to.
//!
//! Attributes are the columns, under the names of the semantic conventions if there are any
//! (<https://opentelemetry.io/docs/specs/semconv/gen-ai/>; SGLang and vLLM use `gen_ai.latency.*`).

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, Key, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::clock::{Stamp, seconds};
use crate::request::attempt;
use crate::request::cell;
use crate::request::{
    Attempt, COLUMNS, Column, ColumnId as Id, Endpoint, Moment, Outcome, Row, STAGES, Scope,
    Sending, Side, Stage,
};

use super::settings::KeepReason;

/// The maximum number of sequences of a request that get spans.
const MAX_SEQUENCES: usize = 16;
/// The ends of the stages that belong to the request, not to a sequence.
const REQUEST_STAGE_ENDS: [Moment; 2] = [Moment::Sent, Moment::RouterSend];

/// The columns that a convention has a name for. Every other is `queuescope.` and the column's name.
const CONVENTIONS: [(Id, &str); 12] = [
    (Id::status, "http.response.status_code"),
    (Id::endpoint, "http.route"),
    (Id::model, "gen_ai.request.model"),
    (Id::expected_output_length, "gen_ai.request.max_tokens"),
    (Id::actual_prompt_tokens, "gen_ai.usage.input_tokens"),
    (Id::actual_output_tokens, "gen_ai.usage.output_tokens"),
    (Id::cached_tokens, "gen_ai.usage.cache_read.input_tokens"),
    (Id::engine_id, "gen_ai.response.id"),
    (Id::ttft, "gen_ai.latency.time_to_first_token"),
    (Id::total_latency, "gen_ai.latency.e2e"),
    (Id::pure_queue_time, "gen_ai.latency.time_in_queue"),
    (Id::prefill_time, "gen_ai.latency.time_in_model_prefill"),
];

/// The attribute name of each column, in the order of [`COLUMNS`].
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let name = |column: &Column| Arc::<str>::from(format!("queuescope.{}", column.name));
    let mut keys: Vec<Key> = COLUMNS.iter().map(|column| name(column).into()).collect();
    for (column, convention) in CONVENTIONS {
        keys[column as usize] = Key::from_static_str(convention);
    }
    keys
});

/// Who makes the spans.
static SCOPE: LazyLock<InstrumentationScope> = LazyLock::new(|| {
    let scope = InstrumentationScope::builder("queuescope");
    scope.with_version(env!("CARGO_PKG_VERSION")).build()
});

/// One request, of which spans are made.
struct Tree<'a> {
    rows: &'a [Row],
    first: &'a Row,
    trace: TraceId,
}

/// Returns the id of a request's trace; a random one if it has none.
pub fn trace_of(rows: &[Row]) -> u128 {
    let id = rows.first().and_then(|row| row.trace_id.as_deref());
    let id = id.and_then(|id| u128::from_str_radix(id, 16).ok());
    id.unwrap_or_else(|| rand::random::<u128>().max(1))
}

/// Returns the spans of a request: the request itself, below it each sending, and below the last of these a span per stage.
pub fn spans(rows: &[Row], trace: u128, reason: KeepReason) -> Vec<SpanData> {
    let Some(first) = rows.first() else {
        return Vec::new();
    };
    let trace = TraceId::from_bytes(trace.to_be_bytes());
    let tree = Tree { rows, first, trace };
    tree.spans(reason)
}

fn new_id() -> SpanId {
    SpanId::from_bytes(rand::random())
}

impl Tree<'_> {
    fn spans(&self, reason: KeepReason) -> Vec<SpanData> {
        let (first, timeline) = (self.first, &self.first.timeline);
        let from = timeline.on_own_clock(timeline.side().first_moment());
        // It was never sent.
        let Some((from, to)) = from.zip(timeline.on_own_clock(Moment::End)) else {
            return Vec::new();
        };
        // A client's request is its only sending.
        let is_client = timeline.side() == Side::Traffic;
        let id = first.span_id.filter(|_| is_client);
        let id = id.map_or_else(new_id, otel_id);
        let mut spans = vec![self.request(id, is_client, reason, (from, to))];
        let mut last_sending = id;
        if !is_client {
            let trace = &first.internal.trace;
            for (index, sending) in trace.sendings.iter().enumerate() {
                spans.push(self.sending(sending, index, id, to));
                last_sending = otel_id(sending.span);
            }
            let attempts = trace.attempts.iter();
            spans.extend(attempts.map(|attempt| self.attempt(attempt, last_sending, from, to)));
        }
        if self.has_stages() {
            self.stages(id, last_sending, (from, to), &mut spans);
        }
        spans
    }

    fn request(
        &self,
        id: SpanId,
        is_client: bool,
        reason: KeepReason,
        times: (Stamp, Stamp),
    ) -> SpanData {
        let first = self.first;
        let parent = first.parent_span_id.map(otel_id);
        let mut span = self.span(id, parent, self.name(), times);
        span.parent_span_is_remote = parent.is_some();
        span.span_kind = match is_client {
            true => SpanKind::Client,
            false => SpanKind::Server,
        };
        let attributes = &mut span.attributes;
        attributes.reserve(80);
        let endpoint = first.endpoint();
        attributes.extend(of_http(endpoint));
        attributes.push(KeyValue::new("gen_ai.operation.name", endpoint.operation()));
        attributes.push(KeyValue::new("gen_ai.provider.name", "sglang"));
        let host = first.host.as_deref().into_iter();
        attributes.extend(host.flat_map(of_server));
        attributes.push(KeyValue::new("queuescope.kept", reason.name()));
        let is_single = self.rows.len() == 1;
        if !is_single {
            // The sequences' spans have ids of their own; this one finds the request.
            let id = first.request_id().to_owned();
            attributes.push(KeyValue::new("queuescope.req_id", id));
        }
        let scope = (!is_single).then_some(Scope::Request);
        columns(first, scope, attributes);
        put_outcome(&mut span, first.outcome(), error(first));
        // By the conventions, a client error is not an error of the server's span.
        if !is_client && first.outcome() == Outcome::ClientError {
            span.status = Status::Unset;
        }
        span
    }

    fn sending(&self, sending: &Sending, index: usize, parent: SpanId, end: Stamp) -> SpanData {
        let first = self.first;
        let is_sent = sending.failed.is_none();
        let (outcome, error) = match is_sent {
            true => (first.outcome(), error(first)),
            false => (Outcome::ConnectError, "the connection failed"),
        };
        let times = (sending.at, sending.failed.unwrap_or(end));
        let mut span = self.span(otel_id(sending.span), Some(parent), self.name(), times);
        span.span_kind = SpanKind::Client;
        span.attributes = self.to_server(&sending.upstream);
        if index > 0 {
            let count = KeyValue::new("http.request.resend_count", index as i64);
            span.attributes.push(count);
        }
        // Without a response head from upstream, the row's status is that of our own response.
        let head = first.timeline.raw(Moment::ResponseHead);
        let code = head.filter(|_| is_sent).and(first.status);
        let code = code.and_then(|code| i64::try_from(code).ok());
        span.attributes.extend(code.map(response_status));
        put_outcome(&mut span, outcome, error);
        span
    }

    /// Returns the span of a router's attempt, as a hop of this process saw it. It is the parent of the engine's own spans.
    fn attempt(&self, attempt: &Attempt, parent: SpanId, from: Stamp, end: Stamp) -> SpanData {
        let outcome = match (attempt.outcome, attempt.has_answered()) {
            (Some(outcome), _) => outcome,
            (None, true) => Outcome::Ok,
            (None, false) => self.first.outcome(),
        };
        // A router that begins traces of its own has no span in this tree.
        let is_here = |trace: u128| trace.to_be_bytes() == self.trace.to_bytes();
        let router = attempt.parent.filter(|router| is_here(router.trace));
        let parent = router.map_or(parent, |router| otel_id(router.span));
        let ended = attempt.ended.or(attempt.body_timing.last).unwrap_or(end);
        let times = (attempt.arrival.max(from), ended);
        let mut span = self.span(otel_id(attempt.span), Some(parent), "hop".into(), times);
        span.span_kind = SpanKind::Client;
        span.attributes = self.to_server(&attempt.host);
        let worker = KeyValue::new("queuescope.worker", attempt.worker.clone());
        span.attributes.push(worker);
        let code = attempt.status.map(|status| response_status(status.into()));
        span.attributes.extend(code);
        put_outcome(&mut span, outcome, outcome.name());
        span
    }

    /// Returns the common attributes of a span of a request to `address`.
    fn to_server(&self, address: &str) -> Vec<KeyValue> {
        let http = of_http(self.first.endpoint()).into_iter();
        http.chain(of_server(address)).collect()
    }

    /// Whether this process makes the spans of stages. Otherwise a front before it does, in the same trace.
    fn has_stages(&self) -> bool {
        let timeline = &self.first.timeline;
        match timeline.side() {
            Side::Front => true,
            Side::Traffic => timeline.mark(Moment::Arrival).is_none(),
            Side::Hop => self.first.parent_span_id.is_none(),
        }
    }

    /// Adds the spans of stages, and those of sequences that they are below.
    fn stages(
        &self,
        request: SpanId,
        last_sending: SpanId,
        times: (Stamp, Stamp),
        spans: &mut Vec<SpanData>,
    ) {
        for (index, row) in self.rows.iter().take(MAX_SEQUENCES).enumerate() {
            let mut parent = last_sending;
            if self.rows.len() > 1 {
                parent = new_id();
                let mut span = self.span(parent, Some(last_sending), "sequence".into(), times);
                columns(row, Some(Scope::Sequence), &mut span.attributes);
                spans.push(span);
            }
            for stage in &STAGES {
                let is_of_request = REQUEST_STAGE_ENDS.contains(&stage.period.to);
                // They begin before the last sending.
                let parent = if is_of_request { request } else { parent };
                if !is_of_request || index == 0 {
                    spans.extend(self.stage(row, stage, parent));
                }
            }
        }
    }

    /// Returns the span of a stage; `None` if one of its ends is missing, or they are out of order.
    fn stage(&self, row: &Row, stage: &Stage, parent: SpanId) -> Option<SpanData> {
        let timeline = &row.timeline;
        let is_own = match stage.period.to {
            // The time before sending is the generator's.
            Moment::Sent => timeline.side() == Side::Traffic,
            // The way from generator to front is shown by neither.
            Moment::Arrival => false,
            _ => true,
        };
        let (from, to) = timeline.place_of(stage)?;
        let name = stage.metric.into();
        let id = new_id();
        (is_own && to >= from).then(|| self.span(id, Some(parent), name, (from, to)))
    }

    fn name(&self) -> Cow<'static, str> {
        format!("POST {}", self.first.endpoint().path()).into()
    }

    /// Returns a span without attributes.
    fn span(
        &self,
        id: SpanId,
        parent: Option<SpanId>,
        name: Cow<'static, str>,
        (from, to): (Stamp, Stamp),
    ) -> SpanData {
        let sampled = TraceFlags::SAMPLED;
        SpanData {
            span_context: SpanContext::new(self.trace, id, sampled, false, TraceState::NONE),
            parent_span_id: parent.unwrap_or(SpanId::INVALID),
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name,
            start_time: from.into(),
            end_time: to.max(from).into(),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: SCOPE.clone(),
        }
    }
}

/// Appends the columns of a row that have a value: all of them, or those of one scope.
fn columns(row: &Row, scope: Option<Scope>, attributes: &mut Vec<KeyValue>) {
    for (column, key) in COLUMNS.iter().zip(&*KEYS) {
        if scope.is_none_or(|scope| scope == column.scope)
            && let Some(value) = value((column.get)(row))
        {
            attributes.push(KeyValue::new(key.clone(), value));
        }
    }
}

fn value(cell: cell::Value<'_>) -> Option<Value> {
    Some(match cell {
        cell::Value::Empty => return None,
        cell::Value::Text(text) => Value::String(StringValue::from(text.into_owned())),
        cell::Value::Bool(bool) => Value::Bool(bool),
        cell::Value::Count(count) => Value::I64(i64::try_from(count).unwrap_or(i64::MAX)),
        cell::Value::Nanos(nanos) => Value::F64(seconds(nanos)),
        cell::Value::Time(stamp) => Value::F64(stamp.seconds()),
    })
}

/// Returns the attributes of every span of an HTTP request.
fn of_http(endpoint: Endpoint) -> [KeyValue; 2] {
    [
        KeyValue::new("http.request.method", "POST"),
        KeyValue::new("url.path", endpoint.path()),
    ]
}

/// Returns `host:port` as two attributes.
fn of_server(address: &str) -> impl Iterator<Item = KeyValue> + use<> {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let host = (!host.is_empty()).then(|| KeyValue::new("server.address", host.to_owned()));
    let port = port.parse::<i64>().ok();
    let port = port.map(|port| KeyValue::new("server.port", port));
    host.into_iter().chain(port)
}

fn response_status(status: i64) -> KeyValue {
    KeyValue::new("http.response.status_code", status)
}

/// Says how what a span describes ended.
fn put_outcome(span: &mut SpanData, outcome: Outcome, error: &str) {
    if outcome != Outcome::Ok {
        let kind = KeyValue::new("error.type", outcome.name());
        span.attributes.push(kind);
        span.status = Status::error(error.to_owned());
    }
}

fn error(row: &Row) -> &str {
    row.error.as_deref().unwrap_or_default()
}

fn otel_id(span: attempt::SpanId) -> SpanId {
    SpanId::from_bytes(span.number().to_be_bytes())
}

#[cfg(test)]
mod tests;
