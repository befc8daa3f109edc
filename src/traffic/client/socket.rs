//! A socket that notes when bytes come, at the read itself: what is parsed from them later was there then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tokio_util::io::InspectReader;

use crate::clock::{Clock, Stamp};

/// A socket whose reads are stamped.
pub(super) type Socket = InspectReader<TcpStream, OnRead>;

/// What HTTP is read from, in the clear or under TLS.
///
/// Under TLS a byte of HTTP has the time at which the last of its record came from the socket: deciphering
/// is no part of the server's time. What TLS says for itself (tickets, its own end) is not HTTP and counts
/// for nothing.
pub(super) type Stream = InspectReader<Either<Socket, TlsStream<Socket>>, OnRead>;

type OnRead = Box<dyn FnMut(&[u8]) + Send>;

/// What was read. Times are nanoseconds as [`Stamp::nanos`].
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Whether any HTTP came.
    any: AtomicBool,
    /// When HTTP last came.
    at: AtomicI64,
    /// When bytes last came from the socket.
    socket_at: AtomicI64,
}

impl Reads {
    /// Another exchange begins.
    pub(super) fn begin(&self) {
        self.any.store(false, Ordering::Relaxed);
    }

    /// Whether not one byte has come since.
    pub(super) fn are_none(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// When the bytes read last came.
    pub(super) fn at(&self) -> Stamp {
        Stamp::from_nanos(self.at.load(Ordering::Relaxed))
    }
}

/// Stamps the reads of a socket.
pub(super) fn stamped(stream: TcpStream, clock: Clock, reads: &Arc<Reads>) -> Socket {
    let reads = reads.clone();
    inspect(stream, move || {
        let now = clock.now().nanos();
        reads.socket_at.store(now, Ordering::Relaxed);
    })
}

/// Gives what is read of HTTP the stamp of its socket's read.
pub(super) fn watched(stream: Either<Socket, TlsStream<Socket>>, reads: &Arc<Reads>) -> Stream {
    let reads = reads.clone();
    inspect(stream, move || {
        let at = reads.socket_at.load(Ordering::Relaxed);
        reads.at.store(at, Ordering::Relaxed);
        reads.any.store(true, Ordering::Relaxed);
    })
}

/// `came` is called whenever a read brings bytes.
fn inspect<R: AsyncRead>(
    stream: R,
    mut came: impl FnMut() + Send + 'static,
) -> InspectReader<R, OnRead> {
    let on_read = move |bytes: &[u8]| {
        if !bytes.is_empty() {
            came();
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

    /// Waits until bytes (or the end) lie in the socket, unread.
    async fn something_came(stream: &Stream) {
        let Either::Right(tls) = stream.get_ref() else {
            panic!("the stream is under TLS");
        };
        tls.get_ref().0.get_ref().readable().await.unwrap();
    }

    #[tokio::test]
    async fn under_tls_a_byte_has_the_time_of_the_sockets_read_and_tls_itself_has_none() {
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
            let tls = TlsArgs { ca, insecure }.tls(&target);
            let tls = tls.unwrap().unwrap();
            let stream = TcpStream::connect(addr).await.unwrap();
            let reads = Arc::new(Reads::default());
            let stream = tls.connect(stamped(stream, clock, &reads)).await.unwrap();
            (watched(Either::Right(stream), &reads), reads)
        };
        let (mut server, (mut client, reads)) = tokio::join!(server, client);

        server.write_all(b"abc").await.unwrap();
        server.flush().await.unwrap();
        manual.set(at(100));
        let mut first = [0];
        client.read_exact(&mut first).await.unwrap();
        assert_eq!((first, reads.at()), (*b"a", at(100)));
        // What was read with it was there with it, whenever it is taken.
        manual.set(at(200));
        let mut others = [0; 2];
        client.read_exact(&mut others).await.unwrap();
        assert_eq!((others, reads.at()), (*b"bc", at(100)));

        server.write_all(b"d").await.unwrap();
        server.flush().await.unwrap();
        manual.set(at(300));
        client.read_exact(&mut first).await.unwrap();
        assert_eq!((first, reads.at()), (*b"d", at(300)));

        // Its own end is bytes on the socket, and no HTTP.
        reads.begin();
        server.shutdown().await.unwrap();
        manual.set(at(400));
        something_came(&client).await;
        let mut none = [0; 9];
        let mut none = ReadBuf::new(&mut none);
        poll_fn(|cx| Pin::new(&mut client).poll_read(cx, &mut none))
            .await
            .unwrap();
        assert_eq!(reads.socket_at.load(Ordering::Relaxed), 400);
        assert!(none.filled().is_empty() && reads.are_none());
        assert_eq!(reads.at(), at(300));
    }
}
