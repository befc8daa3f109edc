//! What is known of a client's connection: bytes, waits and stalls, the present request, why it ends.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{Clock, Stamp};

use super::app::{ClientError, ClientLimits};
use super::waits::Waits;

/// Shared by the socket, Pingora's stream over it and the request in flight.
#[derive(Debug)]
pub struct Connection {
    /// Who is at the other end.
    pub peer: SocketAddr,
    clock: Clock,
    pub(super) limits: ClientLimits,
    /// Bytes read since the last request: those of a head that Pingora has not parsed yet.
    unparsed: AtomicU64,
    in_request: AtomicBool,
    /// How the present request is read: one of the constants below.
    reads: AtomicU8,
    /// Its requests are streams, each with a [`Connection`] of its own.
    is_http2: AtomicBool,
    /// When the head of its only request was read, if it is a stream.
    head_read: Option<Stamp>,
    /// Writes that the client holds up.
    stalled: Waits,
    /// Reads for which nothing has come.
    waited: Waits,
    /// Both sums when the present request began.
    stalled_before: AtomicI64,
    waited_before: AtomicI64,
    ending: OnceLock<Ending>,
    pub(super) ended: Notify,
    /// It might have been refused by a fault, and has not sent a request since.
    pub(super) is_spared: AtomicBool,
}

/// Why a connection ends that Pingora would let go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The head of a request is over its limit in bytes.
    HeadTooLarge,
    /// The head of a request is over its limit in time.
    HeadTooSlow,
    /// The first line of a head holds a control byte. Pingora would escape it and pass another target on.
    BadRequestLine,
    /// The client holds up a response over its limit.
    ResponseTooSlow,
    /// A reset: an injected fault, or a cut body that its connection's end would make whole.
    Reset,
    /// An injected fault: the response ends within its body.
    Cut,
}

/// As much as there is at a time.
const ANY: u8 = 0;
/// At most [`PIECE`] bytes at a time.
const IN_PIECES: u8 = 1;
/// All of it has been read: only the client's leaving is.
const WHOLE: u8 = 2;
/// Bytes of a read where they are few at a time.
pub const PIECE: usize = 16 * 1024;

tokio::task_local! {
    /// The connection that the present task serves.
    pub(super) static CONNECTION: Arc<Connection>;
}

impl Ending {
    /// Whether the client gets an answer, of ours: Pingora cannot give it.
    pub(super) fn has_answer(self) -> bool {
        matches!(
            self,
            Ending::HeadTooLarge | Ending::HeadTooSlow | Ending::BadRequestLine
        )
    }

    /// Whether the connection ends by a reset, so that the kernel holds nothing for a client that does not read.
    pub(super) fn resets(self) -> bool {
        matches!(self, Ending::ResponseTooSlow | Ending::Reset)
    }

    /// Whether the connection's task must end it, as no error of a read or write will.
    fn is_abrupt(self) -> bool {
        self != Ending::ResponseTooSlow
    }

    /// What is counted, where the client came to a limit.
    pub(super) fn client_error(self) -> Option<ClientError> {
        match self {
            Ending::HeadTooLarge => Some(ClientError::HeadTooLarge),
            Ending::HeadTooSlow => Some(ClientError::HeadTooSlow),
            Ending::ResponseTooSlow => Some(ClientError::ResponseTooSlow),
            Ending::BadRequestLine | Ending::Reset | Ending::Cut => None,
        }
    }
}

impl Connection {
    pub(super) fn new(peer: SocketAddr, clock: Clock, limits: ClientLimits) -> Connection {
        Connection {
            peer,
            clock,
            limits,
            unparsed: AtomicU64::new(0),
            in_request: AtomicBool::new(false),
            reads: AtomicU8::new(ANY),
            is_http2: AtomicBool::new(false),
            head_read: None,
            stalled: Waits::new(),
            waited: Waits::new(),
            stalled_before: AtomicI64::new(0),
            waited_before: AtomicI64::new(0),
            ending: OnceLock::new(),
            ended: Notify::new(),
            is_spared: AtomicBool::new(false),
        }
    }

