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
use pingora::protocols::http::ReusableHttpStream;
use pingora::protocols::http::v1::server::HttpSession;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::clock::Clock;

use super::answer::Refusal;
use super::exchange::Exchange;
use super::limits::Limits;
use super::phase::Phase;
use super::stream::{ClientStream, Socket};

/// A connection between two requests.
#[derive(Debug)]
pub struct Client {
    /// Who is at the other end.
    pub peer: SocketAddr,
    /// It might have been refused by a fault, and has not sent a request since.
    pub is_spared: bool,
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
    /// Something that is no request, and whom to tell.
    Refused(Refusal, Option<Stream>),
    /// Nothing more.
    Over,
}

/// What the bytes at the beginning of a connection are.
enum Begun {
    Head,
    Http2,
}

/// What a client sends first that speaks HTTP/2: RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of one read.
const READ: usize = 4096;

impl Client {
    /// Over a connection that was just made, which `is_clear` says speaks no TLS. `takes_http2` by its preface.
    pub fn new(
        stream: ClientStream,
        (socket, peer): (Socket, SocketAddr),
        (is_clear, takes_http2): (bool, bool),
        clock: Clock,
    ) -> Client {
        Client {
            peer,
            is_spared: false,
            stream: Some(Box::new(stream)),
            before: BytesMut::new(),
            may_be_http2: takes_http2,
            socket,
            is_clear,
            clock,
        }
    }

    /// Waits for the next request, while the proxy keeps idle connections open.
    pub async fn next(&mut self, limits: &Limits, phase: &mut watch::Receiver<Phase>) -> Next {
        let closing = phase.wait_for(|phase| *phase >= Phase::Closing);
        tokio::select! {
            biased;
            _ = closing => Next::Over,
            next = self.request(limits) => next,
        }
    }

    async fn request(&mut self, limits: &Limits) -> Next {
        let Some(mut stream) = self.stream.take() else {
            return Next::Over;
        };
        if self.before.is_empty() {
            let idle = Duration::from_secs(limits.client_idle_s);
            let first = timeout(idle, read(&mut stream, &mut self.before)).await;
            if !matches!(first, Ok(Ok(1..))) {
                return Next::Over;
            }
        }
        let begun = self.read_head(&mut stream, limits.request_head_bytes);
        let why = match timeout(limits.client_head, begun).await {
            Ok(Ok(Begun::Head)) => return self.parsed(stream, limits.client_head).await,
            Ok(Ok(Begun::Http2)) => return self.http2(stream),
            Ok(Err(None)) if self.before.is_empty() => return Next::Over,
            Ok(Err(None)) => return Next::Refused(Refusal::BrokenHead, None),
            Ok(Err(Some(why))) => why,
            Err(_) => Refusal::HeadTooSlow,
        };
        Next::Refused(why, Some(stream))
    }

    /// Reads until there is a whole head, or it is clear that there will be none: by the client's leaving, or why.
    async fn read_head(
        &mut self,
        stream: &mut Stream,
        most: u64,
    ) -> Result<Begun, Option<Refusal>> {
        loop {
            let known = self.before.len().min(PREFACE.len());
            let is_preface = self.may_be_http2 && self.before[..known] == PREFACE[..known];
            if is_preface && known == PREFACE.len() {
                return Ok(Begun::Http2);
            }
            if !is_preface {
                // Blank lines may come before a head.
                let blank = self
                    .before
                    .iter()
                    .take_while(|b| matches!(b, b'\r' | b'\n'));
                let blank = blank.count();
                self.before.advance(blank);
                if !is_line_clean(&self.before) {
                    return Err(Some(Refusal::BadTarget));
                }
                if has_whole_head(&self.before) {
                    return Ok(Begun::Head);
                }
                if self.before.len() as u64 > most {
                    return Err(Some(Refusal::HeadTooLarge));
                }
            }
            match read(stream, &mut self.before).await {
                Ok(1..) => {}
                _ => return Err(None),
            }
        }
    }

    /// Has the head read. Pingora refuses what could be understood in two ways.
    async fn parsed(&mut self, stream: Stream, limit: Duration) -> Next {
        self.may_be_http2 = false;
        let mut session = HttpSession::new(stream);
        // Bytes of a next request must not end the present one.
        session.set_pipelining_enabled(true);
        session.set_read_timeout(None);
        session.set_pipelined_prefix(std::mem::take(&mut self.before));
        let why = match timeout(limit, session.read_request()).await {
            Ok(Ok(Some(_))) => {
                let socket = (self.socket.clone(), self.is_clear);
                let from = (self.peer, std::mem::take(&mut self.is_spared));
                let request = Exchange::http1(session, socket, from, self.clock.now());
                return Next::Request(Box::new(request));
            }
            Ok(Err(error)) if *error.etype() == ErrorType::InvalidHTTPHeader => Refusal::BrokenHead,
            Ok(_) => return Next::Refused(Refusal::BrokenHead, None),
            Err(_) => Refusal::HeadTooSlow,
        };
        Next::Refused(why, Some(session.into_inner()))
    }

    fn http2(&mut self, stream: Stream) -> Next {
        let Ok(mut stream) = stream.into_any().downcast::<ClientStream>() else {
            return Next::Over;
        };
        stream.put_back(std::mem::take(&mut self.before));
        Next::Http2(stream)
    }

    /// Takes the connection back after a request, where another may follow.
    pub fn take_back(&mut self, stream: Option<ReusableHttpStream>) {
        if let Some((stream, before)) = stream.map(ReusableHttpStream::into_parts) {
            self.stream = Some(stream);
            self.before = before.unwrap_or_default();
        }
    }
}

/// Reads once, and gives how many bytes that were. No buffer is kept while nothing comes.
async fn read(stream: &mut Stream, into: &mut BytesMut) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut space = [MaybeUninit::uninit(); READ];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut *stream).poll_read(cx, &mut read))?;
        into.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    })
    .await
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
