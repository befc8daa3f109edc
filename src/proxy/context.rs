//! One request on its way through: what was stamped, who watches, and its one end.

use std::sync::Arc;
use std::time::Duration;

use crate::client::phase::Phase;
use crate::clock::Stamp;
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

use self::timing::Timing;

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
    /// How long upstreams had it, and its client held up writes.
    pub time: Timing,
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
            progress: Progress::Receiving,
            under_way: None,
            at_worker: None,
            hop: None,
            smg_worker: None,
            upstream: String::new(),
            time: Timing::default(),
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
        self.time.sent(now);
        self.progress = Progress::Waiting;
        if let Some(under_way) = &mut self.under_way {
            under_way.enter(Progress::Waiting);
        }
        if self.sends_to_server() && self.watch.is_some() {
            // The one before is over.
            self.at_worker = None;
            self.at_worker = Some(self.shared.metrics.attempt_began(&self.upstream));
        }
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
        let label = if reused { "true" } else { "false" };
        let connections = &self.shared.metrics.connections;
        connections.with(&[&self.upstream, label]).inc();
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
        self.time.waited(nanos);
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
        let blocked = self.time.blocked_at(at);
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
            self.time.back(at);
        }
    }

    /// We answer ourselves, as the exchange ended so. Gives the outcome that is recorded.
    pub fn answered(&mut self, status: u16, end: End) -> Outcome {
        let now = self.shared.clock.now();
        self.answered = Some(now);
        self.time.back(now);
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

    /// A hop passes a piece of the response's body on that was read at `at`, after it has `held` it for a fault.
    pub fn passed_on(&mut self, is_empty: bool, is_end: bool, at: Stamp, held: Option<Duration>) {
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        let mut is_first = false;
        if !is_empty {
            let held = held.map_or(0, |held| i64::try_from(held.as_nanos()).unwrap_or(i64::MAX));
            let blocked = self.time.blocked_at(at);
            is_first = self.passage.piece(at.plus_nanos(held), blocked);
        }
        if is_first && let Some(at_worker) = &mut self.at_worker {
            at_worker.enter(Progress::Streaming);
        }
        // Before the bytes go on: the front that reads them finds it here.
        if is_end {
            attempt.passed(&self.shared.joins, self.passage, at);
        } else if is_first {
            attempt.passed(&self.shared.joins, self.passage.so_far(), at);
        }
    }

    /// Whether this listener's requests are the process's: a hop's are, where no front counts them.
    fn counts(&self) -> bool {
        self.role == Role::Front || !self.shared.joins.has_front()
    }

    /// A sending has failed; `is_resent` when there will be another.
    pub fn sending_failed(&mut self, is_resent: bool) {
        let now = self.shared.clock.now();
        self.time.back(now);
        if let Some(sending) = self.traced.sendings.last_mut() {
            sending.broke = Some(now);
        }
        if is_resent && self.sends_to_server() && self.watch.is_some() {
            let outcome = Outcome::UpstreamDied.name();
            let attempts = &self.shared.metrics.attempts;
            attempts.with(&[&self.upstream, outcome]).inc();
        }
    }

    /// Whether attempts at servers are our own sendings.
    fn sends_to_server(&self) -> bool {
        self.role == Role::Front && self.shared.upstream_kind == UpstreamKind::Server
    }

    /// What was stamped so far, for a header.
    pub fn stamps(&self) -> Stamps {
        let (attempts, failed) = match &self.attempt {
            Some(attempt) => {
                let earlier = attempt.earlier(&self.shared.joins);
                (1 + earlier.len() as u32, earlier)
            }
            None => {
                let seen = self.joins.map(|key| self.shared.joins.so_far(key));
                let (count, failed) = seen.unwrap_or_default();
                self.attempts_of(count, failed)
            }
        };
        let worker = match &self.role {
            Role::Front => None,
            Role::Hop(worker) => Some(worker.to_string()),
        };
        Stamps {
            clock: self.shared.clock_name.clone(),
            now: Some(self.shared.clock.now()),
            arrival: Some(self.arrival),
            request_end: self.request_end,
            forwarded: self.forwarded,
            host: self.host(),
            attempts: Some(attempts),
            is_direct: self.is_at_hop() || self.shared.upstream_kind == UpstreamKind::Server,
            worker,
            span: self.span,
            failed,
            hop: self.hop.clone().map(Box::new),
        }
    }

    fn host(&self) -> Option<String> {
        let hop = self.hop.as_ref().and_then(|hop| hop.host.clone());
        let smg = || self.smg_worker.clone();
        hop.or_else(smg).or_else(|| self.own_host())
    }

    /// The server that we send to ourselves, as records call it.
    fn own_host(&self) -> Option<String> {
        let given = match &self.role {
            Role::Hop(worker) => self.shared.settings.load().hosts.get(&**worker).cloned(),
            Role::Front if self.shared.upstream_kind == UpstreamKind::Server => None,
            Role::Front => return None,
        };
        let address = || (!self.upstream.is_empty()).then(|| self.upstream.clone());
        given.or_else(address)
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

#[cfg(test)]
mod clocks;
mod row;
#[cfg(test)]
mod tests;
mod timing;
mod trace;
