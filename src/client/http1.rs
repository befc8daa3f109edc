//! A client's connection that speaks HTTP/1.1, or has yet to say what it speaks: it gives one request after another.

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

use super::answer::Refusal;
use super::exchange::Exchange;
use super::limits::Limits;
use super::phase::Phase;
use super::stream::Socket;

/// A connection between two requests.
#[derive(Debug)]
pub struct Client {
    /// Who is at the other end.
    pub peer: SocketAddr,
    /// `None` while a request has it, and once it is closed.
    stream: Option<Stream>,
    /// What has been read of the next request.
    before: BytesMut,
    /// It may turn out to speak HTTP/2.
    may_be_http2: bool,
    socket: Socket,
    /// No TLS.
    is_clear: bool,
    clock: Clock,
}

/// What comes next on a connection.
pub enum Next {
    /// A request whose head is whole.
    Request(Box<Exchange>),
    /// The preface of HTTP/2, still to be read.
    Http2(Stream),
    /// Something that is no request.
    Refused(Refusal),
    /// Nothing more.
    Over,
}

/// What a client sends first that speaks HTTP/2: RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of one read.
const READ: usize = 4096;

impl Client {
    /// Over a connection that was just made: in the clear, unless there is TLS over it. `takes_http2` by its preface.
    pub fn new(
        tls: Option<Stream>,
        socket: Socket,
        peer: SocketAddr,
        takes_http2: bool,
        clock: Clock,
    ) -> Client {
        Client {
            peer,
            is_clear: tls.is_none(),
            stream: tls.or_else(|| Some(Box::new(socket.clone()))),
            before: BytesMut::new(),
            may_be_http2: takes_http2,
            socket,
            clock,
        }
    }

    /// Waits for the next request, while the proxy keeps idle connections open.
    pub async fn next(&mut self, limits: &Limits, phase: &mut watch::Receiver<Phase>) -> Next {
        let closing = phase.wait_for(|phase| *phase >= Phase::Closing);
        let next = async {
            if self.before.is_empty() {
                let idle = Duration::from_secs(limits.client_idle_timeout_s.get());
                if !matches!(timeout(idle, self.read()).await, Ok(Ok(1..))) {
                    return Next::Over;
                }
            }
            let request = self.request(limits.request_head_max_bytes.get());
            let request = timeout(limits.client_head_timeout_s.get(), request).await;
            request.unwrap_or(Next::Refused(Refusal::HeadTooSlow))
        };
        tokio::select! {
            biased;
            _ = closing => Next::Over,
            next = next => next,
        }
    }

    /// Reads until there is a whole head, or it is clear that there will be none.
    async fn request(&mut self, most: u64) -> Next {
        loop {
            let known = self.before.len().min(PREFACE.len());
            let is_preface = self.may_be_http2 && self.before[..known] == PREFACE[..known];
            if is_preface && known == PREFACE.len() {
                let before = std::mem::take(&mut self.before).freeze();
                return Next::Http2(Box::new(self.socket.with(before)));
            }
            if !is_preface {
                // Blank lines may come before a head.
                let blank = |byte: &&u8| matches!(byte, b'\r' | b'\n');
                let blank = self.before.iter().take_while(blank).count();
                self.before.advance(blank);
                if !is_line_clean(&self.before) {
                    return Next::Refused(Refusal::BadTarget);
                }
                if has_whole_head(&self.before) {
                    return self.parsed().await;
                }
                if self.before.len() as u64 > most {
                    return Next::Refused(Refusal::HeadTooLarge);
                }
            }
            if !matches!(self.read().await, Ok(1..)) {
                // Nobody is there to be answered.
                self.stream = None;
                return match self.before.is_empty() {
                    true => Next::Over,
                    false => Next::Refused(Refusal::BrokenHead),
                };
            }
        }
    }

    /// Has the head read. Pingora refuses what could be understood in two ways.
    async fn parsed(&mut self) -> Next {
        let Some(stream) = self.stream.take() else {
            return Next::Over;
        };
        self.may_be_http2 = false;
        let mut session = HttpSession::new(stream);
        // Bytes of a next request must not end the present one.
        session.set_pipelining_enabled(true);
        session.set_read_timeout(None);
        session.set_pipelined_prefix(std::mem::take(&mut self.before));
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

    /// Takes the connection back after a request, where another may follow.
    pub fn take_back(&mut self, stream: Option<ReusableHttpStream>) {
        if let Some((stream, before)) = stream.map(ReusableHttpStream::into_parts) {
            self.stream = Some(stream);
            self.before = before.unwrap_or_default();
        }
    }

    /// Answers what was refused, and closes.
    pub async fn refuse(self, why: Refusal) {
        if let Some(stream) = self.stream {
            why.answer().close(stream).await;
        }
    }

    /// Reads once, and gives how many bytes that were. No buffer is kept while nothing comes.
    async fn read(&mut self) -> io::Result<usize> {
        let Some(stream) = &mut self.stream else {
            return Ok(0);
        };
        poll_fn(|cx| {
            let mut space = [MaybeUninit::uninit(); READ];
            let mut read = ReadBuf::uninit(&mut space);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut read))?;
            self.before.extend_from_slice(read.filled());
            Poll::Ready(Ok(read.filled().len()))
        })
        .await
    }
}

/// Whether the request line of `head`, as far as it goes, is free of control bytes: Pingora would escape them and pass
/// another target on.
fn is_line_clean(head: &[u8]) -> bool {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    !line.iter().any(u8::is_ascii_control)
}

/// Whether a blank line ends it.
fn has_whole_head(head: &[u8]) -> bool {
    let mut ends = memchr::memchr_iter(b'\n', head);
    ends.any(|end| matches!(&head[end + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
}
