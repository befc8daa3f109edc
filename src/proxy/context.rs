//! One request in the proxy: its stamps, what was observed of it, and its one end.

use std::sync::Arc;

use http::HeaderMap;
use pingora::http::ResponseHeader;

use crate::client::listener::Phase;
use crate::clock::Stamp;
use crate::request::headers::labels;
use crate::request::{
    BodyTiming, End, Endpoint, FailedAttempt, MAX_FAILED, Moment, Observer, Outcome, ResponseFacts,
    Side, SpanId, Stamps, UpstreamKind, content_type, is_encoded, judge, reported_outcome,
    smg_worker,
};
use crate::telemetry::prometheus::{InFlight, RequestPhase};

use super::identity::{Trace, new_request_id};
use super::join::{SharedAttempt, SharedRequest};
use super::shared::{Role, Shared};

use self::timing::Timing;

/// A request from its head to its end.
#[derive(Debug)]
pub struct Context {
    shared: Arc<Shared>,
    role: Role,
    arrival: Stamp,
    /// What the header of our stamps says of it so far: the ends of its body, our span, the last sending, the upstreams before the
    /// current one that could not be connected to; of the response, the server that its head named and the stamps that a hop wrote.
    so_far: Stamps,
    /// The attempt to connect to the current upstream, if it failed.
    unconnected: Option<FailedAttempt>,
    /// Counts it as in flight.
    in_flight: Option<InFlight>,
    /// Counts the current attempt at a server as in flight.
    attempt_in_flight: Option<InFlight>,
    /// The upstream of the current attempt, `host:port`.
    pub upstream: String,
    /// Whether that is a front's server, and no hop of this process, which reports its attempts itself.
    is_at_server: bool,
    /// How long upstreams had it, and how long its client delayed writes.
    pub timing: Timing,
    /// The trace that the request belongs to.
    pub trace: Option<Trace>,
    /// What attempts are joined to: at a front with hops in this process, or at a hop in a process without a front.
    request: Option<SharedRequest>,
    /// At a hop: its attempt.
    attempt: Option<SharedAttempt>,
    /// At a hop: the response of `/server_info`.
    server_info: Option<Vec<u8>>,
    /// When the body of the response passed here.
    body_timing: BodyTiming,
    /// What is recorded of a generation request, until it ends.
    observer: Option<Box<Observer>>,
    /// At a hop whose front has had it in a row since it arrived: only the body's room is read and, of a prefill server, the response.
    is_leg: bool,
    /// Body bytes of the request that were read.
    pub request_bytes: u64,
    /// Body bytes of the response.
    response_bytes: u64,
    /// When the last of the response was read, or we answered ourselves; the client may still be sending.
    response_end: Option<Stamp>,
    is_streaming: bool,
}

impl Context {
    /// Creates the context of a request whose head was read at `arrival`.
    pub fn new(shared: Arc<Shared>, role: Role, arrival: Stamp) -> Context {
        Context {
            shared,
            role,
            arrival,
            so_far: Stamps::default(),
            unconnected: None,
            in_flight: None,
            attempt_in_flight: None,
            upstream: String::new(),
            is_at_server: false,
            timing: Timing::default(),
            trace: None,
            request: None,
            attempt: None,
            server_info: None,
            body_timing: BodyTiming::default(),
            observer: None,
            is_leg: false,
            request_bytes: 0,
            response_bytes: 0,
            response_end: None,
            is_streaming: false,
        }
    }

    /// Takes over the trace that the request carries; a generation request without one begins a trace. A front decides on the
    /// sampled flag that is sent upstream; a hop leaves that of a trace that it received.
    pub fn begin_trace(&mut self, headers: &HeaderMap, generates: bool) {
        let received = Trace::of(headers);
        self.trace = received.or_else(|| generates.then(Trace::random));
        if let Some(trace) = &mut self.trace
            && (received.is_none() || self.role == Role::Front)
        {
            let telemetry = &self.shared.telemetry;
            let (received, flag) = (trace.received_sampled, &telemetry.upstream_flag);
            trace.sample(flag.is_sent(received, trace.id, telemetry.ratio));
        }
    }

