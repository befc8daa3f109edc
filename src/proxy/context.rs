//! One request on its way through: what was stamped, who watches, and its one end.

use std::sync::Arc;

use crate::clock::Stamp;
use crate::edge::phase::Phase;
use crate::request::attempt::SpanId;
use crate::request::endpoint::Endpoint;
use crate::request::observer::{End, Observer};
use crate::request::outcome::{Outcome, Seen, judge};
use crate::request::passage::Passage;
use crate::request::stamps::Stamps;
use crate::request::timeline::{Moment, Side};
use crate::request::trace::TraceFacts;
use crate::telemetry::prometheus::{Progress, UnderWay};

use super::identity::{self, Trace};
use super::join::RequestKey;
use super::shared::UpstreamKind;
use super::shared::{Role, Shared};
use super::worker_hop::HopAttempt;

use self::away::Away;
use self::backpressure::Backpressure;

/// A request between its head and its end.
#[derive(Debug)]
pub struct Context {
    shared: Arc<Shared>,
    role: Role,
    arrival: Stamp,
    request_end: Option<Stamp>,
    forwarded: Option<Stamp>,
    /// When we answered ourselves: the client may still be sending.
    answered: Option<Stamp>,
    /// How many times we sent it upstream.
    sendings: u32,
    /// How long upstreams had it.
    away: Away,
    /// How far it has come.
    progress: Progress,
    /// It is in flight.
    under_way: Option<UnderWay>,
    /// So is an attempt at a server.
    at_worker: Option<UnderWay>,
    hop: Option<Stamps>,
    smg_worker: Option<String>,
    /// The upstream of the present attempt, `host:port`.
    pub upstream: String,
    /// How long its client held up writes.
    pub backpressure: Backpressure,
    /// The trace that the request belongs to.
    pub trace: Option<Trace>,
    /// We began the trace: the client sent none that can be continued.
    pub trace_is_new: bool,
    /// What only traces tell.
    traced: TraceFacts,
    /// How long its prompt was waited for, nanoseconds.
    prompt_wait: Option<i64>,
    /// Our own span of the present attempt.
    span: Option<SpanId>,
    /// The front's request, as attempts at hops of this process find it.
    joins: Option<RequestKey>,
    /// The hop's attempt.
    attempt: Option<HopAttempt>,
    /// When the body of the response passed here.
    passage: Passage,
    /// When it passed the hop, for the front.
    worker_passage: Passage,
    watch: Option<Watch>,
}

/// The watch over a generation request, until it ends.
#[derive(Debug)]
struct Watch {
    observer: Observer,
    /// Body bytes of the request.
    request_bytes: u64,
    /// Body bytes of the response.
    response_bytes: u64,
    response_head: Option<Stamp>,
    response_end: Option<Stamp>,
}

impl Context {
    /// A request whose head was read at `arrival`.
    pub fn new(shared: Arc<Shared>, role: Role, arrival: Stamp) -> Context {
        Context {
            shared,
            role,
            arrival,
            request_end: None,
            forwarded: None,
            answered: None,
            sendings: 0,
            away: Away::default(),
            progress: Progress::Receiving,
            under_way: None,
            at_worker: None,
            hop: None,
            smg_worker: None,
            upstream: String::new(),
            backpressure: Backpressure::default(),
            trace: None,
            trace_is_new: false,
            traced: TraceFacts::default(),
            prompt_wait: None,
            span: None,
            joins: None,
            attempt: None,
            passage: Passage::default(),
            worker_passage: Passage::default(),
            watch: None,
        }
    }

    /// Whether it came to a worker hop.
    pub fn is_at_hop(&self) -> bool {
        matches!(self.role, Role::Hop(_))
    }

    /// Begins to watch a generation request of the front.
    pub fn watch(&mut self, endpoint: Endpoint, req_id: String) {
        self.joins = self.shared.joins.open(&req_id);
        let mut observer = Observer::new(Side::Front, endpoint, req_id);
        let timeline = observer.timeline_mut();
        timeline.set(Moment::Arrival, self.arrival);
        timeline.upstream_is_server(self.shared.upstream_kind == UpstreamKind::Server);
        self.observe(observer);
    }

