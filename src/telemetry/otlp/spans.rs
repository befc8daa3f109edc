//! The spans of a request, made of its rows when it has ended. Pure but for the ids of spans that nobody else names.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Event, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::clock::Stamp;
use crate::request::attempt::{self, Attempt};
use crate::request::column::Scope;
use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::timeline::{Moment, STAGES, Side, Stage};
use crate::request::trace::Sending;

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

/// What a span is made with.
struct Plan {
    id: SpanId,
    parent: Option<SpanId>,
    kind: SpanKind,
    name: Cow<'static, str>,
    from: Stamp,
    to: Stamp,
}

/// The id of a request's trace; one that came without any gets a new one.
pub fn trace_of(rows: &[Row]) -> u128 {
    let id = rows.first().and_then(|row| row.trace_id.as_deref());
    let id = id.and_then(|id| u128::from_str_radix(id, 16).ok());
    id.unwrap_or_else(|| rand::random::<u128>().max(1))
}

/// The spans of a request: the request itself, below it each sending, and below the last one a span a stage.
pub fn spans(
    rows: &[Row],
    trace: u128,
    kept: Kept,
    scope: &InstrumentationScope,
    to: &mut Vec<SpanData>,
) {
    let Some(first) = rows.first() else { return };
    let mut tree = Tree {
        rows,
        first,
        trace: TraceId::from_bytes(trace.to_be_bytes()),
        scope,
        spans: std::mem::take(to),
    };
    tree.request(kept);
    *to = tree.spans;
}

