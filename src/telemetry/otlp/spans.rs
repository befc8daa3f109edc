//! The spans of a request, made of its rows when it has ended. Pure but for the ids of spans that nobody else names.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::clock::Stamp;
use crate::request::attempt::{self, Attempt};
use crate::request::column::Scope;
use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::timeline::{Moment, STAGES, Side, Stage};
use crate::request::trace_facts::Sending;

use super::attributes;
use super::sampling::Kept;

/// Sequences of a request whose stages are told.
const SEQUENCES: usize = 16;
/// Stages that are the request's, not a sequence's: told once.
const OF_REQUEST: [Moment; 2] = [Moment::Sent, Moment::RouterSend];

/// The spans of one request under way.
struct Tree<'a> {
    rows: &'a [Row],
    first: &'a Row,
    trace: TraceId,
    scope: &'a InstrumentationScope,
    spans: Vec<SpanData>,
}

/// The id of a request's trace; one that came without any gets a new one.
pub fn trace_of(rows: &[Row]) -> u128 {
    let id = rows.first().and_then(|row| row.trace_id.as_deref());
    let id = id.and_then(|id| u128::from_str_radix(id, 16).ok());
    id.unwrap_or_else(|| rand::random::<u128>().max(1))
}

/// The spans of a request: the request itself, below it each sending, and below the last one a span a stage.
pub fn spans(rows: &[Row], trace: u128, kept: Kept, scope: &InstrumentationScope) -> Vec<SpanData> {
    let Some(first) = rows.first() else {
        return Vec::new();
    };
    let mut tree = Tree {
        rows,
        first,
        trace: TraceId::from_bytes(trace.to_be_bytes()),
        scope,
        spans: Vec::new(),
    };
    tree.request(kept);
    tree.spans
}