    /// Starts recording a generation request. At a hop whose front here writes the row, only the leg of a
    /// pair is recorded.
    pub fn start_recording(&mut self, endpoint: Endpoint, id: Option<&str>, headers: &HeaderMap) {
        let (side, arrived) = match self.role {
            Role::Front => (Side::Front, Moment::Arrival),
            Role::Hop(_) => (Side::Hop, Moment::WorkerArrival),
        };
        self.join_attempt(id);
        self.is_leg = self.attempt_data().is_some_and(|attempt| attempt.is_joined);
        if self.is_leg {
            let worker = self.role.worker();
            if worker.is_some_and(|worker| self.shared.role(worker) != Some(None)) {
                self.observer = Some(Box::new(Observer::new(Side::Hop, endpoint, String::new())));
            }
            return;
        }
        let id = id.map_or_else(new_request_id, str::to_owned);
        let config = self.shared.config.load();
        if side == Side::Front && !config.workers.is_empty() {
            let span = SpanId::random();
            self.so_far.span = Some(span);
            self.request = Some(self.shared.joins.open(&id, span));
        }
        let mut observer = Box::new(Observer::new(side, endpoint, id));
        let row = observer.row_mut();
        row.timeline.set(arrived, self.arrival);
        if side == Side::Front {
            let is_server = config.upstream_kind == UpstreamKind::Server;
            row.timeline.upstream_is_server(is_server);
        }
        row.labels = labels(headers, &config.label_headers);
        row.process = Some(self.shared.clock_name.clone());
        row.worker = self.role.worker().map(str::to_owned);
        row.span_id = self.attempt_data().map(|attempt| attempt.span);
        row.attempts = Some(1);
        if let Some(trace) = &self.trace {
            row.trace_id = Some(trace.id_text());
            row.parent_span_id = trace.parent;
            row.internal.trace.sent_sampled = trace.is_sampled();
            row.internal.trace.received_sampled = trace.received_sampled;
        }
        if self.is_counted() {
            self.in_flight = Some(self.shared.metrics.begin_request());
        }
        self.observer = Some(observer);
    }

    /// Takes a piece of the request's body.
    pub fn request_body(&mut self, bytes: &[u8], is_end: bool) {
        self.request_bytes += bytes.len() as u64;
        let end = &mut self.so_far.request_end;
        if is_end && end.is_none() {
            *end = Some(self.shared.clock.now());
        }
        let Some(observer) = &mut self.observer else {
            return;
        };
        observer.request_body(bytes);
        let room = observer.room();
        if self.role == Role::Front {
            let timeline = &mut observer.row_mut().timeline;
            timeline.set(Moment::RequestEnd, self.so_far.request_end);
        }
        if room.is_some() || (is_end && self.is_leg) {
            self.room_read(room);
        }
    }

    /// The prompt, read since `began`, is known or cannot be.
    pub fn prompt_read(&mut self, began: Stamp) {
        let nanos = self.exclude_since(began);
        if let Some(observer) = &mut self.observer {
            observer.row_mut().prompt_wait = Some(nanos);
        }
    }

