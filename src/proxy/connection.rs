//! A listener's connections, and each from its first byte to its end: the limit on connections, TLS, the version of
//! HTTP, requests one after another.

use std::net::SocketAddr;
use std::sync::Arc;

use pingora::protocols::Stream;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::client::accept::{Accepting, Admission};
use crate::client::answer::Refusal;
use crate::client::http1::{Client, Next};
use crate::client::http2::Http2Client;
use crate::client::limits::Limits;
use crate::client::phase::Phase;
use crate::client::stream::{ClientStream, Socket, Transport};
use crate::client::tls::HTTP2;
use crate::telemetry::prometheus::Limit;

use super::request;
use super::service::Service;

/// Serves the connections of `socket` until the listener is stopped and all of them have ended, or everything is cut
/// off.
pub async fn accept(service: Arc<Service>, socket: Arc<TcpListener>) {
    // What still waits to be accepted counts as a connection, until accepting ends.
    let waiting = service.listener.open.subscribe();
    let mut accepting = Accepting::new(socket, &service.listener);
    let mut phase = service.listener.phase.clone();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = accepting.next() => {
                let Some((socket, peer)) = accepted else { break };
                let (service, open) = (service.clone(), service.listener.open.subscribe());
                connections.spawn(async move {
                    serve(&service, socket, peer).await;
                    drop(open);
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(accepting);
    drop(waiting);
    let all = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = all => {}
        // Those that are left are dropped.
        _ = phase.wait_for(|phase| *phase == Phase::Cut) => {}
    }
}

/// Serves a client's connection to its end: requests one after another until either side closes it, a limit
/// is met, or the proxy closes idle connections.
async fn serve(service: &Arc<Service>, socket: TcpStream, peer: SocketAddr) {
    let metrics = &service.shared.metrics;
    let Some(_permit) = service.listener.serve() else {
        metrics
            .client_limits
            .with(&[Limit::Connections.name()])
            .inc();
        // Under TLS there can be no answer before the handshake.
        let permit = service.listener.refuse();
        return match permit.filter(|_| service.tls().is_none()) {
            Some(_permit) => Refusal::TooManyConnections.answer().close(socket).await,
            None => Socket::new(socket).reset(),
        };
    };
    let socket = Socket::new(socket);
    let admission = service.admit(peer);
    if admission == Admission::Refused {
        return socket.reset();
    }
    let limits = service.limits();
    let Some((io, agreed)) = handshake(service, &socket, &limits).await else {
        return;
    };
    let stream = ClientStream::new(io, &socket);
    if service.takes_http2() && agreed == Some(true) {
        return Box::pin(streams(service, Box::new(stream), peer, &limits)).await;
    }
    let by_preface = service.takes_http2() && agreed.is_none();
    let clock = service.shared.clock.clone();
    let mut client = Client::new(
        stream,
        (socket, peer),
        (agreed.is_none(), by_preface),
        clock,
    );
    client.is_spared = admission == Admission::Spared;
    let mut phase = service.listener.phase.clone();
    loop {
        match client.next(&limits, &mut phase).await {
            Next::Request(exchange) => {
                // On the heap, or each idle connection would hold as much; made there, as it is large.
                let served = Box::write(Box::new_uninit(), request::serve(service, exchange));
                let rest = Box::into_pin(served).await;
                client.take_back(rest);
            }
            Next::Http2(stream) => {
                return Box::pin(streams(service, stream, peer, &limits)).await;
            }
            Next::Refused(why, stream) => {
                refused(service, peer, why);
                if let Some(stream) = stream {
                    why.answer().close(stream).await;
                }
                return;
            }
            Next::Over => return,
        }
    }
}

/// The handshake, where the listener speaks TLS. Gives whether HTTP/2 was agreed on; `None` in the clear.
async fn handshake(
    service: &Service,
    socket: &Socket,
    limits: &Limits,
) -> Option<(Box<dyn Transport>, Option<bool>)> {
    let Some(tls) = service.tls() else {
        return Some((Box::new(socket.clone()), None));
    };
    let mut phase = service.listener.phase.clone();
    let closing = phase.wait_for(|phase| *phase >= Phase::Closing);
    let stream = tokio::select! {
        stream = tokio::time::timeout(limits.client_head, tls.accept(socket.clone())) => stream,
        _ = closing => return None,
    };
    match stream {
        Ok(Ok(stream)) => {
            let agreed = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
            return Some((Box::new(stream), Some(agreed)));
        }
        Ok(Err(_)) => service.shared.metrics.tls_failures.with(&[]).inc(),
        Err(_) => service
            .shared
            .metrics
            .client_limits
            .with(&[Limit::HeadTime.name()])
            .inc(),
    }
    None
}

/// Serves the streams of HTTP/2 of a connection.
async fn streams(service: &Arc<Service>, stream: Stream, peer: SocketAddr, limits: &Limits) {
    let (phase, clock) = (service.listener.phase.clone(), service.shared.clock.clone());
    let mut client = match Http2Client::open(stream, peer, limits, phase, clock).await {
        Ok(client) => client,
        Err(why) => return refused(service, peer, why),
    };
    loop {
        match client.next().await {
            Ok(Some(exchange)) => {
                let service = service.clone();
                client.serve(async move {
                    request::serve(&service, Box::new(exchange)).await;
                });
            }
            Ok(None) => break,
            Err(_) => {
                service.shared.metrics.broken_heads.with(&[]).inc();
                log::warn!("client {peer}: no request: what it sent is not HTTP/2");
            }
        }
    }
    client.close().await;
}

/// Counts bytes that made no request, and logs them. One `log::warn!` for each kind, as the log counts repeated lines by
/// their source line.
fn refused(service: &Service, peer: SocketAddr, why: Refusal) {
    let metrics = &service.shared.metrics;
    metrics.broken_heads.with(&[]).inc();
    match why {
        Refusal::HeadTooLarge => {
            metrics.client_limits.with(&[Limit::HeadBytes.name()]).inc();
            log::warn!("client {peer}: its request's head is over request_head_max_bytes");
        }
        Refusal::HeadTooSlow => {
            metrics.client_limits.with(&[Limit::HeadTime.name()]).inc();
            log::warn!("client {peer}: its request's head took longer than client_head_timeout_s");
        }
        Refusal::BadTarget => {
            log::warn!("client {peer}: its request's target holds a control byte");
        }
        _ => log::warn!("client {peer}: no request: cut off within its head, or not HTTP/1.1"),
    }
}
