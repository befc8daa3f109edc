//! A stream of HTTP/2 as Pingora gets it: Pingora's own session, with the waits for the client counted and limited.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use http::HeaderMap;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::protocols::http::HttpTask;
use pingora::protocols::http::custom::CustomMessageWrite;
use pingora::protocols::http::custom::server::Session;
use pingora::protocols::http::v2::server::HttpSession;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::{Error, ErrorType, Result};

use crate::edge::connection::{Connection, Ending};

/// One request and its response.
pub(super) struct StreamSession {
    session: HttpSession,
    connection: Arc<Connection>,
    read_timeout: Option<Duration>,
    /// The response has been written to its end.
    ended: bool,
}

/// Bytes of a response that wait for the client in our memory.
pub(super) const UNSENT: usize = 32 * 1024;
/// How long the client may take what was written of a response that breaks off.
const LAST_WRITE: Duration = Duration::from_secs(1);

type Messages = Box<dyn Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>;

impl StreamSession {
    pub(super) fn new(session: HttpSession, connection: Arc<Connection>) -> StreamSession {
        StreamSession {
            session,
            connection,
            read_timeout: None,
            ended: false,
        }
    }

    fn end_if<T>(&mut self, end: bool, written: Result<T>) -> Result<T> {
        self.ended |= end && written.is_ok();
        written
    }
}

impl Drop for StreamSession {
    /// A stream that is dropped before its end is reset, and what still waits to be sent with it is lost: it goes first.
    fn drop(&mut self) {
        let writer = self.session.take_response_body_writer();
        let Some(mut writer) = writer.filter(|_| !self.ended) else {
            return;
        };
        let sent = async move {
            writer.reserve_capacity(UNSENT);
            // All of it is free again when nothing waits.
            while writer.capacity() < UNSENT {
                let Some(Ok(_)) = poll_fn(|cx| writer.poll_capacity(cx)).await else {
                    return;
                };
            }
        };
        tokio::spawn(tokio::time::timeout(LAST_WRITE, sent));
    }
}

/// Counts how long the client holds up a write, and ends it where that is over the limit.
async fn written<T>(connection: &Connection, write: impl Future<Output = Result<T>>) -> Result<T> {
    let mut write = pin!(write);
    let counted = poll_fn(|cx| connection.write_polled(write.as_mut().poll(cx)));
    let in_time = match connection.stall_left() {
        Some(left) => tokio::time::timeout(left, counted).await.ok(),
        None => None,
    };
    in_time.unwrap_or_else(|| {
        connection.end(Ending::ResponseTooSlow);
        Err(Error::new_down(ErrorType::WriteTimedout))
    })
}

/// Counts how long the client is waited for.
async fn read<T>(connection: &Connection, read: impl Future<Output = Result<T>>) -> Result<T> {
    let mut read = pin!(read);
    poll_fn(|cx| {
        let poll = read.as_mut().poll(cx);
        connection.read_polled(poll.is_ready(), 0);
        poll
    })
    .await
}

#[async_trait]
impl Session for StreamSession {
    fn req_header(&self) -> &RequestHeader {
        self.session.req_header()
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        self.session.req_header_mut()
    }

    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        let limit = self.read_timeout.unwrap_or(Duration::MAX);
        let piece = read(&self.connection, self.session.read_body_bytes());
        let in_time = tokio::time::timeout(limit, piece).await;
        in_time.unwrap_or_else(|_| Err(Error::new_down(ErrorType::ReadTimedout)))
    }

    async fn read_body_or_idle(&mut self, no_body_expected: bool) -> Result<Option<Bytes>> {
        if no_body_expected || self.session.is_body_done() {
            self.session.read_body_or_idle(true).await
        } else {
            self.read_body_bytes().await
        }
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        self.session.drain_request_body().await
    }

    async fn write_response_header(&mut self, head: Box<ResponseHeader>, end: bool) -> Result<()> {
        let written = self.session.write_response_header(head, end);
        self.end_if(end, written)
    }

    async fn write_response_header_ref(&mut self, head: &ResponseHeader, end: bool) -> Result<()> {
        let written = self.session.write_response_header_ref(head, end);
        self.end_if(end, written)
    }

    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        let written = written(&self.connection, self.session.write_body(data, end)).await;
        self.end_if(end, written)
    }

    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        let written = self.session.write_trailers(trailers);
        self.end_if(true, written)
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        let end = written(&self.connection, self.session.response_duplex_vec(tasks)).await;
        self.end_if(matches!(end, Ok(true)), end)
    }

    fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.read_timeout = timeout;
    }

    fn get_read_timeout(&self) -> Option<Duration> {
        self.read_timeout
    }

    fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.session.set_write_timeout(timeout);
    }

    fn get_write_timeout(&self) -> Option<Duration> {
        self.session.get_write_timeout()
    }

    fn set_total_drain_timeout(&mut self, timeout: Option<Duration>) {
        self.session.set_total_drain_timeout(timeout);
    }

    fn get_total_drain_timeout(&self) -> Option<Duration> {
        self.session.get_total_drain_timeout()
    }

    fn request_summary(&self) -> String {
        self.session.request_summary()
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.session.response_written()
    }

    async fn shutdown(&mut self, _code: u32, _context: &str) {
        self.session.shutdown();
    }

    fn is_body_done(&mut self) -> bool {
        self.session.is_body_done()
    }

    async fn finish(&mut self) -> Result<()> {
        let finished = self.session.finish();
        self.end_if(true, finished)
    }

    fn is_body_empty(&mut self) -> bool {
        self.session.is_body_empty()
    }

    fn body_bytes_sent(&self) -> usize {
        self.session.body_bytes_sent()
    }

    fn body_bytes_read(&self) -> usize {
        self.session.body_bytes_read()
    }

    fn digest(&self) -> Option<&Digest> {
        self.session.digest()
    }

    fn digest_mut(&mut self) -> Option<&mut Digest> {
        self.session.digest_mut()
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        self.session.client_addr()
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        self.session.server_addr()
    }

    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        self.session.pseudo_raw_h1_request_header()
    }

    fn enable_retry_buffering(&mut self) {
        self.session.enable_retry_buffering();
    }

    fn retry_buffer_truncated(&self) -> bool {
        self.session.retry_buffer_truncated()
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        self.session.get_retry_buffer()
    }

    // No messages beside the body: HTTP/2 has none.

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_reader(&mut self) -> Option<Messages> {
        None
    }

    fn restore_custom_message_reader(&mut self, _reader: Messages) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }

    fn restore_custom_message_writer(
        &mut self,
        _writer: Box<dyn CustomMessageWrite>,
    ) -> Result<()> {
        Ok(())
    }
}
