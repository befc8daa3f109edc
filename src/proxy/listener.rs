//! A listening socket: bound or taken over, accepted from until told to stop, and closed without a reset.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::connection;
use super::lifecycle::{Error, Listener, Phase};
use super::shortage;
use super::takeover::Inherited;
use super::upstream::Upstreams;

/// A listening socket and what it is for.
#[derive(Clone, Debug)]
pub struct Bound {
    /// The key it was configured under: `listen`, `admin`, `worker NAME`.
    pub name: String,
    /// Its address as configured; the port may be 0.
    pub configured: SocketAddr,
    /// Where it truly listens.
    pub address: SocketAddr,
    /// The socket. It closes with its last holder.
    pub socket: Arc<TcpListener>,
}

/// A listener that is accepted from. Dropping it stops that.
#[derive(Debug)]
pub struct Running {
    /// The socket.
    pub bound: Bound,
    /// Where its requests go; a reload replaces them.
    pub upstreams: Arc<ArcSwap<Upstreams>>,
    /// Pingora's view of the end, too: from then on its connections close after their next response.
    stop: watch::Sender<bool>,
}

/// A listener that could be accepted from.
pub struct Ready {
    /// The socket.
    pub bound: Bound,
    /// Where its requests go.
    pub upstreams: Arc<ArcSwap<Upstreams>>,
    /// What accepting needs.
    pub accept: Accept,
    /// The listener's own, see [`Listener::shutdown`].
    pub stop: watch::Sender<bool>,
}

/// What a listener's connections share, and how they are counted.
pub struct Accept {
    /// The listener's part of the proxy.
    pub listener: Arc<Listener>,
    /// Where the proxy is in its life.
    pub phase: watch::Receiver<Phase>,
    /// One receiver a connection.
    pub connections: Arc<watch::Sender<()>>,
}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

impl Bound {
    /// Takes the socket from another process where there is one for this address, or binds a new one.
    ///
    /// # Errors
    /// Why the address cannot be listened on.
    pub fn new(
        name: &str,
        configured: SocketAddr,
        inherited: &mut Inherited,
    ) -> Result<Bound, Error> {
        let socket = match inherited.claim(name, configured) {
            Some(socket) => Ok(socket),
            None => bind(configured),
        };
        let bound = socket.and_then(|socket| {
            socket.set_nonblocking(true)?;
            let socket = TcpListener::from_std(socket)?;
            Ok(Bound {
                name: name.to_owned(),
                configured,
                address: socket.local_addr()?,
                socket: Arc::new(socket),
            })
        });
        bound.map_err(|source| Error::Listen {
            key: if name.starts_with("worker") {
                format!("{name}: listen")
            } else {
                name.to_owned()
            },
            address: configured,
            source,
        })
    }
}

fn bind(address: SocketAddr) -> io::Result<StdListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // A restart must not wait for the last connections' TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(StdListener::from(socket))
}

impl Ready {
    /// Accepts, on the current runtime.
    pub fn start(self) -> Running {
        let Ready {
            bound,
            upstreams,
            accept,
            stop,
        } = self;
        tokio::spawn(accept.run(bound.socket.clone(), stop.subscribe()));
        Running {
            bound,
            upstreams,
            stop,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

impl Accept {
    async fn run(self, socket: Arc<TcpListener>, mut stop: watch::Receiver<bool>) {
        // What still waits to be accepted counts as a connection, until this ends.
        let _waiting = self.connections.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            match accepted {
                Ok((stream, peer)) => self.serve(stream, peer),
                Err(error) => {
                    // Out of file descriptors, mostly: those who are connected go on.
                    let helps = shortage::remedy(&error);
                    log::warn!("cannot accept a connection: {error}{helps}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        if *self.phase.borrow() < Phase::Cut {
            self.empty(&socket);
        }
    }

    fn serve(&self, stream: TcpStream, peer: SocketAddr) {
        let open = self.connections.subscribe();
        let serve = connection::serve(stream, peer, self.listener.clone(), self.phase.clone());
        tokio::spawn(async move {
            serve.await;
            drop(open);
        });
    }

    /// Takes what waits already: closing the socket on it would reset those connections.
    fn empty(&self, socket: &TcpListener) {
        // Straight from the system: the runtime may not have heard yet of what has come.
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
