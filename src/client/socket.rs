//! A client's socket, which Pingora reads and writes, over TLS or not.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use pingora::protocols::{UniqueID, UniqueIDType};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// A client's TCP socket, shared with whoever waits for its closing. Unbuffered.
#[derive(Clone, Debug)]
pub struct Socket {
    tcp: Arc<TcpStream>,
    /// Bytes that were read before and are read again first.
    prefix: Bytes,
}

/// The most unsent bytes of a response: in a socket, and of HTTP/2 before it.
pub(super) const MAX_UNSENT_BYTES: usize = 32 * 1024;

impl Socket {
    /// Sets up the socket of a client that was just accepted.
    pub fn new(socket: TcpStream) -> Socket {
        // This fails if the client is gone; the first read shows that.
        let _ = socket.set_nodelay(true);
        limit_unsent(&socket);
        Socket {
            tcp: Arc::new(socket),
            prefix: Bytes::new(),
        }
    }

    /// Returns the same socket with bytes that were read from it to be read again.
    pub fn with_prefix(&self, prefix: Bytes) -> Socket {
        Socket {
            prefix,
            ..self.clone()
        }
    }

    /// Waits until the client has closed its side, or its connection broke. Reads nothing.
    pub async fn closed(&self) {
        // Tokio does not register for urgent data: only the closing of the read side ends this wait.
        let _ = self.tcp.ready(Interest::PRIORITY).await;
    }

    /// Makes closing the socket a reset, which discards what is unsent.
    pub fn reset(&self) {
        // If this fails, it closes normally.
        let _ = SockRef::from(&*self.tcp).set_linger(Some(Duration::ZERO));
    }

    /// Writes a chunk of a body: RFC 9112, section 7.1.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn write_chunk(&self, piece: &[u8]) -> io::Result<()> {
        let mut size = *b"0000000000000000\r\n";
        let (mut at, mut left) = (16, piece.len());
        while left > 0 {
            at -= 1;
            size[at] = b"0123456789ABCDEF"[left & 15];
            left >>= 4;
        }
        let mut parts = [&size[at..], piece, b"\r\n"].map(io::IoSlice::new);
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            let write = |socket: &TcpStream| socket.try_write_vectored(parts);
            let written = poll_fn(|cx| self.poll_written(cx, write)).await?;
            io::IoSlice::advance_slices(&mut parts, written);
        }
        Ok(())
    }

    fn poll_written(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.tcp.poll_write_ready(cx))?;
            match write(&self.tcp) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.prefix.is_empty() {
            let taken = self.prefix.len().min(buffer.remaining());
            buffer.put_slice(&self.prefix[..taken]);
            self.prefix.advance(taken);
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.tcp.poll_read_ready(cx))?;
            match self.tcp.try_read_buf(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_written(cx, |socket| socket.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_written(cx, |socket| socket.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.tcp).shutdown(std::net::Shutdown::Write))
    }
}

impl UniqueID for Socket {
    fn id(&self) -> UniqueIDType {
        self.tcp.as_raw_fd()
    }
}

/// By default a kernel takes megabytes and reports room only once a third of them was sent: who reads steadily would look stalled.
pub fn limit_unsent(socket: &impl AsFd) {
    // If this fails, stalls are only seen late.
    let _ = SockRef::from(socket).set_tcp_notsent_lowat(MAX_UNSENT_BYTES as u32);
}

/// What else Pingora asks of a stream, a client's or an upstream's: how it is shut down, and what only its own proxy reads. Digests are
/// none, also of TLS.
macro_rules! plain_stream {
    ($stream:ty) => {
        #[async_trait::async_trait]
        impl pingora::protocols::Shutdown for $stream {
            async fn shutdown(&mut self) {
                // This fails if the other side has closed first.
                let _ = tokio::io::AsyncWriteExt::shutdown(self).await;
            }
        }

        impl pingora::protocols::Ssl for $stream {}

        impl pingora::protocols::Peek for $stream {}

        impl pingora::protocols::GetTimingDigest for $stream {
            fn get_timing_digest(&self) -> Vec<Option<pingora::protocols::TimingDigest>> {
                Vec::new()
            }
        }

        impl pingora::protocols::GetProxyDigest for $stream {
            fn get_proxy_digest(
                &self,
            ) -> Option<std::sync::Arc<pingora::protocols::raw_connect::ProxyDigest>> {
                None
            }
        }

        impl pingora::protocols::GetSocketDigest for $stream {
            fn get_socket_digest(
                &self,
            ) -> Option<std::sync::Arc<pingora::protocols::SocketDigest>> {
                None
            }
        }
    };
}
pub(crate) use plain_stream;

plain_stream!(Socket);
