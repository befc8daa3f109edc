//! A client's connection of HTTP/2: each stream is a request, with a task of its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::{H2Accept, HttpSession, default_h2_options, handshake};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::limits::{CLOSE_TIMEOUT, Limits, Refusal};
use super::listener::Phase;
use super::socket::MAX_UNSENT_BYTES;

/// A client's connection.
pub type Connection = h2::server::Connection<Stream, Bytes>;

/// The most requests at once on a connection. A client holds back those beyond, unseen by us; none has as many.
const MAX_STREAMS: u32 = 1000;
/// The most bytes of request bodies that are buffered: of a stream, and of all streams of a connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// Performs the handshake of HTTP/2.
///
/// # Errors
/// The client does not speak HTTP/2, or took too long.
pub async fn open(stream: Stream, limits: &Limits) -> Result<Connection, Refusal> {
    let max_head_bytes = limits.request_head_max_bytes.get();
    let mut options = default_h2_options();
    options
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(u32::try_from(max_head_bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(MAX_UNSENT_BYTES)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let limit = limits.client_head_timeout_s.get();
    let opened = tokio::time::timeout(limit, handshake(stream, Some(options))).await;
    let opened = opened.map_err(|_| Refusal::HeadTooSlow)?;
    opened.map_err(|_| Refusal::BrokenHead)
}

/// Waits for the next request, while `streams` serve those before; `None` if there are no more.
///
/// # Errors
/// A request is not acceptable; others may follow.
pub async fn next(
    connection: &mut Connection,
    streams: &mut JoinSet<()>,
    idle_timeout: Duration,
    phase: &mut watch::Receiver<Phase>,
) -> Result<Option<ServerSession>, Refusal> {
    loop {
        let is_closing = *phase.borrow() >= Phase::Closing;
        let accepted = tokio::select! {
            biased;
            changed = phase.changed() => {
                let is_closing = *phase.borrow_and_update() >= Phase::Closing;
                // Without a sender, the proxy is gone.
                if changed.is_err() || (is_closing && streams.is_empty()) {
                    return Ok(None);
                }
                // Streams that the client has begun go on; those that are cut off are dropped with the connection's task.
                connection.graceful_shutdown();
                continue;
            }
            Some(_) = streams.join_next() => continue,
            accepted = HttpSession::from_h2_conn(connection, Arc::default()) => accepted,
            () = tokio::time::sleep(if is_closing { CLOSE_TIMEOUT } else { idle_timeout }), if streams.is_empty() => {
                return Ok(None);
            }
        };
        return match accepted {
            Ok(Some(H2Accept::Session(session))) => Ok(Some(ServerSession::H2(session))),
            Ok(Some(H2Accept::Rejected)) => Err(Refusal::BrokenHead),
            // It is closed, broke, or does not speak HTTP/2.
            Ok(None) | Err(_) => Ok(None),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::SocketAddr;

    use http::Request;
    use pingora::http::ResponseHeader;
    use tokio::io::DuplexStream;

    use super::*;
    use crate::client::exchange::{Exchange, NotWritten, Part};
    use crate::clock::Stamp;

    const IDLE: Duration = Duration::from_secs(75);

    /// Answers the one request of a client, which is sent so many bytes within `limit`, and then the end or a break. The client rests
    /// for `pause` after each frame, and little is buffered that it has not read: `room`. Returns what came of writing and how many
    /// bytes the client has.
    async fn exchange(
        (room, bytes, is_end): (usize, usize, bool),
        limit: Duration,
        pause: Duration,
    ) -> (Result<(), NotWritten>, usize) {
        let (near, far) = tokio::io::duplex(room);
        let phase = watch::Sender::new(Phase::Serving);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let (tells, told) = tokio::sync::oneshot::channel();
        let serves = async {
            let (limits, mut phase_seen) = (Limits::default(), phase.subscribe());
            let mut client = open(Box::new(far), &limits).await.unwrap();
            let mut streams = JoinSet::new();
            let session = next(&mut client, &mut streams, IDLE, &mut phase_seen).await;
            let session = session.unwrap().unwrap();
            let mut request = Exchange::new(session, peer, Stamp::EPOCH, None, false);
            streams.spawn(async move {
                let head = Box::new(ResponseHeader::build(200, None).unwrap());
                let head = request.write(Part::Head(head, false), limit, pending());
                head.await.unwrap();
                let body = Part::Body(vec![b'x'; bytes], is_end);
                let written = request.write(body, limit, pending()).await;
                tells.send(written.map(drop)).unwrap();
                request.break_off().await;
            });
            phase.send_replace(Phase::Closing);
            let next = next(&mut client, &mut streams, IDLE, &mut phase_seen).await;
            assert!(matches!(next, Ok(None)));
            drop(client);
            while streams.join_next().await.is_some() {}
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
