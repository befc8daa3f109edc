//! A connection to an upstream, which is read and written at the same time: Pingora's session cannot be read while a write to it is
//! pending.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use parking_lot::Mutex;
use pingora::protocols::{Stream, UniqueID, UniqueIDType};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::client::socket::plain_stream;

/// A stream that a session reads, while the body of a request is written by another handle.
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
        let piece = match is_chunked {
            true => chunks(&piece, is_last).into(),
            false => piece,
        };
        self.write_all(&piece).await?;
        self.flush().await
    }
}

/// Frames a piece of a body: RFC 9112, section 7.1.
fn chunks(piece: &[u8], is_last: bool) -> Vec<u8> {
    let mut framed = Vec::new();
    // An empty chunk would end the body.
    if !piece.is_empty() {
        let size = format!("{:X}\r\n", piece.len());
        framed = [size.as_bytes(), piece, b"\r\n"].concat();
    }
    if is_last {
        framed.extend_from_slice(b"0\r\n\r\n");
    }
    framed
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
