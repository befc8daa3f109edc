//! A client's connection: its bytes, waits and stalls counted, and its life from request to request.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use pingora::apps::{HttpServerApp, ReusedHttpStream};
use pingora::protocols::http::ServerSession;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};

use crate::clock::Clock;
use crate::telemetry::prometheus::Limit;

use super::door::Door;
use super::fault::desk::{Accepted, WorkerFaults};
use super::lifecycle::{Listener, Phase};
use super::shared::{Role, Shared};
use super::tls::Tls;

mod farewell;
mod stream;
mod waits;

use farewell::{abort, turn_away};
use stream::{ClientStream, Io, Wire};
use waits::Waits;

/// What is known of a client's connection.
#[derive(Debug)]
pub struct Connection {
    /// Who is at the other end.
    pub peer: SocketAddr,
    clock: Clock,
    limits: ClientLimits,
    /// Bytes read since the last request.
    unclaimed: AtomicU64,
    in_request: AtomicBool,
    /// Writes that the client holds up.
    stalled: Waits,
    /// Reads for which nothing has come.
    waited: Waits,
    /// Both sums when the present request began.
    stalled_before: AtomicI64,
    waited_before: AtomicI64,
    ending: OnceLock<Ending>,
    ended: Notify,
    io: Mutex<Option<Io>>,
    /// It might have been refused by a fault, and has not sent a request since.
    is_spared: AtomicBool,
}

/// How a listener takes its clients.
#[derive(Debug)]
pub struct Clients {
    /// What the listeners share: the front's certificate is there.
    shared: Arc<Shared>,
    role: Role,
    door: Door,
    faults: Option<Arc<WorkerFaults>>,
}

/// What one connection may take.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Bytes of a request's head.
    pub head_bytes: u64,
    /// From a head's first byte to its last; for a TLS handshake too.
    pub head: Duration,
    /// For which the writes of one response may be held up, in sum.
    pub stall: Duration,
}

/// Why a connection ends that Pingora would let go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The head of a request is over its limit in bytes.
    HeadTooLarge,
    /// The head of a request is over its limit in time.
    HeadTooSlow,
    /// The client holds up a response over its limit.
    ResponseTooSlow,
    /// An injected fault: a reset.
    Reset,
    /// An injected fault: the response ends within its body.
    Cut,
}

tokio::task_local! {
    /// The connection that the present task serves.
    static CONNECTION: Arc<Connection>;
}

/// Bytes that a client's socket holds unsent at most. A kernel takes megabytes, and tells that there is room again
/// when a third of them has gone: a client that reads on steadily would look as if it took nothing.
const UNSENT: u32 = 131_072;

impl Clients {
    /// Those of a listener of this role.
    pub fn of(role: &Role, shared: &Arc<Shared>) -> Clients {
        let most = shared.settings.load().limits.connections;
        Clients {
            shared: shared.clone(),
            role: role.clone(),
            door: Door::new(shared.limits_clients_of(role).then_some(most)),
            faults: shared.faults_of(role),
        }
    }

    /// The present limits on a connection.
    fn limits(&self) -> ClientLimits {
        let is_limited = self.shared.limits_clients_of(&self.role);
        self.shared.settings.load().limits.client(is_limited)
    }

    fn tls(&self) -> Option<&Tls> {
        let is_front = self.role == Role::Front;
        self.shared.tls.as_ref().filter(|_| is_front)
    }
}

impl Ending {
    /// Whether the client gets an answer yet, which Pingora cannot give.
    fn has_answer(self) -> bool {
        matches!(self, Ending::HeadTooLarge | Ending::HeadTooSlow)
    }

    /// Whether the connection ends by a reset, so that the kernel holds nothing for a client that does not read.
    fn resets(self) -> bool {
        matches!(self, Ending::ResponseTooSlow | Ending::Reset)
    }

    /// Whether the connection's task must end it, as no error of a read or write will.
    fn is_abrupt(self) -> bool {
        self != Ending::ResponseTooSlow
    }

