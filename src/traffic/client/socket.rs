//! A socket that takes a timestamp at each read, so that what is parsed later gets the time at which its bytes arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tokio_util::io::InspectReader;

use crate::clock::{Clock, Stamp};

/// A socket whose reads are stamped.
pub(super) type Socket = InspectReader<TcpStream, OnRead>;

/// The stream that HTTP is read from: the socket, or TLS over it.
///
/// Under TLS a byte of HTTP has the time at which the last byte of its record was read from the socket, as decryption is no part of
/// the server's time. Bytes of TLS itself (tickets, its closing alert) do not count.
pub(super) type Stream = InspectReader<Transport, OnRead>;

type Transport = Either<Socket, TlsStream<Socket>>;

type OnRead = Box<dyn FnMut(&[u8]) + Send>;

/// When bytes were read. Times are [`Stamp::nanos`].
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// When bytes of HTTP were last read in this exchange; 0: not yet.
    at: AtomicI64,
    /// When bytes were last read from the socket.
    socket_at: AtomicI64,
}

impl Reads {
    /// Begins a new exchange.
    pub(super) fn begin(&self) {
        self.at.store(0, Ordering::Relaxed);
    }

    /// Whether no byte has been read in this exchange.
    pub(super) fn is_empty(&self) -> bool {
        self.at.load(Ordering::Relaxed) == 0
    }

    /// When bytes of HTTP were last read.
    pub(super) fn at(&self) -> Stamp {
        Stamp::from_nanos(self.at.load(Ordering::Relaxed))
    }
}

/// Takes a timestamp at each read of a socket.
pub(super) fn stamped(stream: TcpStream, clock: Clock, reads: &Arc<Reads>) -> Socket {
    let reads = reads.clone();
    inspect(stream, move || {
        let now = clock.now().nanos();
        reads.socket_at.store(now, Ordering::Relaxed);
    })
}

/// Gives bytes of HTTP the timestamp of the last read of their socket.
pub(super) fn http_stamped(stream: Transport, reads: &Arc<Reads>) -> Stream {
    let reads = reads.clone();
    inspect(stream, move || {
        let at = reads.socket_at.load(Ordering::Relaxed);
        reads.at.store(at, Ordering::Relaxed);
    })
}

/// Calls `on_bytes` whenever a read returns bytes.
fn inspect<R: AsyncRead>(
    stream: R,
    mut on_bytes: impl FnMut() + Send + 'static,
) -> InspectReader<R, OnRead> {
    let on_read = move |bytes: &[u8]| {
        if !bytes.is_empty() {
            on_bytes();
        }
    };
    InspectReader::new(stream, Box::new(on_read))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::Pin;

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use tokio::io::ReadBuf;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;

    use super::*;
    use crate::traffic::client::{Target, TlsArgs};

    /// Waits until the socket has unread bytes, or its end.
    async fn wait_readable(stream: &Stream) {
        let Either::Right(tls) = stream.get_ref() else {
            panic!("the stream is under TLS");
        };
        tls.get_ref().0.get_ref().readable().await.unwrap();
    }

    #[tokio::test]
    async fn under_tls_a_byte_of_http_has_the_time_of_the_sockets_read() {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".into()]).unwrap();
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
        let (clock, manual) = Clock::manual(at(1));
        let client = async {
            let target = Target::parse(&format!("https://localhost:{}", addr.port())).unwrap();
            let (ca, insecure) = (None, true);
            let tls = TlsArgs { ca, insecure }.tls(&target).unwrap().unwrap();
            let stream = TcpStream::connect(addr).await.unwrap();
            let reads = Arc::new(Reads::default());
            let stream = tls.connect(stamped(stream, clock, &reads)).await.unwrap();
            (http_stamped(Either::Right(stream), &reads), reads)
        };
        let (mut server, (mut client, reads)) = tokio::join!(server, client);

        for (sent, now, taken, read_at) in [
            (&b"abc"[..], 100, &b"a"[..], 100),
            // Bytes of the same read have its time, whenever they are taken.
            (b"", 200, b"bc", 100),
            (b"d", 300, b"d", 300),
        ] {
            server.write_all(sent).await.unwrap();
            server.flush().await.unwrap();
            manual.set(at(now));
            let mut read = vec![0; taken.len()];
            client.read_exact(&mut read).await.unwrap();
            assert_eq!((&read[..], reads.at()), (taken, at(read_at)));
        }

        // The closing alert of TLS is bytes on the socket, but no HTTP.
        reads.begin();
        server.shutdown().await.unwrap();
        manual.set(at(400));
        wait_readable(&client).await;
        let mut none = [0; 9];
        let mut none = ReadBuf::new(&mut none);
        let read = poll_fn(|cx| Pin::new(&mut client).poll_read(cx, &mut none));
        read.await.unwrap();
        assert_eq!(reads.socket_at.load(Ordering::Relaxed), 400);
        assert!(none.filled().is_empty() && reads.is_empty());
    }
}
