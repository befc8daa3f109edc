//! One request on its way through: what was stamped, who watches, and its one end.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use pingora::{Error, ErrorSource, ErrorType};
use tokio::sync::watch;

use crate::clock::{Clock, Stamp};
use crate::offset::OffsetTable;
use crate::request::endpoint::Endpoint;
use crate::request::observer::{Bound, End, Observer};
use crate::request::stamps::Stamps;
use crate::request::timeline::{ClockOf, Moment, Relation, Side};
use crate::telemetry::prometheus::Metrics;
use crate::telemetry::recorder::Recorder;

use super::answer;
use super::bounds;
use super::config::{StampsPolicy, UpstreamKind};
use super::connection::Connection;
use super::fault::desk::Faults;
use super::fault::hook::Under;
use super::identity::Trace;
use super::lifecycle::Phase;
use super::secret::Secret;

/// What all listeners of a proxy share.
#[derive(Debug)]
pub struct Shared {
    /// The proxy's clock.
    pub clock: Clock,
    /// Its name in stamps.
    pub clock_name: String,
    /// What is counted.
    pub metrics: Metrics,
    /// Where records go.
    pub recorder: Option<Recorder>,
    /// Which clients get stamps.
    pub stamps: StampsPolicy,
    /// The secret of [`StampsPolicy::Token`].
    pub stamps_token: Option<Secret>,
    /// What the admin listener asks for.
    pub admin_token: Option<Secret>,
    /// The faults that can be injected; `None` when that is off.
    pub faults: Option<Faults>,
    /// What the front's upstreams are.
    pub upstream_kind: UpstreamKind,
    /// How far other clocks are from ours: engines by `host`, hops of other processes by name.
    pub clocks: Mutex<OffsetTable>,
    /// Where the proxy is in its life.
    pub phase: watch::Sender<Phase>,
}

/// Which listener a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The one that clients speak to: it records.
    Front,
    /// One that a router speaks to: it only stamps.
    Hop,
}

/// A request between its head and its end.
#[derive(Debug)]
pub struct Context {
    shared: Arc<Shared>,
    connection: Option<Arc<Connection>>,
    role: Role,
    arrival: Stamp,
    request_end: Option<Stamp>,
    forwarded: Option<Stamp>,
    attempts: u32,
    hop: Option<Stamps>,
    /// The upstream of the present attempt, `host:port`.
    pub upstream: String,
    /// Whose turn it was; failed connections count on from there.
    pub turn: Option<usize>,
    /// Connections tried.
    pub tries: usize,
    /// The request id that we made, when the client sent none.
    pub made_id: Option<String>,
    /// The trace that the request belongs to.
    pub trace: Option<Trace>,
    /// We began the trace: the client sent none that can be continued.
    pub trace_is_new: bool,
    /// The client's connection can take another request.
    pub keeps_alive: bool,
    /// The client asked for our stamps and may have them.
    pub tells_stamps: bool,
    /// The fault that it is under.
    pub fault: Under,
    watch: Option<Watch>,
    stalled_before: i64,
}

/// The watch over a generation request, until it ends.
#[derive(Debug)]
struct Watch {
    observer: Observer,
    endpoint: Endpoint,
    /// Body bytes scanned, of whichever attempt.
    scanned: u64,
    /// Body bytes that passed in the present attempt.
    passed: u64,
    response_head: Option<Stamp>,
    response_end: Option<Stamp>,
}

impl Context {
    /// A request whose head has just been read.
    pub fn new(shared: Arc<Shared>, role: Role) -> Context {
        let arrival = shared.clock.now();
        let connection = Connection::current();
        let mut stalled_before = 0;
        if let Some(connection) = &connection {
            connection.request_began();
            stalled_before = connection.stalled_nanos();
        }
        Context {
            shared,
            connection,
            role,
            arrival,
            request_end: None,
            forwarded: None,
            attempts: 0,
            hop: None,
            upstream: String::new(),
            turn: None,
            tries: 0,
            made_id: None,
            trace: None,
            trace_is_new: false,
            keeps_alive: false,
            tells_stamps: false,
            fault: Under::default(),
            watch: None,
            stalled_before,
        }
    }

