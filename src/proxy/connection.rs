//! Accepts a listener's connections and serves each to its end: the limit on connections, TLS, the version of HTTP, one request
//! after another.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use http::Version;
use pingora::listeners::tls::Acceptor;
use pingora::protocols::{ALPN, Ssl, Stream};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::exchange::Exchange;
use crate::client::limits::{Limits, Refusal};
use crate::client::listener::{self, ListenSocket, Phase, Tls};
use crate::client::socket::Socket;
use crate::client::{http1, http2};

use super::request;
use super::shared::{Role, Service};

/// After how many requests that are not acceptable a connection of HTTP/2 is closed.
const MAX_REJECTED: u32 = 32;

/// Serves the connections of `socket` until the listener is stopped and all of them have ended, or the proxy cuts them off.
pub async fn accept(service: Arc<Service>, socket: ListenSocket) {
    // Until accepting ends, a connection that waits to be accepted counts as open.
    let waiting = service.open.subscribe();
    let mut phase = service.phase.clone();
    let mut connections = JoinSet::new();
    let served = |(stream, peer)| {
        let (service, open) = (service.clone(), service.open.subscribe());
        async move {
            serve(&service, stream, peer).await;
            drop(open);
        }
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener::accept(&socket.socket, &mut connections, "") => accepted,
            () = service.stopped.cancelled() => break,
        };
        connections.spawn(served(accepted));
    }
    for accepted in socket.backlog() {
        connections.spawn(served(accepted));
    }
    drop(socket);
    drop(waiting);
    let all = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = all => {}
        // The rest is dropped.
        _ = phase.wait_for(|phase| *phase == Phase::Aborting) => {}
    }
}

/// Serves a client's connection until either side closes it, a limit is reached, or the proxy closes idle connections.
async fn serve(service: &Arc<Service>, socket: TcpStream, peer: SocketAddr) {
    let tls = service.shared.tls.as_ref();
    let tls = tls.filter(|_| service.role == Role::Front);
    let is_clear = tls.is_none();
    let socket = Socket::new(socket);
    let Some(_permit) = service.connection_permit() else {
        log::warn!("client {peer}: refused: there are max_connections");
        service.shared.metrics.connections_refused.with(&[]).inc();
        // Under TLS no response is possible before the handshake.
        return match service.refusals.try_acquire() {
            Ok(_permit) if is_clear => {
                let response = Refusal::TooManyConnections.response();
                response.send(Box::new(socket)).await;
            }
            _ => socket.reset(),
        };
    };
    if service.inject(false).is_some() {
        return socket.reset();
    }
    let limits = service.shared.limits(&service.role);
    let accepted = match tls {
        None => Some((Box::new(socket.clone()) as Stream, false)),
        // On the heap, as all that a connection does but waiting for heads: its task stays small.
        Some(tls) => Box::pin(handshake(service, tls, (&socket, peer), &limits)).await,
    };
    let Some((mut stream, is_http2)) = accepted else {
        return;
    };
    if is_http2 {
        return Box::pin(streams(service, stream, peer, &limits)).await;
    }
    // Not at hops: a router tries HTTP/2 to find out whether the server speaks gRPC, and falls back to HTTP/1.1.
    let mut may_be_http2 = is_clear && service.role == Role::Front;
    let (mut buffer, mut phase) = (BytesMut::new(), service.phase.clone());
    loop {
        // A reload may have changed them.
        let limits = service.shared.limits(&service.role);
        let next = {
            let head = http1::next_head(&mut stream, &mut buffer, may_be_http2, &limits);
            unless_closing(&mut phase, pin!(head)).await
        };
        match next.unwrap_or(Err(None)) {
            Ok(Version::HTTP_2) => {
                let stream = Box::new(socket.with_prefix(buffer.freeze()));
                return Box::pin(streams(service, stream, peer, &limits)).await;
            }
            Ok(_) => {}
            Err(None) => return,
            Err(Some(why)) => return refuse(service, peer, stream, why).await,
        }
        may_be_http2 = false;
        let read = (stream, std::mem::take(&mut buffer));
        let parsed = http1::parse(read, peer, &socket, is_clear, &service.shared.clock).await;
        let exchange = match parsed {
            Ok(exchange) => exchange,
            Err(stream) => return refuse(service, peer, stream, Refusal::BrokenHead).await,
        };
        // Made on the heap, as it is large: the task of an idle connection stays small.
        let served = Box::write(Box::new_uninit(), request::serve(service, exchange));
        let Some(kept) = Box::into_pin(served).await else {
            return;
        };
        let (kept, read) = kept.into_parts();
        (stream, buffer) = (kept, read.unwrap_or_default());
    }
}

