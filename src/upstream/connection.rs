//! A connection to an upstream, which is read and written at the same time: Pingora's session cannot be read while a write to it is
//! pending.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use pingora::protocols::{Stream, UniqueID, UniqueIDType};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::client::socket::plain_stream;

/// A stream that a session reads, while the body of a request is written by another handle. All handles are in one task: the lock is
/// always free.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Mutex<Stream>>);

impl Connection {
    /// Takes a stream that was just connected.
    pub fn new(stream: Stream) -> Connection {
        Connection(Arc::new(Mutex::new(stream)))
    }

    /// Writes a piece of a request's body, as a chunk if the body `is_chunked`, and its end if it is the last.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn send(mut self, piece: Bytes, is_chunked: bool, is_last: bool) -> io::Result<()> {
        if is_chunked {
            let size = format!("{:X}\r\n", piece.len());
            // An empty chunk is the end.
            let end: &[u8] = match is_last && !piece.is_empty() {
                true => b"\r\n0\r\n\r\n",
                false => b"\r\n",
            };
            let mut chunk = Bytes::from(size).chain(piece).chain(end);
            self.write_all_buf(&mut chunk).await?;
        } else {
            self.write_all(&piece).await?;
        }
        self.flush().await
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.lock().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_shutdown(cx)
    }
}

impl UniqueID for Connection {
    fn id(&self) -> UniqueIDType {
        self.0.lock().id()
    }
}

plain_stream!(Connection);