    /// Which listener the request came to.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The client's address, where it is known.
    pub fn client(&self) -> Option<IpAddr> {
        let connection = self.connection.as_ref()?;
        Some(connection.peer.ip().to_canonical())
    }

    /// Begins to watch a generation request.
    pub fn watch(&mut self, endpoint: Endpoint, req_id: String) {
        let mut observer = Observer::new(Side::Front, endpoint, req_id);
        let timeline = observer.timeline_mut();
        timeline.set(Moment::Arrival, self.arrival);
        timeline.upstream_is_server(self.shared.upstream_kind == UpstreamKind::Server);
        observer.facts_mut().trace_id = self.trace.as_ref().map(|trace| trace.id.clone());
        self.shared.metrics.request_began();
        self.watch = Some(Watch {
            observer,
            endpoint,
            scanned: 0,
            passed: 0,
            response_head: None,
            response_end: None,
        });
    }

    /// The head is about to be written upstream.
    pub fn attempt_began(&mut self) {
        let now = self.shared.clock.now();
        self.forwarded = Some(now);
        self.attempts += 1;
        if let Some(watch) = &mut self.watch {
            watch.passed = 0;
            watch.observer.timeline_mut().set(Moment::Forwarded, now);
        }
    }

    /// An upstream connection stands; `reused` when it has served before.
    pub fn connected(&mut self, reused: bool) {
        if let Some(watch) = &mut self.watch {
            watch.observer.facts_mut().upstream_reused = Some(reused);
        }
    }

    /// A piece of the request body passes. A later attempt sends it anew: what was scanned is skipped.
    pub fn request_body(&mut self, bytes: &[u8], is_end: bool) {
        if is_end && self.request_end.is_none() {
            self.request_end = Some(self.shared.clock.now());
        }
        let Some(watch) = &mut self.watch else { return };
        let known = watch.scanned.saturating_sub(watch.passed);
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        if let Some(new) = bytes.get(known..) {
            watch.observer.request_body(new);
        }
        watch.passed += bytes.len() as u64;
        watch.scanned = watch.scanned.max(watch.passed);
        if let Some(at) = self.request_end {
            let timeline = watch.observer.timeline_mut();
            timeline.first(Moment::RequestEnd, at);
        }
    }

    /// The head of the final response was read.
    pub fn response_head(&mut self, status: u16, content_type: Option<&str>, encoded: bool) {
        let at = self.shared.clock.now();
        if let Some(watch) = &mut self.watch {
            watch.response_head = Some(at);
            let observer = &mut watch.observer;
            observer.response_head(status, content_type, encoded, at);
        }
    }

    /// Who served, as far as the response's head and our own sending tell.
    pub fn served_by(&mut self, hop: Option<Stamps>, smg_worker: Option<String>) {
        let Some(watch) = &mut self.watch else { return };
        let is_server = self.shared.upstream_kind == UpstreamKind::Server;
        let own = is_server.then(|| self.upstream.clone());
        watch.observer.facts_mut().host = smg_worker.or(own);
        if let Some(hop) = &hop {
            watch.observer.stamps(hop, &self.shared.clock_name);
        }
        self.hop = hop;
    }

    /// A piece of the response body was read from upstream.
    pub fn response_body(&mut self, bytes: &[u8], is_end: bool) {
        let stalled = self.stalled_nanos();
        let Some(watch) = &mut self.watch else { return };
        if bytes.is_empty() && !is_end {
            return;
        }
        let at = self.shared.clock.now();
        watch.observer.response_body(bytes, at, stalled);
        if is_end {
            watch.response_end = Some(at);
        }
    }

    /// We answer ourselves.
    pub fn answered(&mut self, status: u16) {
        if let Some(watch) = &mut self.watch {
            watch.observer.facts_mut().status = Some(status);
        }
    }

    /// What was stamped so far, for a header.
    pub fn stamps(&self) -> Stamps {
        Stamps {
            clock: self.shared.clock_name.clone(),
            now: Some(self.shared.clock.now()),
            arrival: Some(self.arrival),
            request_end: self.request_end,
            forwarded: self.forwarded,
            host: self.host(),
            attempts: Some(self.attempts),
            is_direct: self.role == Role::Hop || self.shared.upstream_kind == UpstreamKind::Server,
            hop: self.hop.clone().map(Box::new),
        }
    }

