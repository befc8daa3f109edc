//! A socket that notes when bytes come, at the read itself: what is parsed from them later was there then.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::clock::{Clock, Stamp};

/// A socket, and when bytes last came from it.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    clock: Clock,
    read_at: Stamp,
}

/// What HTTP is read from, in the clear or under TLS.
///
/// Under TLS a byte of HTTP has the time at which the last of its record came from the socket: deciphering
/// is no part of the server's time. What TLS says for itself (tickets, its own end) is not HTTP and counts
/// for nothing.
#[derive(Debug)]
pub(super) struct Watched {
    wire: Wire,
    reads: Arc<Reads>,
}

#[derive(Debug)]
enum Wire {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

/// What was read of HTTP.
#[derive(Debug, Default)]
pub(super) struct Reads {
    bytes: AtomicU64,
    /// When bytes last came, nanoseconds as [`Stamp::nanos`].
    at: AtomicI64,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, clock: Clock) -> Socket {
        let read_at = clock.now();
        Socket {
            stream,
            clock,
            read_at,
        }
    }
}

impl Reads {
    /// Another exchange begins.
    pub(super) fn begin(&self) {
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Whether not one byte has come since.
    pub(super) fn are_none(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) == 0
    }

    /// When the bytes read last came.
    pub(super) fn at(&self) -> Stamp {
        Stamp::from_nanos(self.at.load(Ordering::Relaxed))
    }
}

impl Watched {
    pub(super) fn plain(socket: Socket) -> Watched {
        Watched::of(Wire::Plain(socket))
    }

    pub(super) fn tls(stream: TlsStream<Socket>) -> Watched {
        Watched::of(Wire::Tls(Box::new(stream)))
    }

    fn of(wire: Wire) -> Watched {
        Watched {
            wire,
            reads: Arc::default(),
        }
    }

    /// What is read from it, for who looks on.
    pub(super) fn reads(&self) -> Arc<Reads> {
        self.reads.clone()
    }

    fn socket(&self) -> &Socket {
        match &self.wire {
            Wire::Plain(socket) => socket,
            Wire::Tls(stream) => stream.get_ref().0,
        }
    }

    fn writer(&mut self) -> Pin<&mut (dyn AsyncWrite + Unpin)> {
        match &mut self.wire {
            Wire::Plain(socket) => Pin::new(&mut socket.stream),
            Wire::Tls(stream) => Pin::new(stream),
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = match &mut self.wire {
            Wire::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Wire::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        let came = buf.filled().len() - before;
        if came > 0 {
            self.reads.bytes.fetch_add(came as u64, Ordering::Relaxed);
            let at = self.socket().read_at.nanos();
            self.reads.at.store(at, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writer().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writer().poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.wire {
            Wire::Plain(socket) => socket.stream.is_write_vectored(),
            Wire::Tls(stream) => stream.is_write_vectored(),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.read_at = self.clock.now();
        }
        read
    }
}

/// For TLS, which writes whole records.
impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;

    use super::*;
    use crate::traffic::client::{Target, TlsArgs};

    /// Waits until bytes (or the end) lie in the socket, unread.
    async fn something_came(watched: &Watched) {
        watched.socket().stream.readable().await.unwrap();
    }

    #[tokio::test]
    async fn under_tls_a_byte_has_the_time_of_the_sockets_read_and_tls_itself_has_none() {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".into()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = async {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = TlsAcceptor::from(Arc::new(config));
            acceptor.accept(stream).await.unwrap()
        };
        let at = Stamp::from_nanos;
        let (clock, hand) = Clock::manual(at(1));
        let client = async {
            let target = Target::parse(&format!("https://localhost:{}", addr.port())).unwrap();
            let args = TlsArgs {
                ca: Some(ca),
                insecure: false,
            };
            let tls = args.tls(&target).unwrap().unwrap();
            let stream = TcpStream::connect(addr).await.unwrap();
            let shaken = tls.connect(Socket::new(stream, clock)).await;
            Watched::tls(shaken.unwrap())
        };
        let (mut server, mut client) = tokio::join!(server, client);
        let reads = client.reads();

        server.write_all(b"abc").await.unwrap();
        server.flush().await.unwrap();
        hand.set(at(100));
        let mut first = [0];
        client.read_exact(&mut first).await.unwrap();
        assert_eq!((first, reads.at()), (*b"a", at(100)));
        // What was read with it was there with it, whenever it is taken.
        hand.set(at(200));
        let mut others = [0; 2];
        client.read_exact(&mut others).await.unwrap();
        assert_eq!((others, reads.at()), (*b"bc", at(100)));

        server.write_all(b"d").await.unwrap();
        server.flush().await.unwrap();
        hand.set(at(300));
        client.read_exact(&mut first).await.unwrap();
        assert_eq!((first, reads.at()), (*b"d", at(300)));

        // Its own end is bytes on the socket, and no HTTP.
        reads.begin();
        server.shutdown().await.unwrap();
        hand.set(at(400));
        something_came(&client).await;
        let mut none = [0; 9];
        let mut none = ReadBuf::new(&mut none);
        poll_fn(|cx| Pin::new(&mut client).poll_read(cx, &mut none))
            .await
            .unwrap();
        assert_eq!(client.socket().read_at, at(400));
        assert!(none.filled().is_empty() && reads.are_none());
        assert_eq!(reads.at(), at(300));
    }
}
