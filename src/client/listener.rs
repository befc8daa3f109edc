//! Listening sockets, bound or taken over, and what the connections of a listener share.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::phase::Phase;
use super::shortage;

/// A listening socket and its key.
#[derive(Clone, Debug)]
pub struct ListenSocket {
    /// The key it was configured under: `listen`, `admin`, `worker NAME`.
    pub name: String,
    /// Its address as configured; the port may be 0.
    pub configured: SocketAddr,
    /// Its actual address.
    pub address: SocketAddr,
    /// The socket. It closes with its last holder.
    pub socket: Arc<TcpListener>,
}

/// What the connections of a listener share.
#[derive(Debug)]
pub struct Listener {
    /// Where the proxy is in its life.
    pub phase: watch::Receiver<Phase>,
    /// Has one receiver for each open connection.
    pub open: Arc<watch::Sender<()>>,
    /// Once cancelled, the listener accepts no more, and its connections close after their next response.
    pub stopped: CancellationToken,
    connections: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
}

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// The most connections beyond the limit that are kept until their client has read the 503.
const MAX_REFUSALS: usize = 64;

impl ListenSocket {
    /// Takes `inherited`, a socket of another process, or binds a new one.
    ///
    /// # Errors
    /// Why the address cannot be listened on.
    pub fn new(
        name: &str,
        configured: SocketAddr,
        inherited: Option<StdListener>,
    ) -> io::Result<ListenSocket> {
        let socket = match inherited {
            Some(socket) => socket,
            // With SO_REUSEADDR: a restart does not wait for old connections in TIME_WAIT.
            None => StdListener::bind(configured)?,
        };
        SockRef::from(&socket).listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let socket = TcpListener::from_std(socket)?;
        Ok(ListenSocket {
            name: name.to_owned(),
            configured,
            address: socket.local_addr()?,
            socket: Arc::new(socket),
        })
    }

    /// Accepts the next connection, and returns its peer; `None` once `listener` is stopped.
    pub async fn accept(&self, listener: &Listener) -> Option<(TcpStream, SocketAddr)> {
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                () = listener.stopped.cancelled() => return None,
            };
            match accepted {
                Ok(accepted) => return Some(accepted),
                Err(error) => shortage::accept_failed("", &error).await,
            }
        }
    }

    /// Accepts the connections that wait: closing the socket would reset them.
    pub fn backlog(&self) -> impl Iterator<Item = (TcpStream, SocketAddr)> {
        // Not by the runtime, which may not know of the latest yet.
        let socket = SockRef::from(&*self.socket);
        let accepted = (0..BACKLOG).map_while(move |_| socket.accept().ok());
        accepted.filter_map(|(stream, peer)| {
            stream.set_nonblocking(true).ok()?;
            let stream = TcpStream::from_std(stream.into()).ok()?;
            Some((stream, peer.as_socket()?))
        })
    }
}

impl Listener {
    /// Creates a listener for up to `max_connections` at once.
    pub fn new(
        max_connections: usize,
        phase: watch::Receiver<Phase>,
        open: Arc<watch::Sender<()>>,
    ) -> Listener {
        Listener {
            phase,
            open,
            stopped: CancellationToken::new(),
            connections: Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS))),
            refusals: Arc::new(Semaphore::new(MAX_REFUSALS)),
        }
    }

    /// Returns the permit that a connection holds while it is served; `None` at the limit.
    pub fn connection_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.connections.clone().try_acquire_owned().ok()
    }

    /// Returns the permit that a connection beyond the limit holds while its client reads the 503.
    pub fn refusal_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.refusals.clone().try_acquire_owned().ok()
    }

    /// Whether connections close after their next response.
    pub fn is_closing(&self) -> bool {
        self.stopped.is_cancelled() || *self.phase.borrow() > Phase::Serving
    }
}