    fn host(&self) -> Option<String> {
        let is_server = self.role == Role::Hop || self.shared.upstream_kind == UpstreamKind::Server;
        let own = (is_server && !self.upstream.is_empty()).then(|| self.upstream.clone());
        let hop = self.hop.as_ref().and_then(|hop| hop.host.clone());
        hop.or(own)
    }

    fn stalled_nanos(&self) -> i64 {
        let now = self.connection.as_ref().map_or(0, |c| c.stalled_nanos());
        now.saturating_sub(self.stalled_before)
    }

    /// The request has ended as Pingora says.
    pub fn ended(&mut self, error: Option<&Error>) {
        let end = error.map_or(End::Complete, |error| self.end_of(error));
        self.finish(end);
    }

    /// The one end of a request: its record goes out, once.
    fn finish(&mut self, end: End) {
        let stalled = self.stalled_nanos();
        let Some(watch) = self.watch.take() else {
            return;
        };
        let mut observer = watch.observer;
        let facts = observer.facts_mut();
        facts.attempts = self.attempts;
        if watch.response_head.is_some() {
            facts.client_stall_nanos = Some(stalled);
        }
        let now = self.shared.clock.now();
        let mut observed = observer.finish(end, watch.response_end.unwrap_or(now));
        let metrics = &self.shared.metrics;
        metrics.request_ended(watch.endpoint, observed.outcome());
        let clocks = self.shared.clocks.lock();
        let mut clocks = clocks.unwrap_or_else(PoisonError::into_inner);
        if let Some(hop) = self
            .hop
            .as_ref()
            .filter(|hop| hop.clock != self.shared.clock_name)
        {
            clocks.add(&hop.clock, &self.hop_bounds(hop, watch.response_head));
            if let Some(offset) = clocks.get(&hop.clock, now) {
                observed.relate(ClockOf::Hop, Relation::Apart(offset));
            }
        }
        let engine = observed.host().and_then(|host| {
            clocks.add(host, &observed.engine_bounds());
            clocks.get(host, now)
        });
        drop(clocks);
        if let Some(recorder) = &self.shared.recorder {
            recorder.record(observed.into_records(engine));
        }
    }

    /// What we sent cannot have reached the hop earlier, nor can what it sent have reached us earlier.
    fn hop_bounds(&self, hop: &Stamps, response_head: Option<Stamp>) -> Vec<Bound> {
        let reached = hop.arrival.zip(self.forwarded).map(|(theirs, ours)| Bound {
            at: ours,
            at_least: None,
            at_most: Some(theirs.nanos_since(ours)),
        });
        let returned = hop.now.zip(response_head).map(|(theirs, ours)| Bound {
            at: ours,
            at_least: Some(theirs.nanos_since(ours)),
            at_most: None,
        });
        reached.into_iter().chain(returned).collect()
    }

