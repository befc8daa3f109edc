//! One request on its way through: what was stamped, who watches, and its one end.

use std::sync::Arc;

use http::HeaderMap;
use pingora::http::ResponseHeader;

use crate::client::phase::Phase;
use crate::clock::Stamp;
use crate::request::attempt::{Failed, SpanId};
use crate::request::endpoint::Endpoint;
use crate::request::head::{content_type, is_encoded, labels, smg_worker, told_outcome};
use crate::request::observer::{End, Observer};
use crate::request::outcome::{Outcome, Seen, judge};
use crate::request::passage::Passage;
use crate::request::stamps::Stamps;
use crate::request::timeline::{Moment, Side};
use crate::telemetry::prometheus::{Progress, UnderWay};

use super::identity::{Trace, new_request_id};
use super::join::{HopAttempt, Joined};
use super::legs::{SHOWN, ServerInfo};
use super::shared::{Role, Shared};

use self::timing::Timing;

/// A request between its head and its end.
#[derive(Debug)]
pub struct Context {
    shared: Arc<Shared>,
    role: Role,
    arrival: Stamp,
    request_end: Option<Stamp>,
    forwarded: Option<Stamp>,
    /// How many times we sent it upstream.
    sendings: u32,
    /// How many servers could not be connected to for it.
    unconnected: u32,
    /// It is in flight.
    under_way: Option<UnderWay>,
    /// So is an attempt at a server.
    at_worker: Option<UnderWay>,
    hop: Option<Stamps>,
    /// The server that a response's head named.
    named: Option<String>,
    /// The upstream of the present attempt, `host:port`.
    pub upstream: String,
    /// How long upstreams had it, and its client held up writes.
    pub time: Timing,
    /// The trace that the request belongs to.
    pub trace: Option<Trace>,
    /// Our own span of the present attempt.
    span: Option<SpanId>,
    /// The front's request, as attempts at hops of this process find it.
    joined: Option<Joined>,
    /// The hop's attempt.
    attempt: Option<HopAttempt>,
    /// The hop's reading of what its server is.
    info: Option<ServerInfo>,
    /// When the body of the response passed here.
    passage: Passage,
    watch: Option<Box<Watch>>,
}

/// The watch over a generation request, until it ends.
#[derive(Debug)]
struct Watch {
    observer: Observer,
    /// At a hop whose front has the row: it may be one of two legs. So many bytes of the reply tell.
    leg: Option<u64>,
    /// Body bytes of the request.
    request_bytes: u64,
    /// Body bytes of the response.
    response_bytes: u64,
    /// The last of the response was read, or we answered ourselves: the client may still be sending.
    response_end: Option<Stamp>,
    is_streaming: bool,
}