impl Tree<'_> {
    fn request(&mut self, kept: Kept) {
        let (first, timeline) = (self.first, &self.first.timeline);
        let begin = match timeline.side() {
            Side::Traffic => Moment::Sent,
            Side::Front => Moment::Arrival,
            Side::Hop => Moment::WorkerArrival,
        };
        let ends = timeline
            .on_own_clock(begin)
            .zip(timeline.on_own_clock(Moment::End));
        // It was never sent.
        let Some((from, to)) = ends else { return };
        let is_client = timeline.side() == Side::Traffic;
        let id = match first.span_id.filter(|_| is_client) {
            Some(span) => own(span),
            None => new_id(),
        };
        let mut attributes = Vec::with_capacity(80);
        attributes.extend(attributes::of_http(first.endpoint()));
        attributes.extend(attributes::of_operation(first.endpoint()));
        attributes.extend(
            first
                .host
                .as_deref()
                .into_iter()
                .flat_map(attributes::of_server),
        );
        attributes.push(KeyValue::new("queuescope.kept", kept.name()));
        let is_single = self.rows.len() == 1;
        if !is_single {
            // Each sequence has one of its own; the request is looked for by this.
            attributes.push(KeyValue::new(
                "queuescope.req_id",
                first.request_id().to_owned(),
            ));
        }
        attributes::columns(
            self.first,
            (!is_single).then_some(Scope::Request),
            &mut attributes,
        );
        attributes.extend(error_type(first.outcome()));
        let mut span = self.span(
            Plan {
                id,
                parent: first.parent_span_id.map(own),
                kind: if is_client {
                    SpanKind::Client
                } else {
                    SpanKind::Server
                },
                name: self.name(),
                from,
                to,
            },
            attributes,
        );
        span.parent_span_is_remote = first.parent_span_id.is_some();
        // To a server, a client's fault is no error of its own.
        if is_client || first.outcome() != Outcome::ClientError {
            span.status = status(first);
        }
        if is_single {
            span.events = token_events(self.first);
        }
        self.spans.push(span);
        let below = match is_client {
            true => id,
            false => self.sendings(id, from, to),
        };
        if self.tells_stages() {
            self.stages(id, below, from, to);
        }
    }

    /// Each way of the request upstream. Gives the last of them, or the request itself where there was none.
    fn sendings(&mut self, request: SpanId, from: Stamp, to: Stamp) -> SpanId {
        let trace = &self.first.more.trace;
        let mut last = request;
        let all = &trace.sendings;
        for (turn, sending) in all.iter().enumerate() {
            last = own(sending.span);
            let is_last = turn + 1 == all.len();
            let span = self.sending(sending, turn, is_last, request, to);
            self.spans.push(span);
        }
        for attempt in &trace.attempts {
            let span = self.attempt(attempt, last, from, to);
            self.spans.push(span);
        }
        last
    }

    fn sending(
        &self,
        sending: &Sending,
        turn: usize,
        is_last: bool,
        parent: SpanId,
        end: Stamp,
    ) -> SpanData {
        let first = self.first;
        let mut attributes = attributes::of_http(first.endpoint()).to_vec();
        attributes.extend(attributes::of_server(&sending.upstream));
        if turn > 0 {
            attributes.push(KeyValue::new("http.request.resend_count", turn as i64));
        }
        let is_last = is_last && sending.is_connected;
        let broke = sending.broke.filter(|_| !is_last);
        let plan = Plan {
            id: own(sending.span),
            parent: Some(parent),
            kind: SpanKind::Client,
            name: self.name(),
            from: sending.at,
            to: broke.unwrap_or(end),
        };
        if is_last {
            // Without a head of the upstream's the status is our own answer's.
            let head = self.first.timeline.raw(Moment::ResponseHead);
            let status = first.status.filter(|_| head.is_some());
            let status = status.and_then(|status| i64::try_from(status).ok());
            let status = status.map(|status| KeyValue::new("http.response.status_code", status));
            attributes.extend(status);
            attributes.extend(error_type(first.outcome()));
        } else {
            let outcome = match sending.is_connected {
                true => Outcome::UpstreamDied,
                false => Outcome::ConnectError,
            };
            attributes.push(KeyValue::new("error.type", outcome.name()));
        }
        let mut span = self.span(plan, attributes);
        span.status = match is_last {
            true => status(first),
            false if !sending.is_connected => Status::error("no connection came about"),
            false => {
                Status::error("the connection broke before an answer; the request was sent again")
            }
        };
        span
    }

    /// A router's sending, as a hop of this process saw it. The engine's own spans have it as their parent.
    fn attempt(&self, attempt: &Attempt, sent: SpanId, from: Stamp, end: Stamp) -> SpanData {
        let first = self.first;
        let mut attributes = attributes::of_http(first.endpoint()).to_vec();
        attributes.extend(attributes::of_server(&attempt.host));
        attributes.push(KeyValue::new("queuescope.worker", attempt.worker.clone()));
        let status = attempt
            .status
            .map(|status| KeyValue::new("http.response.status_code", i64::from(status)));
        attributes.extend(status);
        // A router of a trace of its own is not in this tree.
        let came = attempt
            .came_with
            .filter(|came| came.trace.to_be_bytes() == self.trace.to_bytes());
        let plan = Plan {
            id: own(attempt.span),
            parent: Some(came.map_or(sent, |came| own(came.span))),
            kind: SpanKind::Client,
            name: "hop".into(),
            from: attempt.arrival.max(from),
            to: attempt.ended.or(attempt.passage.last).unwrap_or(end),
        };
        let outcome = attempt.outcome.unwrap_or(if attempt.has_answered() {
            Outcome::Ok
        } else {
            first.outcome()
        });
        attributes.extend(error_type(outcome));
        let mut span = self.span(plan, attributes);
        if outcome != Outcome::Ok {
            span.status = Status::error(outcome.name());
        }
        span
    }

    /// Whether the stages are told here: a front before this process tells them in the same trace.
    fn tells_stages(&self) -> bool {
        let timeline = &self.first.timeline;
        match timeline.side() {
            Side::Front => true,
            Side::Traffic => timeline.own_arrival().is_none(),
            Side::Hop => self.first.parent_span_id.is_none(),
        }
    }

    fn stages(&mut self, request: SpanId, below: SpanId, from: Stamp, to: Stamp) {
        let is_single = self.rows.len() == 1;
        for (nth, row) in self.rows.iter().take(SEQUENCES).enumerate() {
            let mut parent = below;
            if !is_single {
                parent = new_id();
                let mut attributes = Vec::new();
                attributes::columns(row, Some(Scope::Sequence), &mut attributes);
                let name = "sequence".into();
                let plan = Plan {
                    id: parent,
                    parent: Some(below),
                    kind: SpanKind::Internal,
                    name,
                    from,
                    to,
                };
                let mut span = self.span(plan, attributes);
                span.events = token_events(row);
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
            Moment::FirstToken => timeline.saw_way_back(),
            _ => true,
        };
        if !is_seen {
            return None;
        }
        let from = timeline.on_own_clock(stage.period.from)?;
        let to = timeline.on_own_clock(stage.period.to)?;
        let plan = Plan {
            id: new_id(),
            parent: Some(parent),
            kind: SpanKind::Internal,
            name: stage.metric_name().into(),
            from,
            to,
        };
        (to >= from).then(|| self.span(plan, Vec::new()))
    }

    fn name(&self) -> Cow<'static, str> {
        format!("POST {}", self.first.endpoint().path()).into()
    }

    fn span(&self, plan: Plan, attributes: Vec<KeyValue>) -> SpanData {
        let context = SpanContext::new(
            self.trace,
            plan.id,
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        );
        SpanData {
            span_context: context,
            parent_span_id: plan.parent.unwrap_or(SpanId::INVALID),
            parent_span_is_remote: false,
            span_kind: plan.kind,
            name: plan.name,
            start_time: system(plan.from),
            end_time: system(plan.to.max(plan.from)),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }
}

fn token_events(row: &Row) -> SpanEvents {
    let mut events = SpanEvents::default();
    for (name, moment) in [
        ("first_token", Moment::FirstToken),
        ("last_token", Moment::LastToken),
    ] {
        let at = row.timeline.on_own_clock(moment);
        events
            .events
            .extend(at.map(|at| Event::new(name, system(at), Vec::new(), 0)));
    }
    events
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
