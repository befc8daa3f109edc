//! A client's connection: its bytes and stalls counted, and its life from request to request.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use pingora::apps::HttpServerApp;
use pingora::protocols::http::ServerSession;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::clock::Clock;

use super::lifecycle::Phase;
use super::service::Service;

/// What is known of a client's connection.
#[derive(Debug)]
pub struct Connection {
    /// Who is at the other end.
    pub peer: SocketAddr,
    clock: Clock,
    /// Bytes read since the last request's head.
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
    static CONNECTION: RefCell<Option<Arc<Connection>>>;
}

/// `stalled_since` while no write is held up.
const NOT_STALLED: i64 = i64::MIN;

impl Connection {
    fn new(peer: SocketAddr, clock: Clock) -> Connection {
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
        CONNECTION
            .try_with(|connection| connection.borrow().clone())
            .ok()
            .flatten()
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

    /// Nanoseconds for which writes to this client were held up since it connected.
    pub fn stalled_nanos(&self) -> i64 {
        self.stalled_nanos.load(Ordering::Relaxed)
    }

    fn is_idle(&self) -> bool {
        !self.in_request.load(Ordering::Relaxed)
    }

    fn write_polled<T>(&self, poll: Poll<T>) -> Poll<T> {
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

/// Serves a client's connection to its end: requests one after another until either side closes, the
/// listener closes idle connections, or everything is cut off.
pub async fn serve(
    socket: TcpStream,
    peer: SocketAddr,
    proxy: Arc<HttpProxy<Service>>,
    mut phase: watch::Receiver<Phase>,
    shutdown: ShutdownWatch,
) {
    // A client that is gone already shows in the first read.
    let _ = socket.set_nodelay(true);
    let service = proxy.service();
    let connection = Arc::new(Connection::new(peer, service.clock()));
    let stream = ClientStream {
        socket,
        connection: connection.clone(),
    };
    let slot = RefCell::new(Some(connection.clone()));
    let requests = CONNECTION.scope(slot, requests(stream, &proxy, &shutdown));
    tokio::pin!(requests);
    loop {
        tokio::select! {
            () = &mut requests => break,
            _ = phase.wait_for(|phase| *phase == Phase::Cut) => return,
            _ = phase.wait_for(|phase| *phase >= Phase::Closing), if connection.is_idle() => return,
        }
    }
    if connection.unclaimed.load(Ordering::Relaxed) > 0 {
        service.broken_head(&connection);
    }
}
