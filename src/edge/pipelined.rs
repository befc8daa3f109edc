//! What a client sends beyond its request before that is answered: pipelined requests. It is kept until the answer is
//! written, as Pingora stops watching for a hang-up at the first byte of it.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

use super::socket::Transport;

/// Bytes of later requests on a connection, in the order they came.
#[derive(Debug, Default)]
pub(super) struct Pipelined {
    kept: BytesMut,
    /// Runs while there is more than is kept.
    timer: Option<Pin<Box<Sleep>>>,
    /// Some was thrown away: no later request of this connection can be read.
    is_broken: bool,
}

/// Bytes that are kept at most; what is beyond stays with the kernel, and so with the client.
const CAPACITY: usize = 65_536;
/// How long it stays there. A client that has closed shows only behind what it sent, so then that is read and thrown
/// away. No client should pipeline behind a POST: RFC 9112, section 9.3.2.
const FULL_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of one read.
const READ: usize = 4096;

impl Pipelined {
    /// Moves what was kept to `buffer`; `false` when there is nothing.
    pub(super) fn take(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        self.timer = None;
        let taken = self.kept.len().min(buffer.remaining());
        buffer.put_slice(&self.kept[..taken]);
        self.kept.advance(taken);
        taken > 0
    }

    /// Whether the connection ends with the present answer, as what came after is not whole.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Ready once the client has closed its side, or its connection broke. Keeps what comes until then.
    pub(super) fn poll_left(
        &mut self,
        io: &mut Box<dyn Transport>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.kept.len() >= CAPACITY {
                if let Some(socket) = io.socket()
                    && let Poll::Ready(left) = socket.poll_hang_up(cx)
                {
                    return Poll::Ready(left);
                }
                let new = || Box::pin(tokio::time::sleep(FULL_TIMEOUT));
                ready!(self.timer.get_or_insert_with(new).as_mut().poll(cx));
                self.is_broken = true;
                self.kept.clear();
            }
            if ready!(self.poll_read(io, cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
            if self.is_broken {
                self.kept.clear();
            }
        }
    }

    /// Reads once, and gives how many bytes that were; 0 when the client has closed its side.
    pub(super) fn poll_read(
        &mut self,
        io: &mut Box<dyn Transport>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut space = [MaybeUninit::uninit(); READ];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(io).poll_read(cx, &mut read))?;
        self.kept.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }

    /// What is kept.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.kept
    }
}