    fn limit(self) -> Option<Limit> {
        match self {
            Ending::HeadTooLarge => Some(Limit::HeadBytes),
            Ending::HeadTooSlow => Some(Limit::HeadTime),
            Ending::ResponseTooSlow => Some(Limit::Stall),
            Ending::Reset | Ending::Cut => None,
        }
    }
}

impl Connection {
    fn new(peer: SocketAddr, clock: Clock, limits: ClientLimits) -> Connection {
        Connection {
            peer,
            clock,
            limits,
            unclaimed: AtomicU64::new(0),
            in_request: AtomicBool::new(false),
            stalled: Waits::new(),
            waited: Waits::new(),
            stalled_before: AtomicI64::new(0),
            waited_before: AtomicI64::new(0),
            ending: OnceLock::new(),
            ended: Notify::new(),
            io: Mutex::new(None),
            is_spared: AtomicBool::new(false),
        }
    }

    /// A connection that may take anything.
    #[cfg(test)]
    pub fn unlimited(peer: SocketAddr, clock: Clock) -> Connection {
        let limits = ClientLimits {
            head_bytes: u64::MAX,
            head: Duration::MAX,
            stall: Duration::MAX,
        };
        Connection::new(peer, clock, limits)
    }

    /// The connection that this task serves; `None` outside [`serve`].
    pub fn current() -> Option<Arc<Connection>> {
        CONNECTION.try_with(Arc::clone).ok()
    }

    /// Does what [`serve`] would do, as a task that serves this connection.
    #[cfg(test)]
    pub fn scope<T>(self: &Arc<Self>, does: impl FnOnce() -> T) -> T {
        CONNECTION.sync_scope(self.clone(), does)
    }

    /// A request's head was read: the bytes so far belong to it.
    pub fn request_began(&self) {
        self.unclaimed.store(0, Ordering::Relaxed);
        self.in_request.store(true, Ordering::Relaxed);
        let waited = self.waited.nanos(&self.clock);
        self.waited_before.store(waited, Ordering::Relaxed);
        let stalled = self.stalled_nanos();
        self.stalled_before.store(stalled, Ordering::Relaxed);
    }

    /// The request is over.
    pub fn request_ended(&self) {
        self.in_request.store(false, Ordering::Relaxed);
        self.unclaimed.store(0, Ordering::Relaxed);
    }

    /// Nanoseconds for which writes to this client were held up since it connected, the present one
    /// included.
    pub fn stalled_nanos(&self) -> i64 {
        self.stalled.nanos(&self.clock)
    }

    /// The same since the present request began.
    pub fn stalled_in_request(&self) -> i64 {
        let before = self.stalled_before.load(Ordering::Relaxed);
        self.stalled_nanos().saturating_sub(before)
    }

    /// How long the present request's body was waited for, in sum. Only while a body is being read: after it
    /// the connection is read too, so as to see the client leave.
    pub fn waited_for_body(&self) -> Duration {
        let before = self.waited_before.load(Ordering::Relaxed);
        duration(self.waited.nanos(&self.clock).saturating_sub(before))
    }

    /// Whether a fault spared this connection just before its first request, which this is.
    pub fn take_spared(&self) -> bool {
        self.is_spared.swap(false, Ordering::Relaxed)
    }

    /// Why this connection ends, once that is so.
    pub fn ending(&self) -> Option<Ending> {
        self.ending.get().copied()
    }

    /// Ends this connection; the first reason counts.
    pub fn end(&self, ending: Ending) {
        if self.ending.set(ending).is_ok() && ending.is_abrupt() {
            self.ended.notify_one();
        }
    }

    /// Bytes of a head that has begun and not ended.
    fn part_of_head(&self) -> Option<u64> {
        let bytes = self.unclaimed.load(Ordering::Relaxed);
        (bytes > 0 && self.is_idle()).then_some(bytes)
    }

    /// Not in a request. Part of a head is none yet: a client must not hold up the end with it.
    fn is_idle(&self) -> bool {
        !self.in_request.load(Ordering::Relaxed)
    }

