//! A connection from its first byte to its end: the limit on connections, TLS, the version of HTTP, requests one after
//! another.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pingora::apps::{HttpServerApp, ReusedHttpStream};
use pingora::protocols::http::ServerSession;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::proxy::door::Door;
use crate::proxy::fault::desk::{Accepted, WorkerFaults};
use crate::proxy::lifecycle::{Listener, Phase};
use crate::proxy::shared::{Role, Shared};
use crate::proxy::tls::Tls;
use crate::telemetry::prometheus::Limit;

use super::farewell::{self, abort, turn_away};
use super::stream::{ClientStream, Io, Wire};
use super::{CONNECTION, ClientLimits, Connection, Ending, http2};

/// How a listener takes its clients.
#[derive(Debug)]
pub struct Clients {
    /// What the listeners share: the front's certificate is there.
    shared: Arc<Shared>,
    role: Role,
    door: Door,
    faults: Option<Arc<WorkerFaults>>,
}

/// Bytes that a client's socket holds unsent at most. A kernel takes megabytes, and tells that there is room again
/// when a third of them has gone: a client that reads on steadily would look as if it took nothing.
const UNSENT: u32 = 131_072;

impl Clients {
    /// Those of a listener of this role.
    pub fn of(role: &Role, shared: &Arc<Shared>) -> Clients {
        let most = shared.settings.load().limits.connections;
        Clients {
            shared: shared.clone(),
            role: role.clone(),
            door: Door::new(shared.limits_clients_of(role).then_some(most)),
            faults: shared.faults_of(role),
        }
    }

    /// The present limits on a connection.
    fn limits(&self) -> ClientLimits {
        let is_limited = self.shared.limits_clients_of(&self.role);
        self.shared.settings.load().limits.client(is_limited)
    }

    fn tls(&self) -> Option<&Tls> {
        let is_front = self.role == Role::Front;
        self.shared.tls.as_ref().filter(|_| is_front)
    }
}

/// Serves a client's connection to its end: requests one after another until either side closes it, a limit
/// is met, the proxy closes idle connections, or everything is cut off.
pub async fn serve(
    socket: TcpStream,
    peer: SocketAddr,
    listener: Arc<Listener>,
    phase: watch::Receiver<Phase>,
) {
    let Some(_place) = listener.clients.door.enter() else {
        listener.metrics.client_limit(Limit::Connections);
        let place = listener.clients.door.linger();
        // Under TLS nothing can be said in the clear.
        let place = place.filter(|_| listener.clients.tls().is_none());
        return turn_away(socket, place).await;
    };
    let faults = listener.clients.faults.as_ref();
    let accepted = faults.map_or(Accepted::NotDrawn, |faults| faults.accepted(peer));
    if accepted == Accepted::Refused {
        return abort(&socket);
    }
    // A client that is gone already shows in the first read.
    let _ = socket.set_nodelay(true);
    // A kernel that does not know it tells of progress later.
    let _ = SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT);
    let limits = listener.clients.limits();
    let connection = Connection::new(peer, listener.clock.clone(), limits);
    let spared = accepted == Accepted::Spared;
    connection.is_spared.store(spared, Ordering::Relaxed);
    let connection = Arc::new(connection);
    let wire = Wire::new(socket, connection.clone());
    let Some(io) = secured(wire, &listener, phase.clone()).await else {
        return;
    };
    let mut stream = ClientStream::new(io, connection.clone());
    match speaks_http2(&mut stream, &listener, phase.clone()).await {
        Some(true) => http2::serve(stream, &connection, &listener, phase).await,
        Some(false) => requests(stream, &connection, &listener, phase).await,
        None => drop(stream),
    }
    let ending = connection.ending();
    if connection.has_unclaimed() {
        listener.metrics.broken_head();
        farewell::tell_no_request(peer, ending);
    }
    if let Some(limit) = ending.and_then(Ending::limit) {
        listener.metrics.client_limit(limit);
    }
    if let Some((ending, io)) = ending.zip(connection.take_back()) {
        farewell::answer(io, ending).await;
    }
}

/// The handshake, where the listener speaks TLS.
async fn secured(wire: Wire, listener: &Listener, mut phase: watch::Receiver<Phase>) -> Option<Io> {
    let Some(tls) = listener.clients.tls() else {
        return Some(Io::Plain(wire));
    };
    let closing = phase.wait_for(|phase| *phase >= Phase::Closing);
    let stream = tokio::select! {
        stream = tokio::time::timeout(listener.clients.limits().head, tls.accept(wire)) => stream,
        _ = closing => return None,
    };
    match stream {
        Ok(Ok(stream)) => Some(Io::Tls(Box::new(stream))),
        Ok(Err(_)) => {
            listener.metrics.tls_failed();
            None
        }
        Err(_) => {
            listener.metrics.client_limit(Limit::HeadTime);
            None
        }
    }
}

/// Whether a client speaks HTTP/2 to us, by TLS or by how it begins; `None` when it says nothing, or ends. Hops do
/// not: routers try it on them to find servers that speak gRPC.
async fn speaks_http2(
    stream: &mut ClientStream,
    listener: &Listener,
    mut phase: watch::Receiver<Phase>,
) -> Option<bool> {
    if listener.clients.role != Role::Front {
        return Some(false);
    }
    let connection = stream.connection().clone();
    let idle = listener.shared.settings.load().limits.client_idle_s;
    let begins = tokio::time::timeout(Duration::from_secs(idle), stream.speaks_http2());
    let speaks = tokio::select! {
        speaks = begins => speaks.ok(),
        () = connection.ended.notified() => None,
        () = given_up(&connection, &mut phase) => None,
    };
    if speaks.is_some() {
        // Its bytes are counted when Pingora reads them.
        connection.forget();
    }
    speaks
}

async fn requests(
    stream: ClientStream,
    connection: &Arc<Connection>,
    listener: &Listener,
    mut phase: watch::Receiver<Phase>,
) {
    let mut session = ServerSession::new_http1(Box::new(stream));
    session.set_keepalive(Some(listener.shared.settings.load().limits.client_idle_s));
    // Bytes of a next request must not end the present one.
    session.set_pipelining_enabled(true);
    loop {
        let request = listener.proxy.process_new_http(session, &listener.shutdown);
        let reused = tokio::select! {
            // What can be written before the end is written.
            biased;
            reused = CONNECTION.scope(connection.clone(), request) => reused,
            () = connection.ended.notified() => return,
            () = given_up(connection, &mut phase) => return connection.forget(),
        };
        let Some((stream, settings)) = reused.map(ReusedHttpStream::consume) else {
            return;
        };
        if *phase.borrow() >= Phase::Closing {
            return connection.forget();
        }
        session = ServerSession::new_http1(stream);
        if let Some(settings) = settings {
            settings.apply_to_session(&mut session);
        }
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