    /// For a stream of this connection whose head was just read.
    pub(super) fn for_stream(&self) -> Connection {
        let mut own = Connection::new(self.peer, self.clock.clone(), self.limits);
        own.head_read = Some(own.clock.now());
        own
    }

    /// From now on streams are held to the limits on heads, responses and time, and not the whole.
    pub(super) fn set_http2(&self) {
        self.is_http2.store(true, Ordering::Relaxed);
    }

    /// When the head of the present request was read; `None` if just now.
    pub fn head_read(&self) -> Option<Stamp> {
        self.head_read
    }

    /// A connection that may take anything.
    #[cfg(test)]
    pub fn unlimited(peer: SocketAddr, clock: Clock) -> Connection {
        let limits = ClientLimits {
            head_bytes: u64::MAX,
            head: Duration::MAX,
            stall: Duration::MAX,
            idle_s: u64::MAX,
        };
        Connection::new(peer, clock, limits)
    }

    /// The connection that this task serves; `None` outside of connection tasks.
    pub fn current() -> Option<Arc<Connection>> {
        CONNECTION.try_with(Arc::clone).ok()
    }

    /// Runs `does` as the task that serves this connection would.
    #[cfg(test)]
    pub fn scope<T>(self: &Arc<Self>, does: impl FnOnce() -> T) -> T {
        CONNECTION.sync_scope(self.clone(), does)
    }

    /// A request's head was read: the bytes so far belong to it.
    pub fn request_began(&self) {
        self.unparsed.store(0, Ordering::Relaxed);
        self.in_request.store(true, Ordering::Relaxed);
        self.reads.store(ANY, Ordering::Relaxed);
        let waited = self.waited.nanos(&self.clock);
        self.waited_before.store(waited, Ordering::Relaxed);
        let stalled = self.stalled_nanos();
        self.stalled_before.store(stalled, Ordering::Relaxed);
    }

    /// The request was read to its end: what comes before the answer is not part of it.
    pub fn request_is_whole(&self) {
        self.reads.store(WHOLE, Ordering::Relaxed);
    }

    /// The request has become a connection of its own (101): what the client sends is for the upstream.
    pub fn upgraded(&self) {
        self.reads.store(ANY, Ordering::Relaxed);
    }

    /// Whether a request has been read to its end and its answer not yet been written.
    pub(super) fn awaits_answer(&self) -> bool {
        self.reads.load(Ordering::Relaxed) == WHOLE
    }

