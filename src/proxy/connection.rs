//! A listener's connections, and each from its first byte to its end: the limit on connections, TLS, the version of
//! HTTP, requests one after another.

use std::net::SocketAddr;
use std::sync::Arc;

use pingora::protocols::Stream;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::client::answer::Refusal;
use crate::client::http1::{Client, Next};
use crate::client::http2::Http2Client;
use crate::client::limits::Limits;
use crate::client::listener::ListenSocket;
use crate::client::phase::Phase;
use crate::client::stream::Socket;
use crate::client::tls::{self, Tls};
use crate::fault::Kind;
use crate::telemetry::prometheus::Limit;

use super::failure::limit;
use super::request;
use super::service::Service;
use super::shared::Role;

/// Serves the connections of `socket` until the listener is stopped and all of them have ended, or everything is cut
/// off.
pub async fn accept(service: Arc<Service>, socket: ListenSocket) {
    // What still waits to be accepted counts as a connection, until accepting ends.
    let waiting = service.listener.open.subscribe();
    let mut phase = service.listener.phase.clone();
    let mut connections = JoinSet::new();
    let served = |(stream, peer)| {
        let (service, open) = (service.clone(), service.listener.open.subscribe());
        async move {
            serve(&service, stream, peer).await;
            drop(open);
        }
    };
    loop {
        tokio::select! {
            accepted = socket.accept(&service.listener) => {
                let Some(accepted) = accepted else { break };
                connections.spawn(served(accepted));
            }
            Some(_) = connections.join_next() => {}
        }
    }
    for accepted in socket.waiting() {
        connections.spawn(served(accepted));
    }
    drop(socket);
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
        metrics.client_limit(Limit::Connections);
        // Under TLS there can be no answer before the handshake.
        let permit = service.listener.refuse();
        return match permit.filter(|_| service.tls().is_none()) {
            Some(_permit) => Refusal::TooManyConnections.answer().close(socket).await,
            None => Socket::new(socket).reset(),
        };
    };
    let socket = Socket::new(socket);
    let is_chance = |kind| kind == Kind::Refuse;
    let faults = service.faults();
    if faults.is_some_and(|(all, worker)| all.chance(worker, peer, None, is_chance).is_some()) {
        return socket.reset();
    }
    let limits = service.shared.limits(&service.role);
    // Not at hops: routers try it there to find servers that speak gRPC; refused, they use HTTP/1.1.
    let takes_http2 = service.role == Role::Front;
    let clock = service.shared.clock.clone();
    let mut client = match service.tls() {
        None => Client::new(None, socket, peer, takes_http2, clock),
        Some(tls) => match handshake(service, tls, &socket, &limits).await {
            None => return,
            Some((stream, true)) => {
                return Box::pin(streams(service, stream, peer, &limits)).await;
            }
            Some((stream, false)) => Client::new(Some(stream), socket, peer, false, clock),
        },
    };
    let mut is_first = true;
    let mut phase = service.listener.phase.clone();
    loop {
        match client.next(&limits, &mut phase).await {
            Next::Request(mut exchange) => {
                exchange.is_first = std::mem::take(&mut is_first);
                // On the heap, or each idle connection would hold as much; made there, as it is large.
                let served = Box::write(Box::new_uninit(), request::serve(service, exchange));
                let rest = Box::into_pin(served).await;
                client.take_back(rest);
            }
            Next::Http2(stream) => {
                return Box::pin(streams(service, stream, peer, &limits)).await;
            }
            Next::Refused(why) => {
                refused(service, peer, why);
                return client.refuse(why).await;
            }
            Next::Over => return,
        }
    }
}

/// The handshake, where the listener speaks TLS. Gives the client's stream, and whether HTTP/2 was agreed on.
async fn handshake(
    service: &Service,
    tls: &Tls,
    socket: &Socket,
    limits: &Limits,
) -> Option<(Stream, bool)> {
    let mut phase = service.listener.phase.clone();
    let closing = phase.wait_for(|phase| *phase >= Phase::Closing);
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(limits.client_head_timeout_s.get(), tls::accept(tls, socket.clone())) => accepted,
        _ = closing => return None,
    };
    match accepted {
        Ok(Ok(accepted)) => return Some(accepted),
        Ok(Err(_)) => service.shared.metrics.tls_failures.with(&[]).inc(),
        Err(_) => service.shared.metrics.client_limit(Limit::HeadTime),
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
                // Beside another it takes as much memory as a connection with a request.
                let is_alone = client.is_idle();
                let permit = (!is_alone).then(|| service.listener.serve()).flatten();
                if permit.is_none() && !is_alone {
                    service.shared.metrics.client_limit(Limit::Connections);
                    request::refuse(service, exchange);
                    continue;
                }
                let service = service.clone();
                client.serve(async move {
                    request::serve(&service, Box::new(exchange)).await;
                    drop(permit);
                });
            }
            Ok(None) => break,
            Err(why) => refused(service, peer, why),
        }
    }
    client.close().await;
}

/// Counts bytes that made no request, and logs them. One `log::warn!` for each kind, as the log counts repeated lines by
/// their source line.
fn refused(service: &Service, peer: SocketAddr, why: Refusal) {
    let metrics = &service.shared.metrics;
    metrics.broken_heads.with(&[]).inc();
    if let Some(limit) = limit(why) {
        metrics.client_limit(limit);
    }
    match why {
        Refusal::HeadTooLarge => {
            log::warn!("client {peer}: its request's head is over request_head_max_bytes");
        }
        Refusal::HeadTooSlow => {
            log::warn!("client {peer}: its request's head took longer than client_head_timeout_s");
        }
        Refusal::BadTarget => {
            log::warn!("client {peer}: its request's target holds a control byte");
        }
        _ => log::warn!("client {peer}: no request: cut off within its head, or not HTTP"),
    }
}
