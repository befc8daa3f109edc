//! Accepting from a listening socket until it is stopped, and closing it without a reset.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::listener::{BACKLOG, Listener};
use super::phase::Phase;
use super::shortage;

/// After an accept that failed for want of something.
const PAUSE: Duration = Duration::from_millis(100);

/// An accept has failed: tells so, and waits where the next would fail too.
pub async fn failed(whose: &str, error: &io::Error) {
    let helps = shortage::remedy(error);
    log::warn!("{whose}cannot accept a connection: {error}{helps}");
    // Out of file descriptors, mostly: open connections go on.
    if !is_of_one_connection(error) {
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether it is the error of the connection that was to be accepted (accept(2) passes those on): others wait behind it.
fn is_of_one_connection(error: &io::Error) -> bool {
    use Errno::{EHOSTDOWN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ENONET, ENOPROTOOPT, EOPNOTSUPP};
    let errno = error.raw_os_error().map(Errno::from_raw);
    let passed_on = |errno| {
        matches!(
            errno,
            EHOSTDOWN | EHOSTUNREACH | ENETDOWN | ENETUNREACH | ENONET
        ) || matches!(
            errno,
            ENOPROTOOPT | EOPNOTSUPP | Errno::EPROTO | Errno::EPERM
        )
    };
    let kinds = [
        ErrorKind::ConnectionAborted,
        ErrorKind::ConnectionReset,
        ErrorKind::Interrupted,
    ];
    kinds.contains(&error.kind()) || errno.is_some_and(passed_on)
}

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
                Some(Err(error)) => failed("", &error).await,
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn one_clients_leaving_holds_up_no_other() {
        let waits = |errno: Errno| failed("", &errno.into()).now_or_never().is_none();
        for errno in [
            Errno::ECONNABORTED,
            Errno::EINTR,
            Errno::EPROTO,
            Errno::ENETUNREACH,
        ] {
            assert!(!waits(errno), "{errno}");
        }
        for errno in [
            Errno::EMFILE,
            Errno::ENFILE,
            Errno::ENOBUFS,
            Errno::ENOMEM,
            Errno::EINVAL,
        ] {
            assert!(waits(errno), "{errno}");
        }
    }
}
