//! One keep-alive connection, driven by the task that uses it: an event costs no hop between tasks.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::either::Either;

use crate::clock::Clock;

use super::socket::{self, Reads, Stream};
use super::tls::Tls;

/// A connection and what is needed to send on it.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    http: Http,
    /// What came on it, and when.
    pub(super) reads: Arc<Reads>,
    /// It has served a request before.
    pub(super) reused: bool,
    over: bool,
}

type Http = http1::Connection<TokioIo<Stream>, Full<Bytes>>;

impl Connection {
    /// Connects to the first address that answers, and takes the handshake of `tls` if it is given.
    pub(super) async fn connect(
        addresses: &[SocketAddr],
        tls: Option<&Tls>,
        clock: &Clock,
    ) -> io::Result<Connection> {
        let stream = TcpStream::connect(addresses).await?;
        stream.set_nodelay(true)?;
        let reads = Arc::new(Reads::default());
        let socket = socket::stamped(stream, clock.clone(), &reads);
        let stream = match tls {
            None => Either::Left(socket),
            Some(tls) => Either::Right(tls.connect(socket).await?),
        };
        let stream = socket::watched(stream, &reads);
        let opened = http1::handshake(TokioIo::new(stream)).await;
        let (sender, http) = opened.map_err(io::Error::other)?;
        Ok(Connection {
            sender,
            http,
            reads,
            reused: false,
            over: false,
        })
    }

    /// Sends a request and waits for the head of its response.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        self.reads.begin();
        let mut response = pin!(self.sender.send_request(request));
        let (http, over) = (&mut self.http, &mut self.over);
        std::future::poll_fn(|cx| {
            drive(http, over, cx);
            response.as_mut().poll(cx)
        })
        .await
    }

    /// The next piece of the body; `None` at its end.
    pub(super) async fn read(&mut self, body: &mut Incoming) -> Option<hyper::Result<Bytes>> {
        loop {
            let frame = std::future::poll_fn(|cx| {
                drive(&mut self.http, &mut self.over, cx);
                Pin::new(&mut *body).poll_frame(cx)
            });
            match frame.await? {
                Err(error) => return Some(Err(error)),
                Ok(frame) => {
                    // Trailers say nothing that we record.
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
            }
        }
    }

    /// Looks whether another request can be sent on it: the last exchange is over and the peer has not
    /// closed. Does not wait.
    pub(super) fn is_ready(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        drive(&mut self.http, &mut self.over, &mut cx);
        !self.over && self.sender.is_ready()
    }
}

/// Lets the connection read and write; a connection that has ended is left alone.
fn drive(http: &mut Http, over: &mut bool, cx: &mut Context<'_>) {
    // Its error reaches the request that is under way through the response or its body.
    *over = *over || Pin::new(http).poll(cx).is_ready();
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}
