//! Accepting from a listening socket until it is stopped, and closing it without a reset.

use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::listener::{BACKLOG, Listener};
use super::phase::Phase;
use super::shortage;

/// After a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether a connection is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is.
    Served,
    /// It is, and a fault might have refused it: its first request is no chance of its own.
    Spared,
    /// It is reset by an injected fault.
    Refused,
}

/// The connections of a listening socket, one after another.
#[derive(Debug)]
pub struct Accepting {
    socket: Arc<TcpListener>,
    stopped: watch::Receiver<bool>,
    phase: watch::Receiver<Phase>,
    /// Connections that are still taken once it is stopped.
    waiting: i32,
}

impl Accepting {
    /// From `socket`, until [`Listener::stop`].
    pub fn new(socket: Arc<TcpListener>, listener: &Listener) -> Accepting {
        Accepting {
            socket,
            stopped: listener.stopped.subscribe(),
            phase: listener.phase.clone(),
            waiting: BACKLOG,
        }
    }

    /// The next connection, and who it is from; `None` once it is stopped and nobody waits to be accepted.
    pub async fn next(&mut self) -> Option<(TcpStream, SocketAddr)> {
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => Some(accepted),
                _ = self.stopped.wait_for(|stopped| *stopped) => None,
            };
            match accepted {
                None => return self.waiting(),
                Some(Ok(accepted)) => return Some(accepted),
                Some(Err(error)) => {
                    // Out of file descriptors, mostly: open connections go on.
                    let helps = shortage::remedy(&error);
                    log::warn!("cannot accept a connection: {error}{helps}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// What waits already: closing the socket would reset those connections.
    fn waiting(&mut self) -> Option<(TcpStream, SocketAddr)> {
        while self.waiting > 0 && *self.phase.borrow() < Phase::Cut {
            self.waiting -= 1;
            // From the kernel: the runtime may not know yet of the latest.
            let (stream, peer) = SockRef::from(&*self.socket).accept().ok()?;
            let stream = StdStream::from(stream);
            let stream = stream
                .set_nonblocking(true)
                .and_then(|()| TcpStream::from_std(stream));
            if let (Ok(stream), Some(peer)) = (stream, peer.as_socket()) {
                return Some((stream, peer));
            }
        }
        None
    }
}
