//! Accepting from a listening socket until it is stopped, and closing it without a reset.

use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

use super::app::App;
use super::listener::{BACKLOG, Listener};
use super::phase::Phase;
use super::serve::serve;
use super::shortage;

/// After a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

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
                Err(error) => {
                    // Out of file descriptors, mostly: open connections go on.
                    let helps = shortage::remedy(&error);
                    log::warn!("cannot accept a connection: {error}{helps}");
                    tokio::time::sleep(PAUSE).await;
                }
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
