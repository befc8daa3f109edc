//! A client's HTTP/2 connection: its streams are requests, each in a task of its own.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pingora::protocols::http::v2::server::{
    H2Accept, H2Options, HttpSession, default_h2_options, handshake,
};
use pingora::protocols::{Digest, Stream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock::Clock;

use super::answer::Refusal;
use super::exchange::{Exchange, UNSENT};
use super::limits::Limits;
use super::phase::Phase;

/// A connection, and the tasks of its streams: dropped, all of them end.
pub struct Http2Client {
    client: h2::server::Connection<Stream, Bytes>,
    /// Who is at the other end.
    pub peer: SocketAddr,
    streams: JoinSet<()>,
    phase: watch::Receiver<Phase>,
    known: Phase,
    digest: Arc<Digest>,
    idle: Duration,
    rejected: u32,
    clock: Clock,
}

/// Requests at once on a connection. A client waits with those beyond, unseen by us: more than any sends.
const STREAMS: u32 = 1000;
/// Bytes of a request body that may come before we ask for more: on a stream, on a connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// How long an idle client has to close when the proxy does.
const LAST: Duration = Duration::from_secs(1);
/// Requests not fit to be taken, after which the connection is given up.
const REJECTED: u32 = 32;

impl Http2Client {
    /// Shakes hands over a connection whose client speaks HTTP/2.
    ///
    /// # Errors
    /// It does not, or takes too long.
    pub async fn open(
        stream: Stream,
        peer: SocketAddr,
        limits: &Limits,
        phase: watch::Receiver<Phase>,
        clock: Clock,
    ) -> Result<Http2Client, Refusal> {
        let shaken = handshake(stream, Some(options(limits)));
        let client = match tokio::time::timeout(limits.client_head, shaken).await {
            Ok(Ok(client)) => client,
            Ok(Err(_)) => return Err(Refusal::BrokenHead),
            Err(_) => return Err(Refusal::HeadTooSlow),
        };
        Ok(Http2Client {
            client,
            peer,
            streams: JoinSet::new(),
            phase,
            known: Phase::Serving,
            digest: Arc::new(Digest::default()),
            idle: Duration::from_secs(limits.client_idle_s),
            rejected: 0,
            clock,
        })
    }

    /// The next request; `None` when there are no more.
    ///
    /// # Errors
    /// Something came that is not fit to be taken: others may follow.
    pub async fn next(&mut self) -> Result<Option<Exchange>, Refusal> {
        while self.rejected < REJECTED {
            let is_closing = self.known >= Phase::Closing;
            let accepted = tokio::select! {
                biased;
                later = later_than(self.known, &mut self.phase) => {
                    self.known = later;
                    let is_over = later == Phase::Closing && self.streams.is_empty();
                    if is_over || later == Phase::Cut {
                        return Ok(None);
                    }
                    // Streams that the client has begun go on.
                    self.client.graceful_shutdown();
                    continue;
                }
                Some(_) = self.streams.join_next() => continue,
                accepted = HttpSession::from_h2_conn(&mut self.client, self.digest.clone()) => accepted,
                // Not every client closes.
                () = tokio::time::sleep(if is_closing { LAST } else { self.idle }), if self.streams.is_empty() => {
                    return Ok(None);
                }
            };
            match accepted {
                Ok(Some(H2Accept::Session(session))) => {
                    let arrival = self.clock.now();
                    return Ok(Some(Exchange::http2(session, self.peer, arrival)));
                }
                Ok(Some(H2Accept::Rejected)) => {
                    self.rejected += 1;
                    return Err(Refusal::BrokenHead);
                }
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.rejected = REJECTED;
                    if is_clients_fault(&error) {
                        return Err(Refusal::BrokenHead);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Serves a request in a task of its own.
    pub fn serve(&mut self, request: impl Future<Output = ()> + Send + 'static) {
        self.streams.spawn(request);
    }

    /// Closes the connection, and waits for its requests: each sees for itself that the client is gone.
    pub async fn close(self) {
        let Http2Client {
            client,
            mut streams,
            ..
        } = self;
        drop(client);
        while streams.join_next().await.is_some() {}
    }
}

fn options(limits: &Limits) -> H2Options {
    let mut options = default_h2_options();
    options
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(limits.request_head_bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(UNSENT)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    options
}

/// Whether what the client sent is not HTTP/2; else its connection broke.
fn is_clients_fault(error: &pingora::Error) -> bool {
    let cause = error.cause.as_ref();
    let cause = cause.and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(h2::Error::is_library)
}

/// Waits for a phase after `known`; a proxy that is gone is cut off.
async fn later_than(known: Phase, phase: &mut watch::Receiver<Phase>) -> Phase {
    let later = phase.wait_for(|phase| *phase > known).await;
    later.map_or(Phase::Cut, |phase| *phase)
}
