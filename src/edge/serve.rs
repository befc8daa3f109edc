//! A connection from its first byte to its end: the limit on connections, TLS, the version of HTTP, requests one after
//! another.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pingora::apps::ReusedHttpStream;
use pingora::protocols::http::ServerSession;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::app::{Admission, App, ClientError};
use super::client_stream::ClientStream;
use super::connection::{CONNECTION, Connection, Ending};
use super::http2;
use super::listener::Listener;
use super::phase::Phase;
use super::refusal::{self, abort, refuse};
use super::socket::{ClientSocket, Transport};

/// Unsent bytes in a client's socket at most. By default a kernel takes megabytes and reports room only once a third
/// of them has gone: a client that reads steadily would look stalled.
const UNSENT: u32 = 131_072;

/// Serves a client's connection to its end: requests one after another until either side closes it, a limit
/// is met, the proxy closes idle connections, or everything is cut off.
pub async fn serve<A: App>(socket: TcpStream, peer: SocketAddr, listener: &Arc<Listener<A>>) {
    let app = &listener.app;
    let Some(_permit) = listener.limit.serve() else {
        app.count(ClientError::TooManyConnections);
        // Under TLS there can be no answer before the handshake.
        let permit = listener.limit.refuse().filter(|_| app.tls().is_none());
        return refuse(socket, permit).await;
    };
    let admission = app.admit(peer);
    if admission == Admission::Refused {
        return abort(&socket);
    }
    // If the client is gone already, the first read shows it.
    let _ = socket.set_nodelay(true);
    // Without it stalls are seen late; no more.
    let _ = SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT);
    let connection = Connection::new(peer, listener.clock.clone(), app.limits());
    let is_spared = admission == Admission::Spared;
    connection.is_spared.store(is_spared, Ordering::Relaxed);
    let connection = Arc::new(connection);
    let socket = ClientSocket::new(socket, connection.clone());
    let Some(io) = handshake(socket, listener).await else {
        return;
    };
    let (mut stream, mut taken_back) = ClientStream::new(io, connection.clone());
    match speaks_http2(&mut stream, listener).await {
        Some(true) => Box::pin(http2::serve(stream, &connection, listener)).await,
        Some(false) => requests(stream, &connection, listener).await,
        None => drop(stream),
    }
    let ending = connection.ending();
    if connection.has_unparsed() {
        app.count(ClientError::BrokenHead);
        refusal::log_no_request(peer, ending);
    }
    if let Some(error) = ending.and_then(Ending::client_error) {
        app.count(error);
    }
    if let (Some(ending), Ok(io)) = (ending, taken_back.try_recv()) {
        refusal::answer(io, ending).await;
    }
}

/// The handshake, where the listener speaks TLS.
async fn handshake<A: App>(
    socket: ClientSocket,
    listener: &Arc<Listener<A>>,
) -> Option<Box<dyn Transport>> {
    let app = &listener.app;
    let Some(tls) = app.tls() else {
        return Some(Box::new(socket));
    };
    let mut phase = listener.phase.clone();
    let closing = phase.wait_for(|phase| *phase >= Phase::Closing);
    let stream = tokio::select! {
        stream = tokio::time::timeout(app.limits().head, tls.accept(socket)) => stream,
        _ = closing => return None,
    };
    match stream {
        Ok(Ok(stream)) => Some(Box::new(stream)),
        Ok(Err(_)) => {
            app.count(ClientError::Tls);
            None
        }
        Err(_) => {
            app.count(ClientError::HeadTooSlow);
            None
        }
    }
}

/// Whether a client speaks HTTP/2, by ALPN or by its preface; `None` when nothing comes, or the connection ends.
async fn speaks_http2<A: App>(
    stream: &mut ClientStream,
    listener: &Arc<Listener<A>>,
) -> Option<bool> {
    if !listener.app.takes_http2() {
        return Some(false);
    }
    let connection = stream.connection().clone();
    let idle = Duration::from_secs(listener.app.limits().idle_s);
    let begins = tokio::time::timeout(idle, stream.speaks_http2());
    let speaks = tokio::select! {
        speaks = begins => speaks.ok(),
        () = connection.ended.notified() => None,
        () = closed_by_proxy(&connection, listener.phase.clone()) => None,
    };
    if speaks.is_some() {
        // Its bytes are counted when Pingora reads them.
        connection.forget_unparsed();
    }
    speaks
}

async fn requests<A: App>(
    stream: ClientStream,
    connection: &Arc<Connection>,
    listener: &Arc<Listener<A>>,
) {
    let shutdown = listener.stopped.subscribe();
    let mut session = ServerSession::new_http1(Box::new(stream));
    session.set_keepalive(Some(listener.app.limits().idle_s));
    // Bytes of a next request must not end the present one.
    session.set_pipelining_enabled(true);
    // A set polls its futures when they are woken, and not at each event of a response.
    let mut over = FuturesUnordered::from_iter([over(connection, listener.phase.clone())]);
    loop {
        let request = listener.app.answer(session, &shutdown);
        let reused = tokio::select! {
            // What can be written before the end is written.
            biased;
            reused = CONNECTION.scope(connection.clone(), request) => reused,
            _ = over.next() => return,
        };
        let Some((stream, settings)) = reused.map(ReusedHttpStream::consume) else {
            return;
        };
        if *listener.phase.borrow() >= Phase::Closing {
            return connection.forget_unparsed();
        }
        session = ServerSession::new_http1(stream);
        if let Some(settings) = settings {
            settings.apply_to_session(&mut session);
        }
    }
}

/// Waits until this connection's task must end it, or the proxy closes it.
async fn over(connection: &Connection, phase: watch::Receiver<Phase>) {
    tokio::select! {
        () = connection.ended.notified() => {}
        () = closed_by_proxy(connection, phase) => connection.forget_unparsed(),
    }
}

/// Waits until the proxy closes this connection: an idle one from [`Phase::Closing`], any at [`Phase::Cut`].
async fn closed_by_proxy(connection: &Connection, mut phase: watch::Receiver<Phase>) {
    let ended = phase
        .wait_for(|phase| *phase >= Phase::Closing)
        .await
        .is_err();
    if ended || connection.is_idle() {
        return;
    }
    let _ = phase.wait_for(|phase| *phase == Phase::Cut).await;
}
