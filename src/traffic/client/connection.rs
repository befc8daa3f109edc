//! A keep-alive connection, driven by the task that uses it, so that no event has to pass between tasks.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
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

use super::socket::{self, LastRead, Stream};
use super::tls::Tls;

/// A connection.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    http: Http,
    /// When bytes were last read from it.
    pub(super) last_read: LastRead,
    /// Whether it has served a request before.
    pub(super) reused: bool,
    is_closed: bool,
}

type Http = http1::Connection<TokioIo<Stream>, Full<Bytes>>;

impl Connection {
    /// Connects to the first address that accepts, and does the handshake of `tls` if given.
    pub(super) async fn connect(
        addresses: &[SocketAddr],
        tls: Option<&Tls>,
        clock: &Clock,
    ) -> io::Result<Connection> {
        let stream = TcpStream::connect(addresses).await?;
        stream.set_nodelay(true)?;
        let (socket, last_read) = socket::stamped(stream, clock.clone());
        let stream = match tls {
            None => Either::Left(socket),
            Some(tls) => Either::Right(tls.connect(socket).await?),
        };
        let opened = http1::handshake(TokioIo::new(stream)).await;
        let (sender, http) = opened.map_err(io::Error::other)?;
        Ok(Connection {
            sender,
            http,
            last_read,
            reused: false,
            is_closed: false,
        })
    }

    /// Sends a request and waits for the head of its response.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        let mut response = pin!(self.sender.send_request(request));
        let (http, is_closed) = (&mut self.http, &mut self.is_closed);
        std::future::poll_fn(|cx| {
            drive(http, is_closed, cx);
            response.as_mut().poll(cx)
        })
        .await
    }

    /// Reads the next piece of the body; `None` at its end.
    pub(super) async fn read(&mut self, body: &mut Incoming) -> Option<hyper::Result<Bytes>> {
        loop {
            let frame = std::future::poll_fn(|cx| {
                drive(&mut self.http, &mut self.is_closed, cx);
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

    /// Whether another request can be sent: the last exchange is over and the peer has not closed. Does not wait.
    pub(super) fn is_ready(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        drive(&mut self.http, &mut self.is_closed, &mut cx);
        !self.is_closed && self.sender.is_ready()
    }
}

/// Lets the connection read and write, unless it is closed: it must not be polled then.
fn drive(http: &mut Http, is_closed: &mut bool, cx: &mut Context<'_>) {
    // An error reaches the request in flight through its response or body.
    *is_closed = *is_closed || Pin::new(http).poll(cx).is_ready();
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}