    fn read_polled(&self, is_ready: bool, bytes: u64) {
        self.waited.polled(is_ready, &self.clock);
        self.unclaimed.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn write_polled<T>(&self, poll: Poll<T>) -> Poll<T> {
        self.stalled.polled(poll.is_ready(), &self.clock);
        poll
    }

    /// How long the client may still hold up this response; `None` when that is used up.
    fn stall_left(&self) -> Option<Duration> {
        if self.limits.stall == Duration::MAX {
            return Some(Duration::MAX);
        }
        let stalled = duration(self.stalled_in_request());
        let left = self.limits.stall.checked_sub(stalled)?;
        (!left.is_zero()).then_some(left)
    }

    fn put_back(&self, io: Io) {
        *self.io.lock().unwrap_or_else(PoisonError::into_inner) = Some(io);
    }

    fn take_back(&self) -> Option<Io> {
        let mut io = self.io.lock().unwrap_or_else(PoisonError::into_inner);
        io.take()
    }
}

fn duration(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

/// Serves a client's connection to its end: requests one after another until either side closes it, a limit
/// is met, the proxy closes idle connections, or everything is cut off.
pub async fn serve(
    socket: TcpStream,
    peer: SocketAddr,
    listener: Arc<Listener>,
    phase: watch::Receiver<Phase>,
) {
    let Some(_place) = listener.clients.door.enter() else {
        listener.metrics.client_limit(Limit::Connections);
        return turn_away(socket, &listener).await;
    };
    let faults = listener.clients.faults.as_ref();
    let accepted = faults.map_or(Accepted::NotDrawn, |faults| faults.accepted(peer));
    if accepted == Accepted::Refused {
        return abort(&socket);
    }
    // A client that is gone already shows in the first read.
    let _ = socket.set_nodelay(true);
    // A kernel that does not know it tells of progress later.
    let _ = SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT);
    let limits = listener.clients.limits();
    let connection = Connection::new(peer, listener.clock.clone(), limits);
    let spared = accepted == Accepted::Spared;
    connection.is_spared.store(spared, Ordering::Relaxed);
    let connection = Arc::new(connection);
    let wire = Wire::new(socket, connection.clone());
    let Some(io) = secured(wire, &listener, phase.clone()).await else {
        return;
    };
    let stream = ClientStream::new(io, connection.clone());
    requests(stream, &connection, &listener, phase).await;
    let ending = connection.ending();
    if connection.has_unclaimed() {
        listener.metrics.broken_head();
        farewell::tell_no_request(peer, ending);
    }
    if let Some(limit) = ending.and_then(Ending::limit) {
        listener.metrics.client_limit(limit);
    }
    if let Some((ending, io)) = ending.zip(connection.take_back()) {
        farewell::answer(io, ending).await;
    }
}

/// The handshake, where the listener speaks TLS.
async fn secured(wire: Wire, listener: &Listener, mut phase: watch::Receiver<Phase>) -> Option<Io> {
    let Some(tls) = listener.clients.tls() else {
        return Some(Io::Plain(wire));
    };
    let closing = phase.wait_for(|phase| *phase >= Phase::Closing);
    let stream = tokio::select! {
        stream = tokio::time::timeout(listener.clients.limits().head, tls.accept(wire)) => stream,
        _ = closing => return None,
    };
    match stream {
        Ok(Ok(stream)) => Some(Io::Tls(Box::new(stream))),
        Ok(Err(_)) => {
            listener.metrics.tls_failed();
            None
        }
        Err(_) => {
            listener.metrics.client_limit(Limit::HeadTime);
            None
        }
    }
}

async fn requests(
    stream: ClientStream,
    connection: &Arc<Connection>,
    listener: &Listener,
    mut phase: watch::Receiver<Phase>,
) {
    let mut session = ServerSession::new_http1(Box::new(stream));
    session.set_keepalive(Some(listener.shared.settings.load().limits.client_idle_s));
    // Bytes of a next request must not end the present one.
    session.set_pipelining_enabled(true);
    loop {
        let request = listener.proxy.process_new_http(session, &listener.shutdown);
        let reused = tokio::select! {
            // What can be written before the end is written.
            biased;
            reused = CONNECTION.scope(connection.clone(), request) => reused,
            () = connection.ended.notified() => return,
            () = given_up(connection, &mut phase) => return connection.forget(),
        };
        let Some((stream, settings)) = reused.map(ReusedHttpStream::consume) else {
            return;
        };
        if *phase.borrow() >= Phase::Closing {
            return connection.forget();
        }
        session = ServerSession::new_http1(stream);
        if let Some(settings) = settings {
            settings.apply_to_session(&mut session);
        }
    }
}

/// Waits until the proxy lets go of this connection: idle ones when it closes, all when it cuts off.
async fn given_up(connection: &Connection, phase: &mut watch::Receiver<Phase>) {
    let ended = phase
        .wait_for(|phase| *phase >= Phase::Closing)
        .await
        .is_err();
    if ended || connection.is_idle() {
        return;
    }
    let _ = phase.wait_for(|phase| *phase == Phase::Cut).await;
}

impl Connection {
    fn has_unclaimed(&self) -> bool {
        self.unclaimed.load(Ordering::Relaxed) > 0
    }