/// Counts a client that sent no valid request, answers it, and closes.
async fn refuse(service: &Service, peer: SocketAddr, stream: Stream, why: Refusal) {
    count_refusal(service, peer, why);
    why.response().send(stream).await;
}

/// Performs the TLS handshake. Returns the client's stream, and whether HTTP/2 was agreed on.
async fn handshake(
    service: &Service,
    tls: &Tls,
    (socket, peer): (&Socket, SocketAddr),
    limits: &Limits,
) -> Option<(Stream, bool)> {
    let acceptor = Acceptor::from_server_config(tls.load_full());
    let handshake = acceptor.tls_handshake(socket.clone());
    let handshake = tokio::time::timeout(limits.client_head_timeout_s.get(), handshake);
    match unless_closing(&mut service.phase.clone(), handshake).await? {
        Ok(Ok(stream)) => {
            let is_http2 = stream.selected_alpn_proto() == Some(ALPN::H2);
            return Some((Box::new(stream), is_http2));
        }
        // Not logged: whoever only tries whether the port is open fails too.
        Ok(Err(_)) => service.shared.metrics.broken_heads.with(&[]).inc(),
        Err(_) => count_refusal(service, peer, Refusal::HeadTooSlow),
    }
    None
}

/// Waits for something of a client that has no request; `None` once the proxy closes such connections. What is passed by value is in
/// the caller's task twice.
async fn unless_closing<T>(
    phase: &mut watch::Receiver<Phase>,
    awaited: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        _ = phase.wait_for(|phase| *phase >= Phase::Closing) => None,
        awaited = awaited => Some(awaited),
    }
}

/// Serves the streams of a connection of HTTP/2.
async fn streams(service: &Arc<Service>, stream: Stream, peer: SocketAddr, limits: &Limits) {
    let mut connection = match http2::open(stream, limits).await {
        Ok(connection) => connection,
        Err(why) => return count_refusal(service, peer, why),
    };
    let idle_timeout = Duration::from_secs(limits.client_idle_timeout_s.get());
    let mut phase = service.phase.clone();
    // They end when it is dropped.
    let mut streams = JoinSet::new();
    let mut rejected = 0;
    while rejected < MAX_REJECTED {
        match http2::next(&mut connection, &mut streams, idle_timeout, &mut phase).await {
            Ok(Some(session)) => {
                let arrival = service.shared.clock.now();
                let exchange = Exchange::new(session, peer, arrival, None, false);
                // A further stream takes as much memory as a connection with a request.
                let permit = (!streams.is_empty()).then(|| service.connection_permit());
                if matches!(permit, Some(None)) {
                    request::refuse(service, exchange);
                    continue;
                }
                let (service, open) = (service.clone(), service.open.subscribe());
                streams.spawn(async move {
                    request::serve(&service, Box::new(exchange)).await;
                    drop((permit, open));
                });
            }
            Ok(None) => break,
            Err(why) => {
                rejected += 1;
                count_refusal(service, peer, why);
            }
        }
    }
    drop(connection);
    // Each sees that the client is gone.
    while streams.join_next().await.is_some() {}
}

/// Counts and logs a client that sent no valid request. One `log::warn!` for each kind, as the log counts repeated lines by their
/// source line.
fn count_refusal(service: &Service, peer: SocketAddr, why: Refusal) {
    service.shared.metrics.broken_heads.with(&[]).inc();
    match why {
        Refusal::HeadTooLarge => {
            log::warn!("client {peer}: its request's head is over request_head_max_bytes");
        }
        Refusal::HeadTooSlow => {
            log::warn!(
                "client {peer}: its request's head, or its TLS handshake, took longer than client_head_timeout_s"
            );
        }
        _ => log::warn!("client {peer}: no request: cut off within its head, or not valid HTTP"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the task that serves a client.
    fn task_size<Task>(
        _: impl FnOnce(&'static Arc<Service>, TcpStream, SocketAddr) -> Task,
    ) -> usize {
        size_of::<Task>()
    }

    /// Each idle connection has one: what it does not need while it waits for a head is on the heap, and a future that is passed by
    /// value would be in its caller's twice.
    #[test]
    fn the_task_of_a_connection_is_small() {
        let bytes = task_size(serve);
        assert!((1..=2048).contains(&bytes), "{bytes} bytes");
    }
}