impl Watch {
    #[inline]
    fn over(observer: Observer, leg: Option<u64>) -> Box<Watch> {
        Box::new(Watch {
            observer,
            leg,
            request_bytes: 0,
            response_bytes: 0,
            response_end: None,
            is_streaming: false,
        })
    }
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
            sendings: 0,
            unconnected: 0,
            under_way: None,
            at_worker: None,
            hop: None,
            named: None,
            upstream: String::new(),
            time: Timing::default(),
            trace: None,
            span: None,
            joined: None,
            attempt: None,
            info: None,
            passage: Passage::default(),
            watch: None,
        }
    }

    /// Takes on the trace that a request came in, or begins one where it `generates`. Its sampled flag is set as it goes
    /// upstream; a hop leaves that of a trace that came.
    pub fn begin_trace(&mut self, headers: &HeaderMap, generates: bool) {
        let came = Trace::of(headers);
        self.trace = came.or_else(|| generates.then(Trace::random));
        if let Some(trace) = &mut self.trace
            && (came.is_none() || self.role == Role::Front)
        {
            let telemetry = &self.shared.telemetry;
            trace.sample(telemetry.samples_upstream(trace.came_sampled, trace.id));
        }
    }

    /// Begins to watch a generation request; at a hop an attempt of a router's at one, where no front here has it in its row.
    pub fn watch(&mut self, endpoint: Endpoint, id: Option<&str>, headers: &HeaderMap) {
        let (side, arrived) = match self.role {
            Role::Front => (Side::Front, Moment::Arrival),
            Role::Hop(_) => (Side::Hop, Moment::WorkerArrival),
        };
        self.begin_attempt(id);
        if self.attempt.as_ref().is_some_and(|one| !one.needs_row) {
            if let Role::Hop(worker) = &self.role
                && self.shared.may_have_legs(worker)
            {
                self.watch = Some(Watch::over(Observer::of_leg(endpoint), Some(SHOWN)));
            }
            return;
        }
        let id = id.map_or_else(new_request_id, str::to_owned);
        let config = self.shared.config.load();
        if side == Side::Front && !config.workers.is_empty() {
            self.joined = self.shared.joins.open(&id);
        }
        let mut watch = Watch::over(Observer::new(side, endpoint, id), None);
        let observer = &mut watch.observer;
        let timeline = observer.timeline_mut();
        timeline.set(arrived, self.arrival);
        if side == Side::Front {
            timeline.upstream_is_server(self.shared.is_before_servers());
        }
        let row = observer.row_mut();
        row.labels = labels(headers, &config.label_headers);
        row.process = Some(self.shared.clock_name.clone());
        if let Role::Hop(worker) = &self.role {
            row.worker = Some(worker.to_string());
            row.span_id = self.span;
            row.attempts = Some(1);
        }
        if let Some(trace) = &self.trace {
            row.trace_id = Some(trace.id_text());
            row.parent_span_id = trace.parent;
            row.more.trace.sent_sampled = trace.is_sampled();
            row.more.trace.came_sampled = trace.came_sampled;
        }
        if self.counts() {
            self.under_way = Some(self.shared.metrics.request_began());
        }
        self.watch = Some(watch);
    }

    /// A piece of the request's body was read.
    pub fn request_body(&mut self, bytes: &[u8], is_end: bool) {
        if is_end && self.request_end.is_none() {
            self.request_end = Some(self.shared.clock.now());
        }
        let Some(watch) = &mut self.watch else { return };
        watch.observer.request_body(bytes);
        let room = watch.observer.room().filter(|_| self.role != Role::Front);
        watch.request_bytes += bytes.len() as u64;
        if let (Some(at), Role::Front) = (self.request_end, &self.role) {
            let timeline = watch.observer.timeline_mut();
            timeline.first(Moment::RequestEnd, at);
        }
        if room.is_some() || (is_end && watch.leg.is_some()) {
            self.room_read(room);
        }
    }

    /// Its prompt was asked for at `began`, and is known now or will never be.
    pub fn prompt_waited(&mut self, began: Stamp) {
        let nanos = self.waited(began);
        if let Some(watch) = &mut self.watch {
            watch.observer.row_mut().prompt_wait = Some(nanos);
        }
    }

    /// It is held back for others to end, from now on.
    pub fn waits_for_turn(&mut self) -> Stamp {
        if let Some(under_way) = &mut self.under_way {
            under_way.enter(Progress::Waiting);
        }
        self.shared.clock.now()
    }

    /// Its client or others were waited for since `began`, before a sending: so many nanoseconds.
    pub fn waited(&mut self, began: Stamp) -> i64 {
        let nanos = self.shared.clock.now().nanos_since(began);
        self.time.waited(nanos);
        nanos
    }

    /// The head of the final response was read at `at`, with these stamps of a hop of ours on it.
    pub fn response_head(&mut self, head: &ResponseHeader, hop: Option<Stamps>, at: Stamp) {
        let status = head.status.as_u16();
        self.attempt_has(status, End::Complete, at);
        if let (Some(joined), Some(span)) = (&self.joined, hop.as_ref().and_then(|hop| hop.span)) {
            joined.answered(span);
        }
        let by_hop = hop.as_ref().and_then(|hop| hop.host.clone());
        self.named = by_hop.or_else(|| match self.role {
            Role::Front => smg_worker(&head.headers),
            Role::Hop(_) => None,
        });
        self.hop = hop;
        let host = self.host();
        let prefills = self.told().is_some_and(|told| !told.may_answer());
        let Some(watch) = &mut self.watch else { return };
        if prefills {
            watch.leg = watch.leg.map(|_| u64::MAX);
        }
        let observer = &mut watch.observer;
        observer.row_mut().host = host;
        if let Some(hop) = &self.hop {
            observer.told(told_outcome(&head.headers));
            observer.stamps(hop, &self.shared.clock_name);
        }
        let kind = content_type(&head.headers);
        observer.response_head(status, kind, is_encoded(&head.headers), at);
    }

    /// A response's head came, or we answer ourselves for what `end` says. An error's attempt is over for the
    /// router, which may have sent the next one before we have closed this one.
    fn attempt_has(&self, status: u16, end: End, at: Stamp) {
        let Some(mut told) = self.told() else { return };
        told.status = Some(status);
        if !told.has_answered() {
            told.ended.get_or_insert(at);
            told.outcome = Some(judged(end, told.status));
        }
    }

    /// A piece of the response body was read from upstream.
    pub fn response_body(&mut self, bytes: &[u8], is_end: bool, at: Stamp) {
        self.server_info(bytes, is_end);
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
        if !watch.is_streaming {
            let joins = &self.shared.joins;
            for id in watch.observer.server_ids() {
                match (&self.joined, &self.attempt) {
                    (Some(joined), _) => joins.replied(joined, id),
                    (None, Some(attempt)) => joins.has_reply(attempt, id, at),
                    (None, None) => {}
                }
            }
        }
        if !watch.is_streaming && watch.observer.is_streaming() {
            watch.is_streaming = true;
            let here = self.under_way.iter_mut();
            let at_worker = self.at_worker.iter_mut();
            let direct = at_worker.filter(|_| self.role == Role::Front);
            here.chain(direct)
                .for_each(|under_way| under_way.enter(Progress::Streaming));
        }
        if is_end {
            watch.observer.response_end(at);
            watch.response_end = Some(at);
            self.time.back(at);
        }
        let read = watch.response_bytes;
        if watch.leg.is_some_and(|most| is_end || read >= most) {
            self.leg_ended(at);
        }
    }

    /// We answer ourselves, as the exchange ended so. Gives the outcome that is recorded.
    pub fn answered(&mut self, status: u16, end: End) -> Outcome {
        let now = self.shared.clock.now();
        self.time.back(now);
        self.attempt_has(status, end.clone(), now);
        if let Some(watch) = &mut self.watch {
            watch.response_end.get_or_insert(now);
            watch.observer.row_mut().status = Some(status.into());
        }
        judged(end, None)
    }

    /// A hop passes a piece of the response's body on that was read at `at`, or held for a fault until then.
    pub fn passed_on(&mut self, is_empty: bool, is_end: bool, at: Stamp) {
        let Some(attempt) = &self.attempt else { return };
        let mut is_first = false;
        if !is_empty {
            let blocked = self.time.blocked_at(at);
            is_first = self.passage.piece(at, blocked);
        }
        // Before the bytes go on: the front that reads them finds it here.
        if is_end {
            attempt.told.lock().passage = self.passage;
        } else if is_first {
            attempt.told.lock().passage = self.passage.so_far();
        }
        if is_first && let Some(at_worker) = &mut self.at_worker {
            at_worker.enter(Progress::Streaming);
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
        let sends_to_server = self.sends_to_server();
        let Some(watch) = &mut self.watch else { return };
        if let Some(sending) = watch.observer.row_mut().more.trace.sendings.last_mut() {
            sending.broke = Some(now);
        }
        if is_resent && sends_to_server {
            let outcome = Outcome::UpstreamDied.name();
            let attempts = &self.shared.metrics.attempts;
            attempts.with(&[&self.upstream, outcome]).inc();
        }
    }

    /// Whether attempts at servers are our own sendings.
    fn sends_to_server(&self) -> bool {
        self.role == Role::Front && self.shared.is_before_servers()
    }

    /// What was stamped so far, for a header.
    pub fn stamps(&self) -> Stamps {
        let (attempts, failed) = match &self.attempt {
            Some(attempt) => attempt.so_far(),
            None => {
                let seen = self.joined.as_ref().map(Joined::so_far);
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
            joins_engine: self.shared.engine.is_some(),
            is_direct: worker.is_some() || self.shared.is_before_servers(),
            worker,
            span: self.span,
            room: self.told().and_then(|told| told.room),
            failed,
            hop: self.hop.clone().map(Box::new),
        }
    }

    /// The number of attempts and the failed ones, from what hops here saw, what a hop elsewhere reported, and our
    /// own sendings.
    fn attempts_of(&self, seen: u32, failed: Vec<Failed>) -> (u32, Vec<Failed>) {
        let count = seen.max(self.sendings + self.unconnected);
        let Some(hop) = &self.hop else {
            return (count, failed);
        };
        let count = count.max(hop.attempts.unwrap_or(1));
        match failed.is_empty() {
            true => (count, hop.failed.clone()),
            false => (count, failed),
        }
    }

    fn host(&self) -> Option<String> {
        self.named.clone().or_else(|| self.own_host())
    }

    /// The server that we send to ourselves, as records call it.
    fn own_host(&self) -> Option<String> {
        let given = match &self.role {
            Role::Hop(worker) => {
                let config = self.shared.config.load();
                config.worker(worker).and_then(|worker| worker.host.clone())
            }
            Role::Front if self.shared.is_before_servers() => None,
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

fn judged(end: End, status: Option<u16>) -> Outcome {
    let seen = Seen {
        status,
        ..Seen::default()
    };
    judge(end, &seen).0
}

mod attempt;
#[cfg(test)]
mod clocks;
mod leg;
mod row;
#[cfg(test)]
mod tests;
mod timing;
