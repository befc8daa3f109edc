//! A client's connection that speaks HTTP/1.1, or may yet turn out to speak HTTP/2: the head of one request after another.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use http::Version;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v1::server::HttpSession;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::timeout;

use crate::clock::Clock;

use super::exchange::Exchange;
use super::limits::{Limits, Refusal};
use super::socket::Socket;

/// What a client of HTTP/2 sends first: RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The most bytes of one read.
const READ_BYTES: usize = 4096;

/// Reads the next head into `buffer`, where some of it may be. Returns HTTP/2 after
/// its preface, else HTTP/1.1, also for a head of HTTP/1.0.
///
/// # Errors
/// Why it is refused; `None` if the connection is closed, or idle for too long.
pub async fn next_head(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    may_be_http2: bool,
    limits: &Limits,
) -> Result<Version, Option<Refusal>> {
    if buffer.is_empty() {
        let idle = Duration::from_secs(limits.client_idle_timeout_s.get());
        if !matches!(timeout(idle, read(stream, buffer)).await, Ok(Ok(1..))) {
            return Err(None);
        }
    }
    let max_bytes = limits.request_head_max_bytes.get();
    let head = whole_head(stream, buffer, may_be_http2, max_bytes);
    let head = timeout(limits.client_head_timeout_s.get(), head).await;
    head.unwrap_or(Err(Some(Refusal::HeadTooSlow)))
}

/// Reads until there is a whole head, or it is clear that there will be none.
async fn whole_head(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    may_be_http2: bool,
    max_bytes: u64,
) -> Result<Version, Option<Refusal>> {
    loop {
        let known = buffer.len().min(PREFACE.len());
        let is_preface = may_be_http2 && buffer[..known] == PREFACE[..known];
        if is_preface && known == PREFACE.len() {
            return Ok(Version::HTTP_2);
        }
        if !is_preface {
            // Blank lines may precede a head.
            let blank = |byte: &&u8| matches!(byte, b'\r' | b'\n');
            let blank = buffer.iter().take_while(blank).count();
            buffer.advance(blank);
            if !is_line_clean(buffer) {
                return Err(Some(Refusal::BrokenHead));
            }
            if has_whole_head(buffer) {
                return Ok(Version::HTTP_11);
            }
            if buffer.len() as u64 > max_bytes {
                return Err(Some(Refusal::HeadTooLarge));
            }
        }
        if !matches!(read(stream, buffer).await, Ok(1..)) {
            // The client is gone.
            return Err((!buffer.is_empty()).then_some(Refusal::BrokenHead));
        }
    }
}

/// Reads once, and returns the number of bytes. Holds no buffer while nothing arrives.
async fn read(stream: &mut Stream, buffer: &mut BytesMut) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut space = [MaybeUninit::uninit(); READ_BYTES];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut *stream).poll_read(cx, &mut read))?;
        buffer.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    })
    .await
}

/// Has Pingora parse a whole head, which refuses ambiguous ones. `stream` is that of `socket`, without TLS if it `is_clear`.
///
/// # Errors
/// It is refused; the connection.
pub async fn parse(
    (stream, head): (Stream, BytesMut),
    peer: SocketAddr,
    socket: &Socket,
    is_clear: bool,
    clock: &Clock,
) -> Result<Box<Exchange>, Stream> {
    let mut session = HttpSession::new(stream);
    // Without it, bytes of the next request would end this one.
    session.set_pipelining_enabled(true);
    session.set_read_timeout(None);
    session.set_pipelined_prefix(head);
    match session.read_request().await {
        Ok(Some(_)) => {
            let (session, socket) = (ServerSession::H1(session), Some(socket.clone()));
            let request = Exchange::new(session, peer, clock.now(), socket, is_clear);
            Ok(Box::new(request))
        }
        _ => Err(session.into_inner()),
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
