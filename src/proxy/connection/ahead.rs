//! What a client sends beyond its request before that is answered. It is kept for its turn and never shown to Pingora
//! meanwhile, which stops to look for the client's leaving at the first byte of it.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

use super::stream::Io;

/// Bytes of later requests on a connection, in the order they came.
#[derive(Debug, Default)]
pub(super) struct Ahead(BytesMut);

/// Bytes that are kept at most; what is beyond stays with the kernel, and so with the client.
const MOST: usize = 65_536;
/// Bytes of one read.
const READ: usize = 4096;

impl Ahead {
    /// Moves what was kept to `buffer`; `false` when there is nothing.
    pub(super) fn take(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let taken = self.0.len().min(buffer.remaining());
        buffer.put_slice(&self.0[..taken]);
        self.0.advance(taken);
        taken > 0
    }

    /// Ready once the client has closed its side, or its connection broke. Keeps what comes until then.
    pub(super) fn poll_left(&mut self, io: &mut Io, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.0.len() < MOST {
            if ready!(self.poll_read(io, cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        io.poll_hang_up(cx)
    }

    /// Reads once, and gives how many bytes that were; 0 when the client has closed its side.
    pub(super) fn poll_read(
        &mut self,
        io: &mut Io,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut space = [MaybeUninit::uninit(); READ];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(io).poll_read(cx, &mut read))?;
        self.0.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }

    /// What is kept.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
