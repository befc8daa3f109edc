//! A connection to an upstream. What the upstream does not take at once is kept here and sent while it is read from: Pingora's
//! session cannot be read from while a write to it is pending.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream,
    TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection that takes at once what is written to it. Its user must not write more while something is [`Unsent`].
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    /// What was written and not sent.
    bytes: BytesMut,
    /// Why that cannot be sent: the next write fails so.
    error: Option<io::Error>,
    unsent: Arc<Unsent>,
}

/// What of a connection is unsent, for its user while a session holds it.
#[derive(Debug, Default)]
pub struct Unsent {
    /// The number of bytes and, while there are any or the stream below is to be flushed, one more.
    left: AtomicUsize,
    /// Whether a write waits until all is sent.
    waits: AtomicBool,
}

impl Connection {
    /// Wraps a stream that was just connected.
    pub fn wrap(stream: Stream) -> Stream {
        Box::new(Connection {
            stream,
            bytes: BytesMut::new(),
            error: None,
            unsent: Arc::default(),
        })
    }

    /// Sends what is unsent.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = self.error.take() {
            return Poll::Ready(Err(error));
        }
        if self.unsent.left() == 0 {
            return Poll::Ready(Ok(()));
        }
        let sent = self.poll_send_bytes(cx);
        let mut left = self.bytes.len() + 1;
        if sent.is_ready() {
            // Frees the buffer.
            (self.bytes, left) = (BytesMut::new(), 0);
        }
        self.unsent.left.store(left, Relaxed);
        sent
    }

    fn poll_send_bytes(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.bytes.is_empty() {
            let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.bytes))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.bytes.advance(sent);
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }
}

impl Unsent {
    /// That of a stream which [`Connection::wrap`] made.
    pub fn of(stream: &Stream) -> Arc<Unsent> {
        let connection = (**stream).as_any().downcast_ref::<Connection>();
        connection.map_or_else(Arc::default, |connection| connection.unsent.clone())
    }

    /// How much is unsent; 0 if nothing is.
    pub fn left(&self) -> usize {
        self.left.load(Relaxed)
    }

    /// Whether writes wait from now on, as nothing is read that would send on.
    pub fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Relaxed);
    }

    /// Waits until all is sent, by whoever reads from the connection in the same task.
    pub async fn sent(&self) {
        poll_fn(|_| match self.left() {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        })
        .await;
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unsent.left() > 0
            && let Poll::Ready(Err(error)) = self.poll_send(cx)
        {
            // There may still be a response.
            self.error = Some(error);
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.poll_send(cx)?.is_ready() {
            let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
            if written.is_ready() {
                return written;
            }
        }
        if self.unsent.waits.load(Relaxed) {
            return Poll::Pending;
        }
        let before = self.bytes.len();
        slices
            .iter()
            .for_each(|slice| self.bytes.extend_from_slice(slice));
        self.unsent.left.store(self.bytes.len() + 1, Relaxed);
        Poll::Ready(Ok(self.bytes.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.poll_send(cx)?.is_ready() && Pin::new(&mut self.stream).poll_flush(cx)?.is_ready() {
            return Poll::Ready(Ok(()));
        }
        if self.unsent.waits.load(Relaxed) {
            return Poll::Pending;
        }
        self.unsent.left.store(self.bytes.len() + 1, Relaxed);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[async_trait]
impl Shutdown for Connection {
    async fn shutdown(&mut self) {
        self.stream.shutdown().await;
    }
}

impl UniqueID for Connection {
    fn id(&self) -> UniqueIDType {
        self.stream.id()
    }
}

impl Ssl for Connection {}

impl Peek for Connection {}

impl GetTimingDigest for Connection {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for Connection {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for Connection {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const BODY: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

    #[tokio::test]
    async fn what_is_not_taken_at_once_is_sent_while_it_is_read_from() {
        let (near, mut far) = duplex(10);
        let mut near = Connection::wrap(Box::new(near));
        let unsent = Unsent::of(&near);
        for piece in BODY.chunks(20) {
            near.write_all(piece).await.unwrap();
            near.flush().await.unwrap();
        }
        assert_eq!(unsent.left(), BODY.len() - 10 + 1);
        assert!(unsent.sent().now_or_never().is_none());
        let mut taken = vec![0; BODY.len()];
        let takes = async {
            far.read_exact(&mut taken).await.unwrap();
            far.write_all(b"!").await.unwrap();
        };
        let mut byte = [0];
        let (read, ()) = tokio::join!(near.read_exact(&mut byte), takes);
        assert_eq!((read.unwrap(), &byte, &*taken), (1, b"!", BODY));
        unsent.sent().await;
    }

    #[tokio::test]
    async fn without_reading_a_write_waits_until_all_before_it_is_sent() {
        let (near, mut far) = duplex(10);
        let mut near = Connection::wrap(Box::new(near));
        near.write_all(BODY).await.unwrap();
        Unsent::of(&near).set_waits(true);
        assert!(near.flush().now_or_never().is_none());
        assert!(near.write(b"x").now_or_never().is_none());
        let mut taken = vec![0; BODY.len()];
        let (flushed, read) = tokio::join!(near.flush(), far.read_exact(&mut taken));
        flushed.unwrap();
        read.unwrap();
        assert_eq!(taken, BODY);
    }

    #[tokio::test]
    async fn an_answer_is_read_though_the_rest_cannot_be_sent() {
        let (near, mut far) = duplex(10);
        let mut near = Connection::wrap(Box::new(near));
        near.write_all(BODY).await.unwrap();
        far.write_all(b"!").await.unwrap();
        drop(far);
        let mut byte = [0];
        assert_eq!(near.read(&mut byte).await.unwrap(), 1);
        assert_eq!(Unsent::of(&near).left(), 0);
        assert!(near.write_all(b"x").await.is_err());
    }
}
