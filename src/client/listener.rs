//! A listening socket, bound or taken over, and what the connections of a listener share.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::phase::Phase;
use super::shortage;

/// A listening socket and what it is for.
#[derive(Clone, Debug)]
pub struct ListenSocket {
    /// The key it was configured under: `listen`, `admin`, `worker NAME`.
    pub name: String,
    /// Its address as configured; the port may be 0.
    pub configured: SocketAddr,
    /// Where it truly listens.
    pub address: SocketAddr,
    /// The socket. It closes with its last holder.
    pub socket: Arc<TcpListener>,
}

/// What the connections of a listener share.
#[derive(Debug)]
pub struct Listener {
    /// Where the proxy is in its life.
    pub phase: watch::Receiver<Phase>,
    /// One receiver a connection.
    pub open: Arc<watch::Sender<()>>,
    /// Once it is cancelled, this listener is no more accepted from: its connections close after their next response.
    pub stopped: CancellationToken,
    served: Arc<Semaphore>,
    refused: Arc<Semaphore>,
}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Connections beyond the limit that are kept for the moment it takes to read a 503.
const REFUSED: usize = 64;

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
            // It reuses the address: a restart must not wait for the last connections' TIME_WAIT.
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

    /// The next connection, and who it is from; `None` once its `listener` is stopped.
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

    /// The connections that wait to be accepted: closing the socket would reset them.
    pub fn waiting(&self) -> impl Iterator<Item = (TcpStream, SocketAddr)> {
        // From the kernel: the runtime may not know yet of the latest.
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
    /// For `most` connections at once.
    pub fn new(
        most: usize,
        phase: watch::Receiver<Phase>,
        open: Arc<watch::Sender<()>>,
    ) -> Listener {
        Listener {
            phase,
            open,
            stopped: CancellationToken::new(),
            served: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            refused: Arc::new(Semaphore::new(REFUSED)),
        }
    }

    /// Held by a connection that is served; `None` at the limit.
    pub fn serve(&self) -> Option<OwnedSemaphorePermit> {
        self.served.clone().try_acquire_owned().ok()
    }

    /// Held by a connection beyond the limit while it reads its 503.
    pub fn refuse(&self) -> Option<OwnedSemaphorePermit> {
        self.refused.clone().try_acquire_owned().ok()
    }

    /// Whether connections close after their next response.
    pub fn is_closing(&self) -> bool {
        self.stopped.is_cancelled() || *self.phase.borrow() > Phase::Serving
    }
}