    /// Begins an attempt of a router's at a generation request. Where no front here has it in its row, it is watched.
    pub fn watch_attempt(&mut self, endpoint: Endpoint, req_id: Option<String>) {
        let Role::Hop(worker) = &self.role else {
            return;
        };
        let came_with = self.came_with();
        let (joins, worker) = (&self.shared.joins, worker.to_string());
        let attempt = HopAttempt::begin(
            joins,
            worker.clone(),
            self.arrival,
            came_with,
            req_id.as_deref(),
        );
        self.span = Some(attempt.span());
        let alone = attempt.may_need_row();
        self.attempt = Some(attempt);
        self.at_worker = Some(self.shared.metrics.attempt_began(&worker));
        if alone {
            let id = req_id.unwrap_or_else(identity::new_request_id);
            let mut observer = Observer::new(Side::Hop, endpoint, id);
            observer
                .timeline_mut()
                .set(Moment::WorkerArrival, self.arrival);
            let facts = observer.facts_mut();
            facts.worker = Some(worker);
            facts.span = self.span;
            facts.attempts = 1;
            self.observe(observer);
        }
    }

    fn observe(&mut self, mut observer: Observer) {
        let facts = observer.facts_mut();
        self.note_trace(facts);
        facts.clock = Some(self.shared.clock_name.clone());
        if self.counts() {
            self.under_way = Some(self.shared.metrics.request_began());
        }
        self.watch = Some(Watch {
            observer,
            request_bytes: 0,
            response_bytes: 0,
            response_head: None,
            response_end: None,
        });
    }

    /// The head is about to be written upstream. Gives the `traceparent` to write, if there is to be one.
    pub fn attempt_began(&mut self) -> Option<String> {
        let now = self.shared.clock.now();
        self.forwarded = Some(now);
        self.sendings += 1;
        self.count_sending(now);
        let host = self.attempt.as_ref().and_then(|_| self.own_host());
        if let Some(attempt) = &mut self.attempt {
            attempt.forwarded(&self.shared.joins, &host.unwrap_or_default(), now);
        }
        let span = match (&self.role, self.span) {
            (Role::Hop(_), Some(span)) => span,
            _ => identity::new_span_id(),
        };
        self.span = Some(span);
        self.note_sending(span, now);
        if let Some(key) = self.joins {
            self.shared.joins.sent(key, span);
        }
        if let Some(watch) = &mut self.watch {
            watch.observer.facts_mut().span = Some(span);
            let moment = match self.role {
                Role::Front => Moment::Forwarded,
                Role::Hop(_) => Moment::WorkerForwarded,
            };
            watch.observer.timeline_mut().set(moment, now);
        }
        self.trace_parent(span)
    }

    /// An upstream connection stands; `reused` when it has served before.
    pub fn connected(&mut self, reused: bool) {
        self.shared.metrics.connected(&self.upstream, reused);
        if let Some(watch) = &mut self.watch {
            watch.observer.facts_mut().upstream_reused = Some(reused);
        }
    }

    /// A piece of the request's body was read.
    pub fn request_body(&mut self, bytes: &[u8], is_end: bool) {
        if is_end && self.request_end.is_none() {
            self.request_end = Some(self.shared.clock.now());
        }
        let Some(watch) = &mut self.watch else { return };
        watch.observer.request_body(bytes);
        watch.request_bytes += bytes.len() as u64;
        if let (Some(at), Role::Front) = (self.request_end, &self.role) {
            let timeline = watch.observer.timeline_mut();
            timeline.first(Moment::RequestEnd, at);
        }
    }

    /// Its prompt was asked for at `began`, and is known now or will never be.
    pub fn prompt_waited(&mut self, began: Stamp) {
        let nanos = self.shared.clock.now().nanos_since(began);
        self.away.client_waited_for(nanos);
        self.prompt_wait = Some(nanos);
    }

    /// The head of the final response was read.
    pub fn response_head(
        &mut self,
        status: u16,
        content_type: Option<&str>,
        encoded: bool,
        at: Stamp,
    ) {
        self.attempt_has(status, End::Complete, at);
        if let Some(watch) = &mut self.watch {
            watch.response_head = Some(at);
            let observer = &mut watch.observer;
            observer.response_head(status, content_type, encoded, at);
        }
    }

    fn attempt_has(&mut self, status: u16, end: End, at: Stamp) {
        if let Some(attempt) = &mut self.attempt {
            attempt.answered(&self.shared.joins, status, end, at);
        }
    }

    /// Who served, as far as the response's head and our own sending show.
    pub fn served_by(&mut self, hop: Option<Stamps>, smg_worker: Option<String>) {
        if let (Some(key), Some(span)) = (self.joins, hop.as_ref().and_then(|hop| hop.span)) {
            self.shared.joins.answered(key, span);
        }
        self.smg_worker = smg_worker;
        self.hop = hop;
        let host = self.host();
        if let Some(watch) = &mut self.watch {
            watch.observer.facts_mut().host = host;
            if let Some(hop) = &self.hop {
                watch.observer.stamps(hop, &self.shared.clock_name);
            }
        }
    }