impl Tree<'_> {
    fn request(&mut self, kept: Kept) {
        let (first, timeline) = (self.first, &self.first.timeline);
        let begin = match timeline.side() {
            Side::Traffic => Moment::Sent,
            Side::Front => Moment::Arrival,
            Side::Hop => Moment::WorkerArrival,
        };
        let from = timeline.on_own_clock(begin);
        // It was never sent.
        let Some((from, to)) = from.zip(timeline.on_own_clock(Moment::End)) else {
            return;
        };
        let is_client = timeline.side() == Side::Traffic;
        let is_single = self.rows.len() == 1;
        let mut attributes = Vec::with_capacity(80);
        attributes.extend(attributes::of_http(first.endpoint()));
        attributes.extend(attributes::of_operation(first.endpoint()));
        let host = first.host.as_deref().into_iter();
        attributes.extend(host.flat_map(attributes::of_server));
        attributes.push(KeyValue::new("queuescope.kept", kept.name()));
        if !is_single {
            // Each sequence has one of its own; the request is looked for by this.
            let id = first.request_id().to_owned();
            attributes.push(KeyValue::new("queuescope.req_id", id));
        }
        let scope = (!is_single).then_some(Scope::Request);
        attributes::columns(first, scope, &mut attributes);
        attributes.extend(error_type(first.outcome()));
        let id = first.span_id.filter(|_| is_client);
        let id = id.map_or_else(new_id, own);
        let parent = first.parent_span_id.map(own);
        let mut span = self.span(id, parent, self.name(), (from, to));
        span.parent_span_is_remote = parent.is_some();
        span.attributes = attributes;
        span.span_kind = match is_client {
            true => SpanKind::Client,
            false => SpanKind::Server,
        };
        // To a server, a client's fault is no error of its own.
        if is_client || first.outcome() != Outcome::ClientError {
            span.status = status(first);
        }
        self.spans.push(span);
        let below = match is_client {
            true => id,
            false => self.sendings(id, from, to),
        };
        if self.tells_stages() {
            self.stages(id, below, (from, to));
        }
    }

    /// Each way of the request upstream. Gives the last of them, or the request itself where there was none.
    fn sendings(&mut self, request: SpanId, from: Stamp, to: Stamp) -> SpanId {
        let trace = &self.first.more.trace;
        let last = trace.sendings.last();
        let last = last.map_or(request, |last| own(last.span));
        for (turn, sending) in trace.sendings.iter().enumerate() {
            let span = self.sending(sending, turn, request, to);
            self.spans.push(span);
        }
        for attempt in &trace.attempts {
            let span = self.attempt(attempt, last, from, to);
            self.spans.push(span);
        }
        last
    }

    fn sending(&self, sending: &Sending, turn: usize, parent: SpanId, end: Stamp) -> SpanData {
        let first = self.first;
        let is_last = turn + 1 == first.more.trace.sendings.len() && sending.is_connected;
        let (outcome, status) = match (is_last, sending.is_connected) {
            (true, _) => (first.outcome(), status(first)),
            (false, true) => {
                let words = "the connection broke before an answer; the request was sent again";
                (Outcome::UpstreamDied, Status::error(words))
            }
            (false, false) => {
                let words = "no connection came about";
                (Outcome::ConnectError, Status::error(words))
            }
        };
        let mut attributes = self.to_server(&sending.upstream);
        if turn > 0 {
            attributes.push(KeyValue::new("http.request.resend_count", turn as i64));
        }
        // Without a head of the upstream's the status is our own answer's.
        let head = first.timeline.raw(Moment::ResponseHead);
        let answered = head.filter(|_| is_last).and(first.status);
        attributes.extend(answered.and_then(|status| Some(answer(status.try_into().ok()?))));
        attributes.extend(error_type(outcome));
        let ended = sending.broke.filter(|_| !is_last).unwrap_or(end);
        let times = (sending.at, ended);
        SpanData {
            span_kind: SpanKind::Client,
            attributes,
            status,
            ..self.span(own(sending.span), Some(parent), self.name(), times)
        }
    }

    /// A router's sending, as a hop of this process saw it. The engine's own spans have it as their parent.
    fn attempt(&self, attempt: &Attempt, sent: SpanId, from: Stamp, end: Stamp) -> SpanData {
        let outcome = match (attempt.outcome, attempt.has_answered()) {
            (Some(outcome), _) => outcome,
            (None, true) => Outcome::Ok,
            (None, false) => self.first.outcome(),
        };
        let mut attributes = self.to_server(&attempt.host);
        attributes.push(KeyValue::new("queuescope.worker", attempt.worker.clone()));
        attributes.extend(attempt.status.map(|status| answer(status.into())));
        attributes.extend(error_type(outcome));
        // A router of a trace of its own is not in this tree.
        let is_here = |trace: u128| trace.to_be_bytes() == self.trace.to_bytes();
        let came = attempt.came_with.filter(|came| is_here(came.trace));
        let parent = came.map_or(sent, |came| own(came.span));
        let ended = attempt.ended.or(attempt.passage.last).unwrap_or(end);
        let times = (attempt.arrival.max(from), ended);
        SpanData {
            span_kind: SpanKind::Client,
            attributes,
            status: match outcome {
                Outcome::Ok => Status::Unset,
                failed => Status::error(failed.name()),
            },
            ..self.span(own(attempt.span), Some(parent), "hop".into(), times)
        }
    }

    /// What a span of a request to `address` says first.
    fn to_server(&self, address: &str) -> Vec<KeyValue> {
        let http = attributes::of_http(self.first.endpoint()).into_iter();
        http.chain(attributes::of_server(address)).collect()
    }

    /// Whether the stages are told here: a front before this process tells them in the same trace.
    fn tells_stages(&self) -> bool {
        let timeline = &self.first.timeline;
        match timeline.side() {
            Side::Front => true,
            Side::Traffic => timeline.mark(Moment::Arrival).is_none(),
            Side::Hop => self.first.parent_span_id.is_none(),
        }
    }

    fn stages(&mut self, request: SpanId, below: SpanId, times: (Stamp, Stamp)) {
        for (nth, row) in self.rows.iter().take(SEQUENCES).enumerate() {
            let mut parent = below;
            if self.rows.len() > 1 {
                parent = new_id();
                let mut span = self.span(parent, Some(below), "sequence".into(), times);
                attributes::columns(row, Some(Scope::Sequence), &mut span.attributes);
                self.spans.push(span);
            }
            for stage in &STAGES {
                let is_of_request = OF_REQUEST.contains(&stage.period.to);
                // Those begin before the last sending does.
                let parent = if is_of_request { request } else { parent };
                if !is_of_request || nth == 0 {
                    let span = self.stage(row, stage, parent);
                    self.spans.extend(span);
                }
            }
        }
    }

    /// `None` where nobody saw one of its ends, or they are out of order.
    fn stage(&self, row: &Row, stage: &Stage, parent: SpanId) -> Option<SpanData> {
        let timeline = &row.timeline;
        // A moment that another one stands for was not seen.
        let is_seen = match stage.period.to {
            // Before it arrived is not the front's; on its way to one it is nobody's who tells stages.
            Moment::Sent => timeline.side() == Side::Traffic,
            Moment::Arrival => false,
            _ => true,
        };
        let (from, to) = timeline.place_of(stage)?;
        let name = stage.metric.into();
        (is_seen && to >= from).then(|| self.span(new_id(), Some(parent), name, (from, to)))
    }

    fn name(&self) -> Cow<'static, str> {
        format!("POST {}", self.first.endpoint().path()).into()
    }

    /// One that says nothing but its name and its times.
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
            start_time: system(from),
            end_time: system(to.max(from)),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }
}

fn answer(status: i64) -> KeyValue {
    KeyValue::new("http.response.status_code", status)
}

/// How a request ended, for a span of it.
fn status(row: &Row) -> Status {
    match row.outcome() {
        Outcome::Ok => Status::Unset,
        _ => Status::error(row.error.clone().unwrap_or_default()),
    }
}

fn error_type(outcome: Outcome) -> Option<KeyValue> {
    (outcome != Outcome::Ok).then(|| KeyValue::new("error.type", outcome.name()))
}

fn own(span: attempt::SpanId) -> SpanId {
    SpanId::from_bytes(span.number().to_be_bytes())
}

fn new_id() -> SpanId {
    SpanId::from_bytes(rand::random::<u64>().max(1).to_be_bytes())
}

fn system(at: Stamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(at.nanos().max(0).unsigned_abs())
}

#[cfg(test)]
mod tests;
