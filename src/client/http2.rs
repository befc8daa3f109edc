//! A client's connection of HTTP/2: each stream is a request, with a task of its own.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::{
    H2Accept, H2Options, HttpSession, default_h2_options, handshake,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock::Clock;

use super::error_response::Refusal;
use super::exchange::{Exchange, MAX_UNSENT_BYTES};
use super::limits::Limits;
use super::phase::Phase;

/// A connection, and the tasks of its streams, which end when it is dropped.
pub struct Http2Client {
    connection: h2::server::Connection<Stream, Bytes>,
    /// The client's address.
    pub peer: SocketAddr,
    streams: JoinSet<()>,
    phase: watch::Receiver<Phase>,
    idle_timeout: Duration,
    /// How many requests were not acceptable.
    rejected: u32,
    clock: Clock,
}

/// The most requests at once on a connection. A client holds back those beyond, unseen by us; none has as many.
const MAX_STREAMS: u32 = 1000;
/// The most bytes of request bodies that are buffered: of a stream, and of all streams of a connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// How long an idle client has to close once the proxy closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// After how many requests that are not acceptable the connection is closed.
const MAX_REJECTED: u32 = 32;

impl Http2Client {
    /// Performs the handshake of HTTP/2.
    ///
    /// # Errors
    /// The client does not speak HTTP/2, or took too long.
    pub async fn open(
        stream: Stream,
        peer: SocketAddr,
        limits: &Limits,
        phase: watch::Receiver<Phase>,
        clock: Clock,
    ) -> Result<Http2Client, Refusal> {
        let handshake = handshake(stream, Some(options(limits)));
        let limit = limits.client_head_timeout_s.get();
        let connection = match tokio::time::timeout(limit, handshake).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(_)) => return Err(Refusal::BrokenHead),
            Err(_) => return Err(Refusal::HeadTooSlow),
        };
        Ok(Http2Client {
            connection,
            peer,
            streams: JoinSet::new(),
            phase,
            idle_timeout: Duration::from_secs(limits.client_idle_timeout_s.get()),
            rejected: 0,
            clock,
        })
    }

    /// Waits for the next request; `None` if there are no more.
    ///
    /// # Errors
    /// A request is not acceptable; others may follow.
    pub async fn next(&mut self) -> Result<Option<Exchange>, Refusal> {
        while self.rejected < MAX_REJECTED {
            let is_closing = *self.phase.borrow() >= Phase::Closing;
            let accepted = tokio::select! {
                biased;
                changed = self.phase.changed() => {
                    // Without a sender, the proxy is gone.
                    let phase = changed.map_or(Phase::Aborting, |()| *self.phase.borrow_and_update());
                    let is_over = phase == Phase::Closing && self.streams.is_empty();
                    if is_over || phase == Phase::Aborting {
                        return Ok(None);
                    }
                    // Streams that the client has begun go on.
                    self.connection.graceful_shutdown();
                    continue;
                }
                Some(_) = self.streams.join_next() => continue,
                accepted = HttpSession::from_h2_conn(&mut self.connection, Arc::default()) => accepted,
                () = tokio::time::sleep(if is_closing { CLOSE_TIMEOUT } else { self.idle_timeout }), if self.streams.is_empty() => {
                    return Ok(None);
                }
            };
            return match accepted {
                Ok(Some(H2Accept::Session(session))) => {
                    let session = ServerSession::H2(session);
                    let request = Exchange::new(session, self.peer, self.clock.now(), None, false);
                    Ok(Some(request))
                }
                Ok(Some(H2Accept::Rejected)) => {
                    self.rejected += 1;
                    Err(Refusal::BrokenHead)
                }
                // It is closed, broke, or does not speak HTTP/2.
                Ok(None) | Err(_) => Ok(None),
            };
        }
        Ok(None)
    }

    /// Whether no request is being served.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Serves a request in a task of its own.
    pub fn serve(&mut self, request: impl Future<Output = ()> + Send + 'static) {
        self.streams.spawn(request);
    }

    /// Closes the connection, and waits for its requests to end: each sees that the client is gone.
    pub async fn close(mut self) {
        drop(self.connection);
        while self.streams.join_next().await.is_some() {}
    }
}

fn options(limits: &Limits) -> H2Options {
    let mut options = default_h2_options();
    options
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(
            u32::try_from(limits.request_head_max_bytes.get()).unwrap_or(u32::MAX),
        )
        .max_send_buffer_size(MAX_UNSENT_BYTES)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    options
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use http::Request;
    use pingora::http::ResponseHeader;
    use tokio::io::DuplexStream;

    use super::*;
    use crate::client::exchange::{NotWritten, Part};

    /// Answers the one request of a client, which is sent so many bytes within `limit`, and then the end or a break. The client rests
    /// for `pause` after each frame, and little is buffered that it has not read: `room`. Returns what came of writing and how many
    /// bytes the client has.
    async fn exchange(
        (room, bytes, is_end): (usize, usize, bool),
        limit: Duration,
        pause: Duration,
    ) -> (Result<(), NotWritten<()>>, usize) {
        let (near, far) = tokio::io::duplex(room);
        let phase = watch::Sender::new(Phase::Serving);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let (tells, told) = tokio::sync::oneshot::channel();
        let serves = async {
            let (far, limits) = (Box::new(far), Limits::default());
            let client = Http2Client::open(far, peer, &limits, phase.subscribe(), Clock::system());
            let mut client = client.await.unwrap();
            let mut request = client.next().await.unwrap().unwrap();
            client.serve(async move {
                let head = Box::new(ResponseHeader::build(200, None).unwrap());
                let head = request.write(Part::Head(head, false), limit, pending::<()>());
                head.await.unwrap();
                let body = Part::Body(vec![b'x'; bytes], is_end);
                let written = request.write(body, limit, pending::<()>()).await;
                tells.send(written.map(drop)).unwrap();
                request.break_off().await;
            });
            phase.send_replace(Phase::Closing);
            assert!(matches!(client.next().await, Ok(None)));
            client.close().await;
        };
        let ((), read, written) = tokio::join!(serves, read(near, pause), told);
        (written.unwrap(), read)
    }

    /// Plays a client that sends a request and rests for `pause` after each frame of the response. Returns how many bytes of it came.
    async fn read(near: DuplexStream, pause: Duration) -> usize {
        let (mut requests, connection) = h2::client::handshake(near).await.unwrap();
        let driver = tokio::spawn(connection);
        let request = Request::get("http://h/").body(()).unwrap();
        let (response, _) = requests.send_request(request, true).unwrap();
        let mut body = response.await.unwrap().into_body();
        let mut read = 0;
        while let Some(Ok(piece)) = body.data().await {
            tokio::time::sleep(pause).await;
            body.flow_control().release_capacity(piece.len()).unwrap();
            read += piece.len();
        }
        drop((requests, driver));
        read
    }

    #[tokio::test]
    async fn a_connection_ends_only_once_what_is_buffered_of_broken_streams_was_sent() {
        let cut = (100, 20_000, false);
        let (written, read) = exchange(cut, Duration::from_secs(60), Duration::ZERO).await;
        assert!(written.is_ok());
        assert_eq!(read, 20_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_piece_may_take_as_long_as_a_response_may() {
        let [second, minute, hour] = [1, 60, 3600].map(Duration::from_secs);
        let large = (100_000, 200_000, true);
        assert!(exchange(large, hour, 10 * second).await.0.is_ok());
        let (stalled, _) = exchange(large, minute, 10 * second).await;
        assert!(matches!(stalled, Err(NotWritten::Stalled)));
    }
}
