//! A socket that takes a timestamp at each read, so that what is parsed later gets the time at which its bytes arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

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
/// the server's time.
pub(super) type Stream = Either<Socket, TlsStream<Socket>>;

type OnRead = Box<dyn FnMut(&[u8]) + Send>;

/// When bytes were last read from a socket.
#[derive(Clone, Debug, Default)]
pub(super) struct LastRead(Arc<AtomicI64>);

impl LastRead {
    /// The time.
    pub(super) fn at(&self) -> Stamp {
        Stamp::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Takes a timestamp at each read of a socket.
pub(super) fn stamped(stream: TcpStream, clock: Clock) -> (Socket, LastRead) {
    let last = LastRead::default();
    let at = last.0.clone();
    let on_read = move |bytes: &[u8]| {
        if !bytes.is_empty() {
            at.store(clock.now().nanos(), Ordering::Relaxed);
        }
    };
    (InspectReader::new(stream, Box::new(on_read)), last)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;

    use super::*;
    use crate::traffic::client::{Target, TlsArgs};

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
            let (socket, last) = stamped(stream, clock);
            (tls.connect(socket).await.unwrap(), last)
        };
        let (mut server, (mut client, last)) = tokio::join!(server, client);

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
            assert_eq!((&read[..], last.at()), (taken, at(read_at)));
        }
    }
}