    /// A piece of the response body was read from upstream.
    pub fn response_body(&mut self, bytes: &[u8], is_end: bool, at: Stamp) {
        let Some(watch) = &mut self.watch else { return };
        if bytes.is_empty() && !is_end {
            return;
        }
        let blocked = self.backpressure.blocked_at(at);
        watch.observer.response_body(bytes, at, blocked);
        watch.response_bytes += bytes.len() as u64;
        if self.role == Role::Front && !bytes.is_empty() {
            self.passage.piece(at, blocked);
        }
        // Once it streams, an event costs this one comparison.
        if self.progress != Progress::Streaming && watch.observer.is_streaming() {
            self.progress = Progress::Streaming;
            let here = self.under_way.iter_mut();
            let direct = self
                .at_worker
                .iter_mut()
                .filter(|_| self.role == Role::Front);
            here.chain(direct)
                .for_each(|under_way| under_way.enter(Progress::Streaming));
        }
        if is_end {
            watch.observer.response_end(at);
            watch.response_end = Some(at);
            self.away.over(at, self.backpressure.pending_at(at));
        }
    }

    /// We answer ourselves, as the exchange ended so. Gives the outcome that is recorded.
    pub fn answered(&mut self, status: u16, end: End) -> Outcome {
        let now = self.shared.clock.now();
        self.answered = Some(now);
        self.away.over(now, self.backpressure.pending_at(now));
        self.attempt_has(status, end.clone(), now);
        if let Some(watch) = &mut self.watch {
            watch.observer.facts_mut().status = Some(status);
        }
        judge(end, &Seen::default()).0
    }

    /// The outcome that a hop of ours gave to its own error response.
    pub fn hop_outcome(&mut self, outcome: Option<Outcome>) {
        if let Some(watch) = &mut self.watch {
            watch.observer.told(outcome);
        }
    }

    /// The one end of a request: its record goes out, once.
    pub fn ended(&mut self, end: End) {
        if self.joins.is_none() && self.watch.is_none() && self.attempt.is_none() {
            return;
        }
        let now = self.shared.clock.now();
        let stalled = self.backpressure.pending_at(now);
        let own_host = self.own_host();
        self.away.over(now, stalled);
        self.under_way = None;
        self.at_worker = None;
        let closed = self
            .joins
            .take()
            .map(|key| self.shared.joins.close(key, now));
        let watch = self.watch.take().map(|mut watch| {
            if let Some(closed) = closed {
                self.take_passage(&closed);
                self.take_attempts(&mut watch, closed);
            }
            let facts = watch.observer.facts_mut();
            facts.trace.sendings = std::mem::take(&mut self.traced.sendings);
            if watch.response_head.is_some() {
                facts.client_stall_nanos = Some(stalled);
            }
            facts.overhead_nanos = Some(self.away.rest_of(self.arrival, now, stalled));
            facts.prompt_wait_nanos = self.prompt_wait;
            if facts.host.is_none() && self.sendings > 0 {
                // It had the request, though no response came.
                facts.host.clone_from(&own_host);
            }
            watch
        });
        let at_hop = self.attempt.take();
        let ended = self.answered.unwrap_or(now);
        let bytes = watch
            .as_ref()
            .map(|watch| (watch.request_bytes, watch.response_bytes));
        let rows = watch.map(|watch| {
            let observed = watch
                .observer
                .finish(end.clone(), watch.response_end.unwrap_or(ended));
            self.related(observed, watch.response_head)
        });
        if let Some((rows, bytes)) = rows.as_ref().zip(bytes) {
            self.count_ended(rows, bytes);
        }
        let shared = &self.shared;
        let rows = match at_hop {
            Some(attempt) => {
                let host = own_host.unwrap_or_default();
                attempt.ended(shared, &host, end, now, rows)
            }
            None => rows,
        };
        if let Some(rows) = rows {
            shared.record(rows);
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let end = match *self.shared.phase.borrow() {
            Phase::Cut => End::Shutdown,
            _ => End::ProxyError("the request's task ended early".into()),
        };
        self.ended(end);
    }
}

mod attempts;
mod away;
mod backpressure;
#[cfg(test)]
mod clocks;
mod counted;
mod related;
mod stamped;
#[cfg(test)]
mod tests;
mod trace;
mod way_back;
