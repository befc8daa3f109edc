//! The client's socket as Pingora gets it, with the limits that Pingora does not know.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::connection::{Connection, Ending, PIECE};
use super::pipelined::Pipelined;
use super::socket::Transport;

/// The client's stream of HTTP bytes. No buffer: what is written is on its way.
#[derive(Debug)]
pub struct ClientStream {
    io: Box<dyn Transport>,
    fd: i32,
    /// Gets `io` back when the connection ends with an answer that Pingora cannot give.
    taken_back: Option<oneshot::Sender<Box<dyn Transport>>>,
    connection: Arc<Connection>,
    pipelined: Pipelined,
    /// The request line of a head has begun and not ended.
    in_request_line: bool,
    /// Runs while part of a head has come.
    head_timer: Option<Pin<Box<Sleep>>>,
}

/// What a client sends first that speaks HTTP/2: RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Ends a chunked body, in a write of its own.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

impl ClientStream {
    /// The stream of `connection` over `io`, and where that is put back if the connection has to be answered once the
    /// stream is dropped.
    pub fn new(
        mut io: Box<dyn Transport>,
        connection: Arc<Connection>,
    ) -> (ClientStream, oneshot::Receiver<Box<dyn Transport>>) {
        let (taken_back, returned) = oneshot::channel();
        let stream = ClientStream {
            fd: io.socket().map_or(-1, |socket| socket.fd()),
            io,
            taken_back: Some(taken_back),
            connection,
            pipelined: Pipelined::default(),
            in_request_line: false,
            head_timer: None,
        };
        (stream, returned)
    }

    /// Ready when the head that is being read came to a limit.
    fn poll_head_limit(&mut self, cx: &mut Context<'_>) -> Poll<Ending> {
        let Some(bytes) = self.connection.part_of_head() else {
            self.head_timer = None;
            return Poll::Pending;
        };
        let limits = &self.connection.limits;
        if bytes > limits.head_bytes {
            return Poll::Ready(Ending::HeadTooLarge);
        }
        let new = || Box::pin(tokio::time::sleep(limits.head));
        let timer = self.head_timer.get_or_insert_with(new);
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Ending::HeadTooSlow)
    }

    /// The connection it is of.
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Whether the client speaks HTTP/2. Reads as much as decides it, and keeps that to be read.
    pub(super) async fn speaks_http2(&mut self) -> bool {
        match self.io.agreed_http2() {
            Some(agreed) => agreed,
            None => poll_fn(|cx| self.poll_preface(cx)).await,
        }
    }

    fn poll_preface(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            let length = self.pipelined.bytes().len().min(PREFACE.len());
            if self.pipelined.bytes()[..length] != PREFACE[..length] {
                return Poll::Ready(false);
            }
            if length == PREFACE.len() {
                return Poll::Ready(true);
            }
            if let Poll::Ready(ending) = self.poll_head_limit(cx) {
                self.connection.end(ending);
                return Poll::Pending;
            }
            let read = ready!(self.pipelined.poll_read(&mut self.io, cx)).unwrap_or(0);
            if read == 0 {
                return Poll::Ready(false);
            }
            self.connection.read_polled(true, read as u64);
        }
    }

    fn poll_bytes(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.pipelined.is_broken() || self.pipelined.take(buffer) {
            // Broken, it reads as closed.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }

    /// Whether these bytes, just read, keep the request line of a head free of control bytes.
    fn is_line_clean(&mut self, read: &[u8]) -> bool {
        let read = match self.connection.part_of_head() {
            // Blank lines may come before it.
            None if self.connection.is_idle() => read.trim_ascii_start(),
            _ if self.in_request_line => read,
            _ => return true,
        };
        let line = read.split(|byte| *byte == b'\n').next().unwrap_or_default();
        self.in_request_line = line.len() == read.len();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        !line.iter().any(u8::is_ascii_control)
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        if self.connection.ending().is_some_and(Ending::has_answer)
            && let Some(taken_back) = self.taken_back.take()
        {
            // Nobody waits for it when everything is cut off.
            let _ = taken_back.send(std::mem::replace(
                &mut self.io,
                Box::new(tokio::io::empty()),
            ));
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(ending) = this.poll_head_limit(cx) {
            this.connection.end(ending);
            // The connection's task drops this stream and answers.
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let poll = if this.connection.awaits_answer() {
            this.pipelined.poll_left(&mut this.io, cx)
        } else if this.connection.reads_in_pieces() {
            let most = buffer.remaining().min(PIECE);
            let mut piece = ReadBuf::new(buffer.initialize_unfilled_to(most));
            let poll = this.poll_bytes(cx, &mut piece);
            let read = piece.filled().len();
            buffer.advance(read);
            poll
        } else {
            this.poll_bytes(cx, buffer)
        };
        let read = buffer.filled().get(before..).unwrap_or_default();
        let is_clean = read.is_empty() || this.is_line_clean(read);
        this.connection
            .read_polled(poll.is_ready(), read.len() as u64);
        if !is_clean {
            this.connection.end(Ending::BadRequestLine);
            return Poll::Pending;
        }
        poll
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if bytes == LAST_CHUNK && this.connection.ending() == Some(Ending::Cut) {
            // A response that is cut has no end. The connection's task drops this stream.
            return Poll::Pending;
        }
        Pin::new(&mut this.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[async_trait]
impl Shutdown for ClientStream {
    async fn shutdown(&mut self) {
        if self.connection.ending().is_some() {
            // It ends otherwise than in good order, or not here.
            return;
        }
        // The client may have closed first.
        let _ = self.io.shutdown().await;
    }
}

impl UniqueID for ClientStream {
    fn id(&self) -> UniqueIDType {
        self.fd
    }
}

impl Ssl for ClientStream {}

impl Peek for ClientStream {}

impl GetTimingDigest for ClientStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for ClientStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for ClientStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}