    /// The request waits for `max_concurrent_requests`, from now on.
    pub fn begin_queueing(&mut self) -> Stamp {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.enter(RequestPhase::Waiting);
        }
        self.shared.clock.now()
    }

    /// Leaves the time since `began`, when nothing was sent, out of the proxy's own. Returns its nanoseconds.
    pub fn exclude_since(&mut self, began: Stamp) -> i64 {
        self.timing.upstream_ended(began);
        let nanos = self.shared.clock.now().nanos_since(began);
        self.timing.exclude(nanos);
        nanos
    }

    /// The server had failed, and the rest of the body was read since `began` for its room: that time is not the attempt's.
    pub fn room_wait_ended(&mut self, began: Stamp) {
        self.exclude_since(began);
        if let Some(mut attempt) = self.attempt_data() {
            attempt.ended.get_or_insert(began);
        }
        self.response_end.get_or_insert(began);
    }

    /// Takes the head of the final response, read at `at`, and the stamps of a hop of ours that were on it.
    pub fn response_head(&mut self, head: &ResponseHeader, hop: Option<Stamps>, at: Stamp) {
        let status = head.status.as_u16();
        self.set_attempt_status(status, outcome_of(End::Complete, Some(status)), at);
        if let (Some(request), Some(span)) = (&self.request, hop.as_ref().and_then(|hop| hop.span))
        {
            request.lock().answered_by = Some(span);
        }
        let by_hop = hop.as_ref().and_then(|hop| hop.host.clone());
        self.so_far.host = by_hop.or_else(|| match self.role {
            Role::Front => smg_worker(&head.headers),
            Role::Hop(_) => None,
        });
        self.so_far.hop = hop.map(Box::new);
        let host = self.so_far.host.clone().or_else(|| self.own_host());
        let Some(observer) = &mut self.observer else {
            return;
        };
        observer.row_mut().host = host;
        if let Some(hop) = &self.so_far.hop {
            observer.reported_outcome = reported_outcome(&head.headers);
            observer.stamps(hop, &self.shared.clock_name);
        }
        let kind = content_type(&head.headers);
        observer.response_head(status, kind, is_encoded(&head.headers), at);
    }

    /// Sets the status of a hop's attempt, and ends one that failed: the router may send the next before we have closed this one.
    fn set_attempt_status(&self, status: u16, outcome: Outcome, at: Stamp) {
        let Some(mut attempt) = self.attempt_data() else {
            return;
        };
        attempt.status = Some(status);
        if !attempt.has_answered() {
            attempt.ended.get_or_insert(at);
            attempt.outcome = Some(outcome);
        }
    }

    /// Takes a piece of the response's body, read from upstream at `at`.
    pub fn response_body(&mut self, bytes: &[u8], is_end: bool, at: Stamp) {
        self.read_server_info(bytes, is_end);
        if bytes.is_empty() && !is_end {
            return;
        }
        let paused = self.timing.read_paused_at(at);
        let is_first = !bytes.is_empty() && self.body_timing.piece(at, paused);
        if let Some(attempt) = &self.attempt
            && (is_first || is_end)
        {
            // Before the bytes are sent: the front that reads them finds it here.
            attempt.lock().body_timing = match is_end {
                true => self.body_timing,
                false => self.body_timing.so_far(),
            };
        }
        if let Some(in_flight) = self.attempt_in_flight.as_mut().filter(|_| is_first) {
            in_flight.enter(RequestPhase::Streaming);
        }
        let Some(observer) = &mut self.observer else {
            return;
        };
        observer.response_body(bytes, at, paused);
        self.response_bytes += bytes.len() as u64;
        // Once it streams, an event costs this one comparison.
        if !self.is_streaming
            && let Some(response) = observer.response()
        {
            let joins = &self.shared.joins;
            for id in response.engine_ids() {
                match (&self.attempt, &self.request) {
                    (Some(attempt), _) => joins.add_response_id(attempt, id, at),
                    (None, Some(request)) => joins.response_read(request, id),
                    (None, None) => {}
                }
            }
            self.is_streaming = response.is_streaming();
            if let Some(in_flight) = self.in_flight.as_mut().filter(|_| self.is_streaming) {
                in_flight.enter(RequestPhase::Streaming);
            }
        }
        if is_end {
            observer.response_end(at);
            self.response_end = Some(at);
            self.timing.upstream_ended(at);
        }
    }

    /// The proxy answers itself, for an exchange with that outcome.
    pub fn answer(&mut self, status: u16, outcome: Outcome) {
        let now = self.shared.clock.now();
        self.timing.upstream_ended(now);
        self.set_attempt_status(status, outcome, now);
        if let Some(observer) = &mut self.observer {
            self.response_end.get_or_insert(now);
            observer.row_mut().status = Some(status.into());
        }
    }

    /// Whether the process counts the requests of this listener: those of a hop only where there is no front.
    pub fn is_counted(&self) -> bool {
        self.role == Role::Front || !self.shared.joins.has_front
    }

    /// Whether this is a front whose upstreams are servers, or hops of its own before them.
    fn is_before_servers(&self) -> bool {
        self.role == Role::Front && self.shared.is_before_servers()
    }

    /// Returns what was stamped so far, for a header.
    pub fn stamps(&self) -> Stamps {
        // A hop's own is the one that answers.
        let own = self.attempt_data().map(|attempt| attempt.span);
        let seen = self.request.as_ref();
        let seen = seen.map(|request| request.lock().attempts(own));
        let seen = seen.unwrap_or_default();
        let (attempts, failed) = self.attempts_of(seen.count, seen.failed);
        let (worker, so_far) = (self.role.worker(), self.so_far.clone());
        Stamps {
            clock: self.shared.clock_name.clone(),
            now: Some(self.shared.clock.now()),
            arrival: Some(self.arrival),
            host: so_far.host.or_else(|| self.own_host()),
            attempts: Some(attempts),
            joins_engine: self.shared.engine.is_some(),
            is_direct: worker.is_some() || self.shared.is_before_servers(),
            worker: worker.map(str::to_owned),
            room: self.attempt_data().and_then(|attempt| attempt.room),
            failed,
            ..so_far
        }
    }

    /// Returns the number of attempts and the failed ones: from what hops of this process saw, what a hop elsewhere reported, and
    /// how often we tried ourselves.
    fn attempts_of(&self, seen: u32, mut failed: Vec<FailedAttempt>) -> (u32, Vec<FailedAttempt>) {
        let before = &self.so_far.failed;
        let own = before.len() as u32 + u32::from(self.has_tried_upstream());
        let hop = self.so_far.hop.as_ref();
        let at_hop = hop.map_or(0, |hop| hop.attempts.unwrap_or(1));
        if failed.is_empty() {
            let others = before.iter().chain(hop.iter().flat_map(|hop| &hop.failed));
            failed.extend(others.take(MAX_FAILED).cloned());
        }
        (seen.max(own).max(at_hop), failed)
    }

    /// Whether the current upstream got the request, or took no connection for it.
    fn has_tried_upstream(&self) -> bool {
        self.so_far.forwarded.is_some() || self.unconnected.is_some()
    }

    /// Returns the server that we send to ourselves, as records name it.
    fn own_host(&self) -> Option<String> {
        let config = self.shared.config.load();
        let worker = self.role.worker().and_then(|name| config.worker(name));
        let named = worker.and_then(|worker| worker.host.clone());
        let is_server = self.role != Role::Front || self.is_before_servers();
        let is_known = is_server && !self.upstream.is_empty();
        named.or_else(|| is_known.then(|| self.upstream.clone()))
    }

    /// The end of a request that is cut off.
    fn cut_off(&self) -> End {
        let reason = match *self.shared.phase.borrow() {
            Phase::Aborting => "the process shut down",
            _ => "the request's task ended early",
        };
        End::Failed(Outcome::ProxyError, reason.to_owned())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.end(self.cut_off());
    }
}

fn outcome_of(end: End, status: Option<u16>) -> Outcome {
    let seen = ResponseFacts {
        status,
        ..ResponseFacts::default()
    };
    judge(end, &seen).0
}

mod attempt;
mod row;
#[cfg(test)]
mod tests;
mod timing;
