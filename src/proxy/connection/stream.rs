//! The client's socket as Pingora gets it, in the clear or under TLS: what passes is counted, and limits that
//! Pingora does not know are held.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::RecvFlags;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

use super::ahead::Ahead;
use super::{Connection, Ending, http2};

/// The TCP side of a client's connection: here it shows when the client holds up a write, under TLS too.
#[derive(Debug)]
pub struct Wire {
    socket: TcpStream,
    connection: Arc<Connection>,
    /// The runtime was told that there is nothing to read, though there may be.
    has_unread: bool,
    /// Runs while a write is held up.
    stall_timer: Option<Pin<Box<Sleep>>>,
}

/// What the bytes of HTTP go through.
#[derive(Debug)]
pub enum Io {
    /// In the clear.
    Plain(Wire),
    /// Under TLS.
    Tls(Box<TlsStream<Wire>>),
    /// Taken back from Pingora.
    Gone,
}

/// The client's stream of HTTP bytes. No buffer: what is written is on its way.
#[derive(Debug)]
pub struct ClientStream {
    io: Io,
    connection: Arc<Connection>,
    ahead: Ahead,
    /// The request line of a head has begun and not ended.
    in_request_line: bool,
    /// Runs while part of a head has come.
    head_timer: Option<Pin<Box<Sleep>>>,
}

/// Ends a chunked body, in a write of its own.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

impl Wire {
    /// The socket of `connection`.
    pub fn new(socket: TcpStream, connection: Arc<Connection>) -> Wire {
        Wire {
            socket,
            connection,
            has_unread: false,
            stall_timer: None,
        }
    }

    fn socket(self: Pin<&mut Self>) -> Pin<&mut TcpStream> {
        Pin::new(&mut self.get_mut().socket)
    }

    /// Ready once the client has closed its side, or its connection broke, whatever it sent before. Reads nothing.
    fn poll_hang_up(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_read_ready(cx))?;
            let mut socket = [PollFd::new(&self.socket, PollFlags::RDHUP)];
            if rustix::event::poll(&mut socket, Some(&Timespec::default()))? > 0 {
                return Poll::Ready(Ok(()));
            }
            // What waits is left where it is: the runtime wakes us at the next change.
            self.has_unread = true;
            let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
            let _ = self.socket.try_io(Interest::READABLE, nothing);
        }
    }

    /// Lets a write's result pass unless the client has held up this response for too long. Pingora's limit on a
    /// single write does not hold for heads and last chunks.
    fn written<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let poll = self.connection.write_polled(poll);
        let left = self.connection.stall_left();
        let is_over = match (&poll, left) {
            (_, None) => true,
            (Poll::Ready(_), _) | (_, Some(Duration::MAX)) => {
                self.stall_timer = None;
                false
            }
            (Poll::Pending, Some(left)) => {
                let new = || Box::pin(tokio::time::sleep(left));
                let timer = self.stall_timer.get_or_insert_with(new);
                timer.as_mut().poll(cx).is_ready()
            }
        };
        if !is_over {
            return poll;
        }
        self.connection.end(Ending::ResponseTooSlow);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.connection.ending().is_some_and(Ending::resets) {
            // Closing discards what is unsent and sends a reset. Nothing else can be done if it fails.
            let _ = SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.has_unread {
            let space = buffer.initialize_unfilled();
            match rustix::net::recv(&this.socket, space, RecvFlags::DONTWAIT) {
                Ok((read, _)) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => this.has_unread = false,
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        Pin::new(&mut this.socket).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.socket).poll_write(cx, bytes);
        this.written(cx, poll)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.socket).poll_write_vectored(cx, slices);
        this.written(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_shutdown(cx)
    }
}

/// Calls a method on whatever the bytes go through.
macro_rules! through {
    ($io:expr, $gone:expr, $method:ident($($argument:expr),*)) => {
        match $io {
            Io::Plain(wire) => Pin::new(wire).$method($($argument),*),
            Io::Tls(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
            Io::Gone => $gone,
        }
    };
}

fn gone<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
}

impl Io {
    /// See [`Wire::poll_hang_up`].
    pub(super) fn poll_hang_up(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Io::Plain(wire) => wire.poll_hang_up(cx),
            Io::Tls(stream) => stream.get_mut().0.poll_hang_up(cx),
            Io::Gone => gone(),
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        through!(self.get_mut(), gone(), poll_read(cx, buffer))
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        through!(self.get_mut(), gone(), poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        through!(self.get_mut(), gone(), poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Io::Plain(wire) => wire.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
            Io::Gone => false,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        through!(self.get_mut(), gone(), poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        through!(self.get_mut(), Poll::Ready(Ok(())), poll_shutdown(cx))
    }
}

impl ClientStream {
    /// The stream of `connection` over `io`.
    pub fn new(io: Io, connection: Arc<Connection>) -> ClientStream {
        ClientStream {
            io,
            connection,
            ahead: Ahead::default(),
            in_request_line: false,
            head_timer: None,
        }
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

    /// Whether the client speaks HTTP/2. Reads as much as tells, and leaves it to be read.
    pub(super) async fn speaks_http2(&mut self) -> bool {
        if let Io::Tls(stream) = &self.io {
            return stream.get_ref().1.alpn_protocol() == Some(http2::ALPN);
        }
        poll_fn(|cx| self.poll_preface(cx)).await
    }

    fn poll_preface(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            let length = self.ahead.bytes().len().min(http2::PREFACE.len());
            if self.ahead.bytes()[..length] != http2::PREFACE[..length] {
                return Poll::Ready(false);
            }
            if length == http2::PREFACE.len() {
                return Poll::Ready(true);
            }
            if let Poll::Ready(ending) = self.poll_head_limit(cx) {
                self.connection.end(ending);
                return Poll::Pending;
            }
            let read = ready!(self.ahead.poll_read(&mut self.io, cx)).unwrap_or(0);
            if read == 0 {
                return Poll::Ready(false);
            }
            self.connection.read_polled(true, read as u64);
        }
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
        if self.connection.ending().is_some_and(Ending::has_answer) {
            self.connection
                .put_back(std::mem::replace(&mut self.io, Io::Gone));
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
            this.ahead.poll_left(&mut this.io, cx)
        } else if this.ahead.is_broken() || this.ahead.take(buffer) {
            // Broken, it reads as closed.
            Poll::Ready(Ok(()))
        } else {
            Pin::new(&mut this.io).poll_read(cx, buffer)
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
        match &self.io {
            Io::Plain(wire) => wire.socket.as_raw_fd(),
            Io::Tls(stream) => stream.get_ref().0.socket.as_raw_fd(),
            Io::Gone => -1,
        }
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
