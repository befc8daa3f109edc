//! A client's connection that speaks HTTP/1.1, or may yet turn out to speak HTTP/2: one request after another.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use pingora::ErrorType;
use pingora::protocols::Stream;
use pingora::protocols::http::v1::server::HttpSession;
use pingora::protocols::http::{ReusableHttpStream, ServerSession};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::clock::Clock;

use super::error_response::Refusal;
use super::exchange::Exchange;
use super::limits::Limits;
use super::phase::Phase;
use super::socket::Socket;

/// A connection, between two requests.
#[derive(Debug)]
pub struct Http1Client {
    /// The client's address.
    pub peer: SocketAddr,
    /// `None` while a request uses it, and once it is closed.
    stream: Option<Stream>,
    /// What was read of the next request.
    buffer: BytesMut,
    /// Whether it may turn out to speak HTTP/2.
    may_be_http2: bool,
    socket: Socket,
    /// Whether it has no TLS.
    is_clear: bool,
    clock: Clock,
}

/// What follows on a connection.
pub enum Next {
    /// A request whose head is whole.
    Request(Box<Exchange>),
    /// The preface of HTTP/2, still to be read.
    Http2(Stream),
    /// Something that is no valid request.
    Refused(Refusal),
    /// Nothing: the connection is closed, or is to be.
    Closed,
}

/// What a client of HTTP/2 sends first: RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The most bytes of one read.
const READ_BYTES: usize = 4096;

impl Http1Client {
    /// Creates the client of a new connection, with TLS if there is a stream of it. HTTP/2 is recognized by its preface if
    /// `takes_http2`.
    pub fn new(
        tls: Option<Stream>,
        socket: Socket,
        peer: SocketAddr,
        takes_http2: bool,
        clock: Clock,
    ) -> Http1Client {
        Http1Client {
            peer,
            is_clear: tls.is_none(),
            stream: tls.or_else(|| Some(Box::new(socket.clone()))),
            buffer: BytesMut::new(),
            may_be_http2: takes_http2,
            socket,
            clock,
        }
    }

    /// Waits for the next request, as long as the proxy keeps idle connections open.
    pub async fn next(&mut self, limits: &Limits, phase: &mut watch::Receiver<Phase>) -> Next {
        let closing = phase.wait_for(|phase| *phase >= Phase::Closing);
        let next = async {
            if self.buffer.is_empty() {
                let idle = Duration::from_secs(limits.client_idle_timeout_s.get());
                if !matches!(timeout(idle, self.read()).await, Ok(Ok(1..))) {
                    return Next::Closed;
                }
            }
            let request = self.request(limits.request_head_max_bytes.get());
            let request = timeout(limits.client_head_timeout_s.get(), request).await;
            request.unwrap_or(Next::Refused(Refusal::HeadTooSlow))
        };
        tokio::select! {
            biased;
            _ = closing => Next::Closed,
            next = next => next,
        }
    }

    /// Reads until there is a whole head, or it is clear that there will be none.
    async fn request(&mut self, max_head_bytes: u64) -> Next {
        loop {
            let known = self.buffer.len().min(PREFACE.len());
            let is_preface = self.may_be_http2 && self.buffer[..known] == PREFACE[..known];
            if is_preface && known == PREFACE.len() {
                let read = std::mem::take(&mut self.buffer).freeze();
                return Next::Http2(Box::new(self.socket.with_prefix(read)));
            }
            if !is_preface {
                // Blank lines may precede a head.
                let blank = |byte: &&u8| matches!(byte, b'\r' | b'\n');
                let blank = self.buffer.iter().take_while(blank).count();
                self.buffer.advance(blank);
                if !is_line_clean(&self.buffer) {
                    return Next::Refused(Refusal::BrokenHead);
                }
                if has_whole_head(&self.buffer) {
                    return self.parse().await;
                }
                if self.buffer.len() as u64 > max_head_bytes {
                    return Next::Refused(Refusal::HeadTooLarge);
                }
            }
            if !matches!(self.read().await, Ok(1..)) {
                // The client is gone.
                self.stream = None;
                return match self.buffer.is_empty() {
                    true => Next::Closed,
                    false => Next::Refused(Refusal::BrokenHead),
                };
            }
        }
    }

    /// Has Pingora parse the head, which refuses ambiguous ones.
    async fn parse(&mut self) -> Next {
        let Some(stream) = self.stream.take() else {
            return Next::Closed;
        };
        self.may_be_http2 = false;
        let mut session = HttpSession::new(stream);
        // Without it, bytes of the next request would end this one.
        session.set_pipelining_enabled(true);
        session.set_read_timeout(None);
        session.set_pipelined_prefix(std::mem::take(&mut self.buffer));
        match session.read_request().await {
            Ok(Some(_)) => {
                let session = ServerSession::H1(session);
                let mut request = Exchange::new(session, self.peer, self.clock.now());
                request.socket = Some(self.socket.clone());
                request.is_clear = self.is_clear;
                return Next::Request(Box::new(request));
            }
            Err(error) if *error.etype() == ErrorType::InvalidHTTPHeader => {
                self.stream = Some(session.into_inner());
            }
            _ => {}
        }
        Next::Refused(Refusal::BrokenHead)
    }

    /// Takes the connection back after a request, if another may follow.
    pub fn take_back(&mut self, stream: Option<ReusableHttpStream>) {
        if let Some((stream, read)) = stream.map(ReusableHttpStream::into_parts) {
            self.stream = Some(stream);
            self.buffer = read.unwrap_or_default();
        }
    }

    /// Responds to what was refused, and closes.
    pub async fn refuse(self, why: Refusal) {
        if let Some(stream) = self.stream {
            why.response().send(stream).await;
        }
    }

    /// Reads once, and returns the number of bytes. Holds no buffer while nothing arrives.
    async fn read(&mut self) -> io::Result<usize> {
        let Some(stream) = &mut self.stream else {
            return Ok(0);
        };
        poll_fn(|cx| {
            let mut space = [MaybeUninit::uninit(); READ_BYTES];
            let mut read = ReadBuf::uninit(&mut space);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut read))?;
            self.buffer.extend_from_slice(read.filled());
            Poll::Ready(Ok(read.filled().len()))
        })
        .await
    }
}

/// Whether the request line of `head`, as far as it was read, has no control byte: Pingora would escape it, which changes the
/// target.
fn is_line_clean(head: &[u8]) -> bool {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    !line.iter().any(u8::is_ascii_control)
}

/// Whether `head` has the blank line that ends a head.
fn has_whole_head(head: &[u8]) -> bool {
    let mut ends = memchr::memchr_iter(b'\n', head);
    ends.any(|end| matches!(&head[end + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
}