    fn end_of(&self, error: &Error) -> End {
        let etype = error.etype();
        if let Some(end) = bounds::end(error, self.connection.as_deref()) {
            return end;
        }
        let is_limit = matches!(
            etype,
            ErrorType::ConnectTimedout | ErrorType::ReadTimedout | ErrorType::WriteTimedout
        );
        let who = match error.esource() {
            ErrorSource::Downstream if is_limit => "the client",
            ErrorSource::Downstream if answer::is_gone(etype) => return End::ClientGone,
            ErrorSource::Downstream => {
                return End::BadRequest(format!("400 the request: {}", answer::words(etype)));
            }
            ErrorSource::Upstream => self.upstream.as_str(),
            ErrorSource::Internal | ErrorSource::Unset => {
                return End::ProxyError(format!("the proxy failed: {}", etype.as_str()));
            }
        };
        let words = format!("{who}: {}", answer::words(etype));
        if is_limit {
            End::Timeout(words)
        } else if answer::is_connect(etype) {
            End::ProxyError(words)
        } else {
            End::UpstreamDied(words)
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let end = match *self.shared.phase.borrow() {
            Phase::Cut => End::Shutdown,
            _ => End::ProxyError("the request's task ended early".into()),
        };
        self.finish(end);
        if let Some(connection) = &self.connection {
            connection.request_ended();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use std::task::Poll;
    use std::time::Duration;

    fn shared() -> (Arc<Shared>, ManualClock) {
        let (clock, hand) = Clock::manual(Stamp::from_nanos(1_000));
        let shared = Shared {
            clock_name: "ours".into(),
            clock,
            metrics: Metrics::new().unwrap(),
            recorder: None,
            stamps: StampsPolicy::Never,
            stamps_token: None,
            admin_token: None,
            faults: None,
            upstream_kind: UpstreamKind::Router,
            clocks: Mutex::new(OffsetTable::with_capacity(4)),
            phase: watch::channel(Phase::Serving).0,
        };
        (Arc::new(shared), hand)
    }

    fn context() -> (Context, ManualClock) {
        let (shared, hand) = shared();
        let mut context = Context::new(shared, Role::Front);
        context.watch(Endpoint::Generate, "id".into());
        (context, hand)
    }

    #[test]
    fn a_request_does_not_inherit_its_predecessors_stall() {
        let (shared, hand) = shared();
        let connection = Connection::unlimited(([127, 0, 0, 1], 1).into(), shared.clock.clone());
        let connection = Arc::new(connection);
        let stalls = [70, 5, 0].map(|nanos| {
            let mut context = connection.scope(|| Context::new(shared.clone(), Role::Front));
            context.watch(Endpoint::Generate, "id".into());
            context.response_head(200, None, false);
            let _ = connection.write_polled(Poll::<()>::Pending);
            hand.advance(Duration::from_nanos(nanos));
            let _ = connection.write_polled(Poll::Ready(()));
            context.response_body(b"x", true);
            let watch = context.watch.as_mut().unwrap();
            watch.observer.facts_mut().client_stall_nanos
        });
        assert_eq!(stalls, [Some(70), Some(5), Some(0)]);
    }

    #[test]
    fn a_body_that_is_sent_twice_is_scanned_once() {
        let (mut context, _) = context();
        context.attempt_began();
        context.request_body(b"{\"text\":\"a b ", false);
        context.attempt_began();
        context.request_body(b"{\"text\":", false);
        context.request_body(b"\"a b c d", false);
        context.request_body(b"\"}", true);
        let observer = context.watch.take().unwrap().observer;
        let observed = observer.finish(End::Complete, Stamp::from_nanos(2_000));
        let record = &observed.into_records(None)[0];
        assert_eq!(record.facts.input_length, Some(4));
        assert_eq!(context.attempts, 2);
    }

    #[test]
    fn a_hop_of_another_process_is_put_on_our_clock() {
        let theirs = |nanos: i64| Some(Stamp::from_nanos(5_000_000_000 + nanos));
        let hop = Stamps {
            clock: "theirs".into(),
            arrival: theirs(2_000),
            forwarded: theirs(2_500),
            now: theirs(8_000),
            ..Stamps::default()
        };
        let (mut context, hand) = context();
        context.attempt_began();
        hand.set(Stamp::from_nanos(9_000));
        context.served_by(Some(hop), None);
        context.response_head(200, None, false);
        let shared = context.shared.clone();
        context.ended(None);
        let clocks = shared.clocks.lock().unwrap();
        let offset = clocks.get("theirs", Stamp::from_nanos(9_000)).unwrap();
        let off_by = (offset.nanos - 5_000_000_000).abs();
        assert!(
            off_by <= offset.error_nanos && offset.error_nanos < 20_000,
            "{offset:?}"
        );
    }

    #[test]
    fn every_request_ends_once_whatever_ends_it() {
        let (mut context, _) = context();
        let metrics = context.shared.metrics.clone();
        assert_eq!(metrics.in_flight(), 1);
        context.ended(None);
        context.ended(None);
        drop(context);
        assert_eq!(metrics.in_flight(), 0);
        let (context, _) = self::context();
        let metrics = context.shared.metrics.clone();
        drop(context);
        assert_eq!(metrics.in_flight(), 0);
        let text = String::from_utf8(metrics.text().unwrap()).unwrap();
        assert!(text.contains("outcome=\"proxy_error\"} 1"), "{text}");
    }
}