    /// What was read is nobody's fault: we went away.
    fn forget(&self) {
        self.unclaimed.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;

    fn connection(stall: Duration) -> (Connection, crate::clock::ManualClock) {
        let (clock, hand) = Clock::manual(Stamp::from_nanos(0));
        let limits = ClientLimits {
            head_bytes: 100,
            head: Duration::from_secs(1),
            stall,
        };
        let peer = ([127, 0, 0, 1], 1).into();
        (Connection::new(peer, clock, limits), hand)
    }

    #[test]
    fn a_held_up_write_is_counted_from_its_start_to_its_end() {
        let (connection, hand) = connection(Duration::MAX);
        let _ = connection.write_polled(Poll::Ready(()));
        hand.advance(Duration::from_nanos(5));
        let _ = connection.write_polled(Poll::<()>::Pending);
        hand.advance(Duration::from_nanos(7));
        let _ = connection.write_polled(Poll::<()>::Pending);
        assert_eq!(connection.stalled_nanos(), 7);
        hand.advance(Duration::from_nanos(10));
        let _ = connection.write_polled(Poll::Ready(()));
        let _ = connection.write_polled(Poll::Ready(()));
        assert_eq!(connection.stalled_nanos(), 17);
    }

    #[test]
    fn stalls_add_up_within_a_request_and_are_forgotten_after_it() {
        let (connection, hand) = connection(Duration::from_nanos(10));
        let stall = |nanos| {
            let _ = connection.write_polled(Poll::<()>::Pending);
            hand.advance(Duration::from_nanos(nanos));
            let during = connection.stall_left();
            let _ = connection.write_polled(Poll::Ready(()));
            assert_eq!(connection.stall_left(), during);
            during.map(|left| left.as_nanos())
        };
        connection.request_began();
        assert_eq!((stall(6), stall(3)), (Some(4), Some(1)));
        connection.request_ended();
        // Silence of ours counts for nothing.
        hand.advance(Duration::from_secs(100));
        connection.request_began();
        assert_eq!((stall(6), stall(4), stall(1)), (Some(4), None, None));
    }

    #[test]
    fn only_reads_that_wait_count_for_a_body() {
        let (connection, hand) = connection(Duration::MAX);
        connection.read_polled(false, 0);
        hand.advance(Duration::from_nanos(50));
        connection.read_polled(true, 20);
        connection.request_began();
        assert_eq!(connection.waited_for_body(), Duration::ZERO);
        connection.read_polled(false, 0);
        hand.advance(Duration::from_nanos(3));
        connection.read_polled(true, 1);
        // Nobody asks for bytes.
        hand.advance(Duration::from_nanos(9));
        connection.read_polled(true, 1);
        assert_eq!(connection.waited_for_body(), Duration::from_nanos(3));
    }
}
