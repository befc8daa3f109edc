//! One request and its response, on the client's side.

use std::future::{Future, pending, poll_fn};
use std::net::SocketAddr;
use std::time::Duration;

use http::header::TRANSFER_ENCODING;
use pingora::ErrorType::WriteError;
use pingora::OrErr;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::{ReusableHttpStream, ServerSession};

use crate::clock::Stamp;

use super::stream::Socket;

/// A request whose head was read, and the way back to its client.
pub struct Exchange {
    /// Who sent it.
    pub peer: SocketAddr,
    /// When its head had been read.
    pub arrival: Stamp,
    /// It is its connection's first.
    pub is_first: bool,
    /// Reads the request's body, and knows whether the connection is kept.
    pub session: ServerSession,
    /// `None` for a stream of HTTP/2.
    pub(super) socket: Option<Socket>,
    /// Nothing lies between the two: no TLS.
    pub(super) is_clear: bool,
    /// The response's body goes in chunks, to the socket at once.
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
pub enum Unwritten<E> {
    /// The client is gone.
    Gone,
    /// It took nothing in time.
    TooSlow,
    /// What went on meanwhile ended it.
    Ended(E),
}

/// Bytes of a response that wait for the client in our memory.
pub(super) const UNSENT: usize = 32 * 1024;
/// How long the client may take what was written of a response that breaks off.
const LAST_WRITE: Duration = Duration::from_secs(1);
/// How long what is left of a request body is read after we answered ourselves, so that the client can
/// read the answer before the connection closes.
const LAST_READ: Duration = Duration::from_secs(1);

impl Exchange {
    /// A request that was read just now, of a stream of HTTP/2 or, once its socket is set, a connection.
    pub(super) fn new(session: ServerSession, peer: SocketAddr, arrival: Stamp) -> Exchange {
        Exchange {
            peer,
            arrival,
            is_first: false,
            session,
            socket: None,
            is_clear: false,
            is_chunked: false,
        }
    }

    /// The request's head.
    pub fn head(&self) -> &RequestHeader {
        self.session.req_header()
    }

    /// Bytes of the head, where it came as bytes of its own.
    pub fn head_bytes(&self) -> usize {
        let http1 = self.session.as_http1();
        http1.map_or(0, |http1| http1.get_headers_raw_bytes().len())
    }

    /// Waits until the client of a connection has closed it. A stream of HTTP/2 and TLS show its leaving
    /// [otherwise](Exchange::stream_ended).
    pub fn left(&self) -> impl Future<Output = ()> + use<> {
        left(self.socket.clone())
    }

    /// Waits until the client has reset its stream of HTTP/2 or, once its request is whole, ended its side of TLS.
    pub async fn stream_ended(&mut self) {
        let shows = !self.is_clear && self.session.is_body_done();
        match &mut self.session {
            ServerSession::H2(session) => drop(session.idle().await),
            ServerSession::H1(session) if shows => {
                drop(session.read_body_or_idle(true).await);
            }
            _ => pending().await,
        }
    }

    /// Waits until the client has left, however that shows. Reads nothing of its request.
    pub async fn gone(&mut self) {
        let left = self.left();
        tokio::select! {
            () = left => {}
            () = self.stream_ended() => {}
        }
    }

    /// Writes a part of the response, and gives the room of a piece back. Where the client does not take it at once, it may
    /// for `limit`, and `meanwhile` goes on.
    ///
    /// # Errors
    /// See [`Unwritten`].
    pub async fn write<E>(
        &mut self,
        part: Part,
        limit: Duration,
        meanwhile: impl Future<Output = E>,
    ) -> Result<Vec<u8>, Unwritten<E>> {
        if let Part::Head(head, false) = &part {
            // Of several the last counts: Pingora's to judge.
            let mut codings = head.headers.get_all(TRANSFER_ENCODING).iter();
            let is_chunked = codings.next().is_some_and(|coding| coding == "chunked");
            let is_chunked = is_chunked && codings.next().is_none();
            self.is_chunked = is_chunked && !head.status.is_informational();
        }
        let socket = &self.socket;
        let chunks = socket.as_ref().filter(|_| self.is_clear && self.is_chunked);
        tokio::select! {
            biased;
            written = written(&mut self.session, chunks, part) => written.map_err(|_| Unwritten::Gone),
            error = meanwhile => Err(Unwritten::Ended(error)),
            // Made only where the write is pending.
            () = async { left(socket.clone()).await } => Err(Unwritten::Gone),
            () = async { tokio::time::sleep(limit).await } => Err(Unwritten::TooSlow),
        }
    }

    /// Answers, and reads on for a moment: closing on unread bytes would reset the connection under the answer.
    pub async fn answer(&mut self, head: ResponseHeader, body: Vec<u8>, limit: Duration) {
        self.session.set_keepalive(None);
        for part in [Part::Head(Box::new(head), false), Part::Body(body, true)] {
            let written = self.write(part, limit, pending::<()>()).await;
            if written.is_err() {
                return;
            }
        }
        if !self.session.is_body_done() {
            let rest = self.session.drain_request_body();
            let _ = tokio::time::timeout(LAST_READ, rest).await;
        }
    }

    /// Ends the request. Gives the connection where another may follow on it.
    pub async fn finish(self) -> Option<ReusableHttpStream> {
        self.session.finish().await.ok().flatten()
    }

    /// Makes the connection's end a reset.
    pub fn reset(&self) {
        if let Some(socket) = &self.socket {
            socket.reset();
        }
    }

    /// Refuses a stream of HTTP/2: its client may send the request again.
    pub fn refuse(&mut self) {
        self.session
            .shutdown_with_reason(h2::Reason::REFUSED_STREAM);
    }

    /// Ends a response within its body. A stream of HTTP/2 that is dropped is reset, and what still waits to be sent
    /// with it is lost: that goes first.
    pub async fn break_off(mut self) {
        let ServerSession::H2(session) = &mut self.session else {
            return;
        };
        let Some(mut writer) = session.take_response_body_writer() else {
            return;
        };
        let sent = async move {
            writer.reserve_capacity(UNSENT);
            // All of it is free again when nothing waits; there is none of a response that has ended.
            while writer.capacity() < UNSENT {
                let Some(Ok(_)) = poll_fn(|cx| writer.poll_capacity(cx)).await else {
                    return;
                };
            }
        };
        let _ = tokio::time::timeout(LAST_WRITE, sent).await;
    }
}

async fn left(socket: Option<Socket>) {
    match socket {
        Some(socket) => socket.left().await,
        None => pending().await,
    }
}

/// Writes a part; chunks go to `chunks` past Pingora's writer, which would copy and allocate for each.
async fn written(
    session: &mut ServerSession,
    chunks: Option<&Socket>,
    part: Part,
) -> pingora::Result<Vec<u8>> {
    let (mut piece, is_end) = match part {
        Part::Head(head, is_end) => {
            if let ServerSession::H2(session) = session {
                // The end stands on the head, or the length that a 304 names would count as unmet.
                session.write_response_header(head, is_end)?;
                return Ok(Vec::new());
            }
            session.write_response_header(head).await?;
            (Vec::new(), is_end)
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
                let piece = std::mem::take(&mut piece).into();
                session.write_response_body(piece, is_end).await?;
            }
        }
    }
    if is_end {
        session.finish_body().await?;
    }
    Ok(piece)
}
