//! A client's socket, with or without TLS: stalls are counted and held to their limit.

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::RecvFlags;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

use super::connection::{Connection, Ending};
use super::tls::HTTP2;

/// The TCP socket of a client: here stalled writes show, under TLS too.
#[derive(Debug)]
pub struct ClientSocket {
    socket: TcpStream,
    connection: Arc<Connection>,
    /// The runtime takes the socket for not readable, though bytes may wait in it.
    has_unread: bool,
    /// Runs while a write is held up.
    stall_timer: Option<Pin<Box<Sleep>>>,
}

impl ClientSocket {
    /// The socket of `connection`.
    pub fn new(socket: TcpStream, connection: Arc<Connection>) -> ClientSocket {
        ClientSocket {
            socket,
            connection,
            has_unread: false,
            stall_timer: None,
        }
    }

    fn socket(self: Pin<&mut Self>) -> Pin<&mut TcpStream> {
        Pin::new(&mut self.get_mut().socket)
    }

    /// The file descriptor.
    pub(super) fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Ready once the client has closed its side, or its connection broke, whatever it sent before. Reads nothing.
    pub(super) fn poll_hang_up(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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

impl Drop for ClientSocket {
    fn drop(&mut self) {
        if self.connection.ending().is_some_and(Ending::resets) {
            // Closing discards what is unsent and sends a reset. Nothing else can be done if it fails.
            let _ = SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for ClientSocket {
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

impl AsyncWrite for ClientSocket {
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

/// What the bytes of HTTP go through: the socket, or TLS over it.
pub trait Transport: AsyncRead + AsyncWrite + fmt::Debug + Unpin + Send + Sync {
    /// `None` once the transport has been taken back from Pingora.
    fn socket(&mut self) -> Option<&mut ClientSocket>;

    /// Whether HTTP/2 was agreed on; `None` without TLS.
    fn agreed_http2(&self) -> Option<bool> {
        None
    }
}

impl Transport for ClientSocket {
    fn socket(&mut self) -> Option<&mut ClientSocket> {
        Some(self)
    }
}

impl Transport for TlsStream<ClientSocket> {
    fn socket(&mut self) -> Option<&mut ClientSocket> {
        Some(self.get_mut().0)
    }

    fn agreed_http2(&self) -> Option<bool> {
        Some(self.get_ref().1.alpn_protocol() == Some(HTTP2))
    }
}

/// Stands where the transport was, once it has been taken back.
impl Transport for tokio::io::Empty {
    fn socket(&mut self) -> Option<&mut ClientSocket> {
        None
    }
}