    /// From now on the body of the present request is read in pieces of at most [`PIECE`] bytes, or no longer. Those of
    /// HTTP/2 are no larger by themselves: they are frames.
    pub fn read_in_pieces(&self, yes: bool) {
        let (from, to) = if yes {
            (ANY, IN_PIECES)
        } else {
            (IN_PIECES, ANY)
        };
        // One that has been read whole stays so.
        let _ = (self.reads).compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether it is read so.
    pub(super) fn reads_in_pieces(&self) -> bool {
        self.reads.load(Ordering::Relaxed) == IN_PIECES
    }

    /// The request is over.
    pub fn request_ended(&self) {
        self.in_request.store(false, Ordering::Relaxed);
        self.reads.store(ANY, Ordering::Relaxed);
        self.unparsed.store(0, Ordering::Relaxed);
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
    pub(super) fn part_of_head(&self) -> Option<u64> {
        let bytes = self.unparsed.load(Ordering::Relaxed);
        (bytes > 0 && self.is_idle()).then_some(bytes)
    }

    /// Not in a request. Part of a head is none yet: a client must not hold up the end with it.
    pub(super) fn is_idle(&self) -> bool {
        !self.in_request.load(Ordering::Relaxed) && !self.is_http2.load(Ordering::Relaxed)
    }

    pub(super) fn read_polled(&self, is_ready: bool, bytes: u64) {
        self.waited.polled(is_ready, &self.clock);
        self.unparsed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts how long a write is held up: `poll` is what came of it.
    pub fn write_polled<T>(&self, poll: Poll<T>) -> Poll<T> {
        self.stalled.polled(poll.is_ready(), &self.clock);
        poll
    }

    /// How long the client may still hold up this response; `None` when that is used up.
    pub(super) fn stall_left(&self) -> Option<Duration> {
        if self.limits.stall == Duration::MAX || self.is_http2.load(Ordering::Relaxed) {
            return Some(Duration::MAX);
        }
        let stalled = duration(self.stalled_in_request());
        let left = self.limits.stall.checked_sub(stalled)?;
        (!left.is_zero()).then_some(left)
    }

    pub(super) fn has_unparsed(&self) -> bool {
        self.unparsed.load(Ordering::Relaxed) > 0
    }

    /// What was read is not counted as a broken head: the proxy closes, or it is counted elsewhere.
    pub(super) fn forget_unparsed(&self) {
        self.unparsed.store(0, Ordering::Relaxed);
    }
}

fn duration(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;

    fn connection(stall: Duration) -> (Connection, crate::clock::ManualClock) {
        let (clock, manual) = Clock::manual(Stamp::from_nanos(0));
        let limits = ClientLimits {
            head_bytes: 100,
            head: Duration::from_secs(1),
            stall,
            idle_s: 75,
        };
        let peer = ([127, 0, 0, 1], 1).into();
        (Connection::new(peer, clock, limits), manual)
    }

    #[test]
    fn a_held_up_write_is_counted_from_its_start_to_its_end() {
        let (connection, manual) = connection(Duration::MAX);
        let _ = connection.write_polled(Poll::Ready(()));
        manual.advance(Duration::from_nanos(5));
        let _ = connection.write_polled(Poll::<()>::Pending);
        manual.advance(Duration::from_nanos(7));
        let _ = connection.write_polled(Poll::<()>::Pending);
        assert_eq!(connection.stalled_nanos(), 7);
        manual.advance(Duration::from_nanos(10));
        let _ = connection.write_polled(Poll::Ready(()));
        let _ = connection.write_polled(Poll::Ready(()));
        assert_eq!(connection.stalled_nanos(), 17);
    }

    #[test]
    fn stalls_add_up_within_a_request_and_are_forgotten_after_it() {
        let (connection, manual) = connection(Duration::from_nanos(10));
        let stall = |nanos| {
            let _ = connection.write_polled(Poll::<()>::Pending);
            manual.advance(Duration::from_nanos(nanos));
            let during = connection.stall_left();
            let _ = connection.write_polled(Poll::Ready(()));
            assert_eq!(connection.stall_left(), during);
            during.map(|left| left.as_nanos())
        };
        connection.request_began();
        assert_eq!((stall(6), stall(3)), (Some(4), Some(1)));
        connection.request_ended();
        // Silence of ours counts for nothing.
        manual.advance(Duration::from_secs(100));
        connection.request_began();
        assert_eq!((stall(6), stall(4), stall(1)), (Some(4), None, None));
    }

    #[test]
    fn only_reads_that_wait_count_for_a_body() {
        let (connection, manual) = connection(Duration::MAX);
        connection.read_polled(false, 0);
        manual.advance(Duration::from_nanos(50));
        connection.read_polled(true, 20);
        connection.request_began();
        assert_eq!(connection.waited_for_body(), Duration::ZERO);
        connection.read_polled(false, 0);
        manual.advance(Duration::from_nanos(3));
        connection.read_polled(true, 1);
        // Nobody asks for bytes.
        manual.advance(Duration::from_nanos(9));
        connection.read_polled(true, 1);
        assert_eq!(connection.waited_for_body(), Duration::from_nanos(3));
    }
}
