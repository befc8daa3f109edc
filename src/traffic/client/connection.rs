//! A keep-alive connection, driven by the task that uses it, so that no event has to pass between tasks; and its socket, which takes a
//! timestamp at each read, so that what is parsed later gets the time at which its bytes arrived.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Waker};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{Fuse, FusedFuture as _};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tokio_util::io::InspectReader;

use crate::clock::{Clock, Stamp};

use super::target::Tls;

/// A socket whose reads are stamped.
pub(super) type Socket = InspectReader<TcpStream, OnRead>;

/// The stream that HTTP is read from: the socket, or TLS over it.
///
/// Under TLS a byte of HTTP has the time at which the last byte of its record was read from the socket, as decryption is no part of
/// the server's time.
type Stream = Either<Socket, TlsStream<Socket>>;

type OnRead = Box<dyn FnMut(&[u8]) + Send>;

/// Takes a timestamp at each read of a socket; also returns when bytes were last read from it, in nanoseconds.
fn stamped(stream: TcpStream, clock: Clock) -> (Socket, Arc<AtomicI64>) {
    let last = Arc::<AtomicI64>::default();
    let at = last.clone();
    let on_read = move |bytes: &[u8]| {
        if !bytes.is_empty() {
            at.store(clock.now().nanos(), Ordering::Relaxed);
        }
    };
    (InspectReader::new(stream, Box::new(on_read)), last)
}

/// A connection.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// Reads and writes when it is polled; ends when the connection is closed. An error reaches the request in flight through its
    /// response or body.
    http: Fuse<http1::Connection<TokioIo<Stream>, Full<Bytes>>>,
    /// When bytes were last read from it, in nanoseconds.
    last_read: Arc<AtomicI64>,
    /// Whether it has served a request before.
    pub(super) reused: bool,
}

impl Connection {
    /// Connects to the first address that accepts, and does the handshake of `tls` if given.
    pub(super) async fn connect(
        addresses: &[SocketAddr],
        tls: Option<&Tls>,
        clock: &Clock,
    ) -> io::Result<Connection> {
        let stream = TcpStream::connect(addresses).await?;
        stream.set_nodelay(true)?;
        let (socket, last_read) = stamped(stream, clock.clone());
        let stream = match tls {
            None => Either::Left(socket),
            Some(tls) => Either::Right(tls.connect(socket).await?),
        };
        let opened = http1::handshake(TokioIo::new(stream)).await;
        let (sender, http) = opened.map_err(io::Error::other)?;
        Ok(Connection {
            sender,
            http: http.fuse(),
            last_read,
            reused: false,
        })
    }

    /// Sends a request and waits for the head of its response.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        let mut response = pin!(self.sender.send_request(request));
        let http = &mut self.http;
        std::future::poll_fn(|cx| {
            let _ = http.poll_unpin(cx);
            response.as_mut().poll(cx)
        })
        .await
    }

    /// Reads the next piece of the body; `None` at its end.
    pub(super) async fn read(&mut self, body: &mut Incoming) -> Option<hyper::Result<Bytes>> {
        loop {
            let frame = std::future::poll_fn(|cx| {
                let _ = self.http.poll_unpin(cx);
                Pin::new(&mut *body).poll_frame(cx)
            });
            match frame.await? {
                Err(error) => return Some(Err(error)),
                Ok(frame) => {
                    // Trailers hold nothing that is recorded.
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
            }
        }
    }

    /// When bytes were last read from it.
    pub(super) fn last_read(&self) -> Stamp {
        Stamp::from_nanos(self.last_read.load(Ordering::Relaxed))
    }

    /// Whether another request can be sent: the last exchange is over and the peer has not closed. Does not wait.
    pub(super) fn is_ready(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = self.http.poll_unpin(&mut cx);
        !self.http.is_terminated() && self.sender.is_ready()
    }
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
            let last = at(last.load(Ordering::Relaxed));
            assert_eq!((&read[..], last), (taken, at(read_at)));
        }
    }
}
