//! A connection of which it is known whether it still brings anything.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Counts what is read.
pub struct Watched {
    stream: TcpStream,
    read: Arc<AtomicU64>,
}

/// Bytes by which it is known what a connection speaks: the preface of HTTP/2.
const PREFACE: u64 = 24;

impl Watched {
    /// The connection, and what ends when it has not brought its first bytes after `first`, or has brought nothing for
    /// `idle` later, twice that at most.
    pub fn new(
        stream: TcpStream,
        first: Duration,
        idle: Duration,
    ) -> (Watched, impl Future<Output = ()>) {
        let read = Arc::new(AtomicU64::new(0));
        let watched = Watched {
            stream,
            read: read.clone(),
        };
        let silence = async move {
            tokio::time::sleep(first).await;
            let mut before = read.load(Ordering::Relaxed);
            while before >= PREFACE {
                tokio::time::sleep(idle).await;
                let now = read.load(Ordering::Relaxed);
                if now == before {
                    return;
                }
                before = now;
            }
        };
        (watched, silence)
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, into);
        let read = into.filled().len() - before;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
