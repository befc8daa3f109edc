//! A client's socket, in the clear or under TLS: what passes is counted, and writes are held to the limit on stalls.

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
    /// The socket's number; -1 once it is gone.
    pub(super) fn fd(&self) -> i32 {
        match self {
            Io::Plain(wire) => wire.socket.as_raw_fd(),
            Io::Tls(stream) => stream.get_ref().0.socket.as_raw_fd(),
            Io::Gone => -1,
        }
    }

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
