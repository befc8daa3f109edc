//! A client's connection: its bytes and stalls counted, and its life from request to request.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll};

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, ReusedHttpStream};
use pingora::protocols::http::ServerSession;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::clock::Clock;

use super::lifecycle::{Listener, Phase};

/// What is known of a client's connection.
#[derive(Debug)]
pub struct Connection {
    /// Who is at the other end.
    pub peer: SocketAddr,
    clock: Clock,
    /// Bytes read since the last request.
    unclaimed: AtomicU64,
    in_request: AtomicBool,
    stalled_nanos: AtomicI64,
    stalled_since: AtomicI64,
}

/// The client's socket as Pingora gets it. No buffer: what is written is on its way.
#[derive(Debug)]
struct ClientStream {
    socket: TcpStream,
    connection: Arc<Connection>,
}

tokio::task_local! {
    /// The connection that the present task serves.
    static CONNECTION: Arc<Connection>;
}

/// `stalled_since` while no write is held up.
const NOT_STALLED: i64 = i64::MIN;

impl Connection {
    pub(super) fn new(peer: SocketAddr, clock: Clock) -> Connection {
        Connection {
            peer,
            clock,
            unclaimed: AtomicU64::new(0),
            in_request: AtomicBool::new(false),
            stalled_nanos: AtomicI64::new(0),
            stalled_since: AtomicI64::new(NOT_STALLED),
        }
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
    }

    /// The request is over.
    pub fn request_ended(&self) {
        self.in_request.store(false, Ordering::Relaxed);
        self.unclaimed.store(0, Ordering::Relaxed);
    }

    /// Nanoseconds for which writes to this client were held up since it connected, the present one
    /// included.
    pub fn stalled_nanos(&self) -> i64 {
        let over = self.stalled_nanos.load(Ordering::Relaxed);
        match self.stalled_since.load(Ordering::Relaxed) {
            NOT_STALLED => over,
            since => over.saturating_add(self.clock.now().nanos().saturating_sub(since)),
        }
    }

    fn has_unclaimed(&self) -> bool {
        self.unclaimed.load(Ordering::Relaxed) > 0
    }

    /// Not in a request. Part of a head is none yet: a client must not hold up the end with it.
    fn is_idle(&self) -> bool {
        !self.in_request.load(Ordering::Relaxed)
    }

    pub(super) fn write_polled<T>(&self, poll: Poll<T>) -> Poll<T> {
        let since = self.stalled_since.load(Ordering::Relaxed);
        match (&poll, since) {
            (Poll::Pending, NOT_STALLED) => {
                let now = self.clock.now().nanos();
                self.stalled_since.store(now, Ordering::Relaxed);
            }
            (Poll::Ready(_), since) if since != NOT_STALLED => {
                let held_up = self.clock.now().nanos().saturating_sub(since);
                self.stalled_nanos.fetch_add(held_up, Ordering::Relaxed);
                self.stalled_since.store(NOT_STALLED, Ordering::Relaxed);
            }
            _ => {}
        }
        poll
    }
}

/// Serves a client's connection to its end: requests one after another until either side closes it, the
/// proxy closes idle connections, or everything is cut off.
pub async fn serve(
    socket: TcpStream,
    peer: SocketAddr,
    listener: Arc<Listener>,
    mut phase: watch::Receiver<Phase>,
) {
    // A client that is gone already shows in the first read.
    let _ = socket.set_nodelay(true);
    let connection = Arc::new(Connection::new(peer, listener.clock.clone()));
    let stream = ClientStream {
        socket,
        connection: connection.clone(),
    };
    let mut session = ServerSession::new_http1(Box::new(stream));
    session.set_keepalive(Some(listener.shared.settings.load().limits.client_idle_s));
    // Bytes of a next request must not end the present one.
    session.set_pipelining_enabled(true);
    loop {
        let request = listener.proxy.process_new_http(session, &listener.shutdown);
        let reused = tokio::select! {
            reused = CONNECTION.scope(connection.clone(), request) => reused,
            () = given_up(&connection, &mut phase) => return,
        };
        let Some((stream, settings)) = reused.map(ReusedHttpStream::consume) else {
            break;
        };
        if *phase.borrow() >= Phase::Closing {
            return;
        }
        session = ServerSession::new_http1(stream);
        if let Some(settings) = settings {
            settings.apply_to_session(&mut session);
        }
    }
    if connection.has_unclaimed() {
        listener.metrics.broken_head();
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

impl ClientStream {
    fn parts(self: Pin<&mut Self>) -> (Pin<&mut TcpStream>, &Connection) {
        let this = self.get_mut();
        (Pin::new(&mut this.socket), &this.connection)
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (socket, connection) = self.parts();
        let before = buffer.filled().len();
        let poll = socket.poll_read(cx, buffer);
        let read = buffer.filled().len().saturating_sub(before) as u64;
        connection.unclaimed.fetch_add(read, Ordering::Relaxed);
        poll
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let (socket, connection) = self.parts();
        connection.write_polled(socket.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let (socket, connection) = self.parts();
        connection.write_polled(socket.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.parts().0.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.parts().0.poll_shutdown(cx)
    }
}

#[async_trait]
impl Shutdown for ClientStream {
    async fn shutdown(&mut self) {
        // The client may have closed first.
        let _ = self.socket.shutdown().await;
    }
}

impl UniqueID for ClientStream {
    fn id(&self) -> UniqueIDType {
        self.socket.as_raw_fd()
    }
}

impl Ssl for ClientStream {}

impl Peek for ClientStream {}

impl GetTimingDigest for ClientStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for ClientStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for ClientStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
    use std::time::Duration;

    #[test]
    fn a_held_up_write_is_counted_from_its_start_to_its_end() {
        let (clock, hand) = Clock::manual(Stamp::from_nanos(0));
        let connection = Connection::new(([127, 0, 0, 1], 1).into(), clock);
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
}
