//! One keep-alive connection, driven by the task that uses it: an event costs no hop between tasks.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::clock::{Clock, Stamp};

use super::socket::{Reads, Socket, Watched};
use super::tls::Tls;

/// A connection and what is needed to send on it.
#[derive(Debug)]
pub(super) struct Lane {
    sender: SendRequest<Full<Bytes>>,
    connection: Connection<TokioIo<Watched>, Full<Bytes>>,
    reads: Arc<Reads>,
    reused: bool,
    over: bool,
}

impl Lane {
    /// Connects to the first address that answers, and takes the handshake of `tls` if it is given.
    pub(super) async fn connect(
        addresses: &[SocketAddr],
        tls: Option<&Tls>,
        clock: &Clock,
    ) -> io::Result<Lane> {
        let stream = TcpStream::connect(addresses).await?;
        stream.set_nodelay(true)?;
        let socket = Socket::new(stream, clock.clone());
        let watched = match tls {
            None => Watched::plain(socket),
            Some(tls) => Watched::tls(tls.connect(socket).await?),
        };
        let reads = watched.reads();
        let opened = http1::handshake(TokioIo::new(watched)).await;
        let (sender, connection) = opened.map_err(io::Error::other)?;
        Ok(Lane {
            sender,
            connection,
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
        let (connection, over) = (&mut self.connection, &mut self.over);
        std::future::poll_fn(|cx| {
            drive(connection, over, cx);
            response.as_mut().poll(cx)
        })
        .await
    }

    /// The next piece of the body; `None` at its end.
    pub(super) async fn read(&mut self, body: &mut Incoming) -> Option<hyper::Result<Bytes>> {
        loop {
            let frame = std::future::poll_fn(|cx| {
                drive(&mut self.connection, &mut self.over, cx);
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

    /// When the bytes read last came.
    pub(super) fn read_at(&self) -> Stamp {
        self.reads.at()
    }

    /// Whether not one byte of the response has come.
    pub(super) fn is_silent(&self) -> bool {
        self.reads.are_none()
    }

    /// Whether it had served a request before this one.
    pub(super) fn is_reused(&self) -> bool {
        self.reused
    }

    /// Looks whether another request can be sent on it: the last exchange is over and the peer has not
    /// closed. Does not wait.
    pub(super) fn is_ready(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        drive(&mut self.connection, &mut self.over, &mut cx);
        !self.over && self.sender.is_ready()
    }

    /// Marks that it has served a request.
    pub(super) fn set_reused(&mut self) {
        self.reused = true;
    }
}

/// Lets the connection read and write; a connection that has ended is left alone.
fn drive(
    connection: &mut Connection<TokioIo<Watched>, Full<Bytes>>,
    over: &mut bool,
    cx: &mut Context<'_>,
) {
    // Its error reaches the request that is under way through the response or its body.
    *over = *over || Pin::new(connection).poll(cx).is_ready();
}
