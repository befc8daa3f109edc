//! Accepting from a listening socket until it is stopped, and closing it without a reset.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

use super::app::App;
use super::listener::{BACKLOG, Listener};
use super::phase::Phase;
use super::serve::serve;
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

impl<A: App> Listener<A> {
    /// Accepts from `socket`, on the current runtime, until [`Listener::stop`].
    pub fn accept(self: &Arc<Self>, socket: Arc<TcpListener>) {
        tokio::spawn(self.clone().run(socket));
    }

    async fn run(self: Arc<Self>, socket: Arc<TcpListener>) {
        // What still waits to be accepted counts as a connection, until this ends.
        let _waiting = self.open.subscribe();
        let mut stopped = self.stopped.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                _ = stopped.wait_for(|stopped| *stopped) => break,
            };
            match accepted {
                Ok((stream, peer)) => self.serve(stream, peer),
                Err(error) => failed("", &error).await,
            }
        }
        if *self.phase.borrow() < Phase::Cut {
            self.accept_backlog(&socket);
        }
    }

    fn serve(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        let (listener, open) = (self.clone(), self.open.subscribe());
        tokio::spawn(async move {
            serve(stream, peer, &listener).await;
            drop(open);
        });
    }

    /// Accepts what waits already: closing the socket would reset those connections.
    fn accept_backlog(self: &Arc<Self>, socket: &TcpListener) {
        // From the kernel: the runtime may not know yet of the latest.
        let socket = SockRef::from(socket);
        for _ in 0..BACKLOG {
            let Ok((stream, peer)) = socket.accept() else {
                return;
            };
            let stream = StdStream::from(stream);
            let stream = stream
                .set_nonblocking(true)
                .and_then(|()| TcpStream::from_std(stream));
            if let (Ok(stream), Some(peer)) = (stream, peer.as_socket()) {
                self.serve(stream, peer);
            }
        }
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
