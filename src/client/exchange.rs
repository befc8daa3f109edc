//! One request and its response, on the client's side.

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::TRANSFER_ENCODING;
use pingora::ErrorType::WriteError;
use pingora::OrErr;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::{HttpTask, ServerSession};

use crate::clock::Stamp;

use super::limits::CLOSE_TIMEOUT;
use super::socket::{MAX_UNSENT_BYTES, Socket};

/// A request whose head was read, and the connection or stream that its response is written to.
pub struct Exchange {
    /// The client's address.
    pub peer: SocketAddr,
    /// When the head had been read.
    pub arrival: Stamp,
    /// Reads the request's body, and knows whether the connection is kept.
    pub session: ServerSession,
    /// `None` for a stream of HTTP/2.
    socket: Option<Socket>,
    /// Whether the session writes to the socket directly, without TLS.
    is_clear: bool,
    /// Whether the response's body is sent in chunks.
    is_chunked: bool,
}

/// A part of a response, and whether it is the last.
#[derive(Debug)]
pub enum Part {
    /// The head.
    Head(Box<ResponseHeader>, bool),
    /// A piece of the body.
    Body(Vec<u8>, bool),
}

/// Why a part of a response was not written.
#[derive(Debug)]
pub enum NotWritten {
    /// The client is gone.
    ClientGone,
    /// The client did not take all of it in time.
    Stalled,
}

impl Exchange {
    /// Creates the exchange of a stream of HTTP/2 or, with its socket, of a connection.
    pub fn new(
        session: ServerSession,
        peer: SocketAddr,
        arrival: Stamp,
        socket: Option<Socket>,
        is_clear: bool,
    ) -> Exchange {
        Exchange {
            peer,
            arrival,
            session,
            socket,
            is_clear,
            is_chunked: false,
        }
    }

    /// The request's head.
    pub fn head(&self) -> &RequestHeader {
        self.session.req_header()
    }

    /// Waits until the client has closed its connection; for HTTP/2 and TLS see [`Exchange::stream_closed`].
    pub fn closed(&self) -> impl Future<Output = ()> + use<> {
        closed(self.socket.clone())
    }

    /// Waits until the client has reset its stream of HTTP/2 or, once its request is whole, closed its side of TLS.
    pub async fn stream_closed(&mut self) {
        let is_tls_idle = !self.is_clear && self.session.is_body_done();
        match self.session.is_http2() || is_tls_idle {
            true => drop(self.session.read_body_or_idle(true).await),
            false => pending().await,
        }
    }

    /// Waits until the client is gone, by its connection or its stream. Reads nothing of its request.
    pub async fn gone(&mut self) {
        let closed = self.closed();
        tokio::select! {
            () = closed => {}
            () = self.stream_closed() => {}
        }
    }

    /// Writes a part of the response, and returns the buffer of a piece. If the client does not take it at once, it may within
    /// `limit`, while `meanwhile` runs.
    ///
    /// # Errors
    /// See [`NotWritten`].
    pub async fn write(
        &mut self,
        part: Part,
        limit: Duration,
        meanwhile: impl Future<Output = Infallible>,
    ) -> Result<Vec<u8>, NotWritten> {
        if let Part::Head(head, false) = &part {
            // Pingora frames a head with several codings by the last.
            let codings = head.headers.get_all(TRANSFER_ENCODING).iter();
            self.is_chunked = codings.eq(["chunked"]) && !head.status.is_informational();
        }
        let socket = &self.socket;
        let chunks = socket.as_ref().filter(|_| self.is_clear && self.is_chunked);
        tokio::select! {
            biased;
            written = write(&mut self.session, chunks, part) => written.map_err(|_| NotWritten::ClientGone),
            never = meanwhile => match never {},
            // These futures are made only if the write is pending.
            () = async { closed(socket.clone()).await } => Err(NotWritten::ClientGone),
            () = async { tokio::time::sleep(limit).await } => Err(NotWritten::Stalled),
        }
    }

    /// Sends a whole response, after which the connection is not kept. Returns whether all of it was written.
    pub async fn answer(&mut self, head: ResponseHeader, body: Vec<u8>, limit: Duration) -> bool {
        self.session.set_keepalive(None);
        for part in [Part::Head(Box::new(head), false), Part::Body(body, true)] {
            let written = self.write(part, limit, pending()).await;
            if written.is_err() {
                return false;
            }
        }
        true
    }

    /// Reads for a moment what is left of the request's body, after the response: closing on unread bytes would reset the connection
    /// before the client has read that. If there is more, the connection is not kept.
    pub async fn drain(&mut self) {
        if self.session.was_upgraded() || self.session.is_body_done() {
            return;
        }
        let rest = self.session.drain_request_body();
        let rest = tokio::time::timeout(CLOSE_TIMEOUT, rest).await;
        if !matches!(rest, Ok(Ok(()))) {
            self.session.set_keepalive(None);
        }
    }

    /// Makes the connection end with a reset.
    pub fn reset(&self) {
        if let Some(socket) = &self.socket {
            socket.reset();
        }
    }

    /// Ends a response within its body. A stream of HTTP/2 is reset when it is dropped, and would lose what is buffered: that is
    /// sent first.
    pub async fn break_off(mut self) {
        let ServerSession::H2(session) = &mut self.session else {
            return;
        };
        let Some(mut writer) = session.take_response_body_writer() else {
            return;
        };
        let flushed = async move {
            writer.reserve_capacity(MAX_UNSENT_BYTES);
            // All capacity is free again once nothing is buffered; a response that has ended gets none.
            while writer.capacity() < MAX_UNSENT_BYTES
                && let Some(Ok(_)) = poll_fn(|cx| writer.poll_capacity(cx)).await
            {}
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, flushed).await;
    }
}

async fn closed(socket: Option<Socket>) {
    match socket {
        Some(socket) => socket.closed().await,
        None => pending().await,
    }
}

/// Writes a part. Chunks go straight to the socket `chunks`: Pingora's writer would copy and allocate for each.
async fn write(
    session: &mut ServerSession,
    chunks: Option<&Socket>,
    part: Part,
) -> pingora::Result<Vec<u8>> {
    let (piece, is_end) = match part {
        Part::Head(head, is_end) => {
            // In HTTP/2 the end stands on the head: a length in a 304 is no error then.
            let head = vec![HttpTask::Header(head, is_end)];
            session.response_duplex_vec(head).await?;
            return Ok(Vec::new());
        }
        Part::Body(piece, is_end) => (piece, is_end),
    };
    if !piece.is_empty() {
        match (&mut *session, chunks) {
            (_, Some(socket)) => {
                let written = socket.write_chunk(&piece).await;
                written.or_err(WriteError, "a chunk")?;
            }
            (ServerSession::H1(session), None) => drop(session.write_body(&piece).await?),
            (session, None) => {
                // Exactly its bytes, as they may wait long for the client.
                let piece = Bytes::copy_from_slice(&piece);
                session.write_response_body(piece, is_end).await?;
            }
        }
    }
    if is_end {
        session.finish_body().await?;
    }
    Ok(piece)
}
