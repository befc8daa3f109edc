//! The limits on clients, and the responses to those who do not keep to them: the proxy's own errors.

use std::borrow::Cow;
use std::error::Error;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use pingora::http::ResponseHeader;
use pingora::protocols::Stream;
use pingora::protocols::http::v1::server::HttpSession;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::keys::keys;
use crate::keys::values::{self, Seconds, Whole};

keys! {
/// The limits of a listener.
Limits {
    /// After how much idleness a client's connection is closed; whole seconds.
    client_idle_timeout_s: Whole<1, { u64::MAX }> as values::whole_seconds = Whole::of::<75>(), Reload "--client-idle-timeout-s S" in "Limits";
    /// Limit on the silence of a client within its request body; 408 after it.
    client_read_timeout_s: Seconds = Seconds::of::<60>(), Reload "--client-read-timeout-s S" in "Limits";
    /// How long the head of a request, or a TLS handshake, may take; 408 after it.
    client_head_timeout_s: Seconds = Seconds::of::<30>(), Reload "--client-head-timeout-s S" in "Limits";
    /// Limit on the total time that the proxy waits for the client to send a request's body; 408 after it. Time in which the
    /// upstream does not read does not count. It is checked when a piece arrives: a client that sends nothing more meets
    /// client_read_timeout_s.
    client_body_timeout_s: Seconds = Seconds::of::<300>(), Reload "--client-body-timeout-s S" in "Limits";
    /// Limit on the total time that a response waits for its client to read; after it the response is reset. Other time does
    /// not count, so a stream may last for hours. A client that reads a byte a minute meets this limit, as one that reads nothing.
    /// On an upgraded connection (101) each wait may last as long.
    client_stall_timeout_s: Seconds = Seconds::of::<900>(), Reload "--client-stall-timeout-s S" in "Limits";
    /// Limit on the head of a request, bytes; 431 above it. A head of more than 256 fields is answered 400.
    request_head_max_bytes: Whole<256, 1_048_575> as values::bytes = Whole::of::<65_536>(), Reload "--request-head-max-bytes BYTES" in "Limits";
    /// Limit on the body of a request, bytes; 413 above it. Bodies are not held, so it is that of sgl-router.
    request_body_max_bytes: Whole<1, { u64::MAX }> as values::bytes = Whole::of::<536_870_912>(), Reload "--request-body-max-bytes BYTES" in "Limits";
    /// The most connections of clients at once; further ones get a 503, under TLS a reset. A request of HTTP/2 counts as one more,
    /// and is refused beyond the limit or beyond 1000 of its connection, for the client to send again (REFUSED_STREAM). This limit and
    /// those on heads and bodies hold for the front; hops have them only in a process without a front (but none takes
    /// a head of 1 MiB).
    max_connections: Whole<1, 1_000_000> = Whole::of::<16_384>(), Restart "--max-connections N" in "Limits";
}}

/// An error response in the format of OpenAI's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorResponse {
    /// The HTTP status.
    pub status: u16,
    /// What happened.
    pub message: Cow<'static, str>,
}

/// Why a client is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The limit on connections is reached.
    TooManyConnections,
    /// A head has too many bytes.
    HeadTooLarge,
    /// A head, or a TLS handshake, took too long.
    HeadTooSlow,
    /// What was sent is no valid head, or its body is not framed as it says.
    BrokenHead,
    /// A transfer coding is not `chunked`: RFC 9112, section 6.1.
    UnknownCoding,
    /// `CONNECT` asks for a tunnel.
    Tunnel,
    /// A body has too many bytes.
    BodyTooLarge,
    /// A body took too long, or nothing of it arrived for too long.
    BodyTooSlow,
    /// A request waited too long for `max_concurrent_requests`.
    QueuedTooLong,
}

/// `Retry-After` of a 503, in seconds.
const RETRY_AFTER_S: usize = 1;
/// How long a client has to read the last response, or what there is of it, and to close; or, where its connection is kept, to send
/// the rest of a body that was answered.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl Limits {
    /// Returns the limits for a client that may be slow and large, as a router behind a front of ours. The head's timeout stays: a
    /// client that stops within a head is of no use. So does Pingora's own limit on its size: a head is held whole.
    #[must_use]
    pub fn lifted(self) -> Limits {
        Limits {
            client_body_timeout_s: Seconds::UNLIMITED,
            request_head_max_bytes: Whole::of::<1_048_575>(),
            request_body_max_bytes: Whole::UNLIMITED,
            max_connections: Whole::UNLIMITED,
            ..self
        }
    }
}

impl Refusal {
    /// Returns the response to the client.
    pub fn response(self) -> ErrorResponse {
        let (status, message) = match self {
            Refusal::BrokenHead => (400, "the request is not valid HTTP/1.1"),
            Refusal::Tunnel => (405, "this proxy makes no tunnels (CONNECT)"),
            Refusal::HeadTooSlow | Refusal::BodyTooSlow => {
                (408, "the request did not come in time")
            }
            Refusal::BodyTooLarge => (413, "the request body is larger than this proxy takes"),
            Refusal::HeadTooLarge => (431, "the request head is larger than this proxy takes"),
            Refusal::UnknownCoding => (
                501,
                "the only Transfer-Encoding that this proxy takes is chunked",
            ),
            Refusal::QueuedTooLong => (
                503,
                "the request waited for too long in the queue of this proxy; try again later",
            ),
            Refusal::TooManyConnections => (
                503,
                "this proxy has as many connections as it takes; try again later",
            ),
        };
        ErrorResponse::new(status, message)
    }
}

impl ErrorResponse {
    /// Creates the response of a status.
    pub fn new(status: u16, message: impl Into<Cow<'static, str>>) -> ErrorResponse {
        let message = message.into();
        ErrorResponse { status, message }
    }

    /// Returns the head and the JSON body, with OpenAI's `type`.
    ///
    /// # Errors
    /// None that its fields can lead to.
    pub fn head_and_body(&self) -> pingora::Result<(ResponseHeader, Vec<u8>)> {
        let kind = match self.status {
            408 => "request_timeout",
            500 => "proxy_error",
            502 => "bad_gateway",
            503 => "overloaded",
            504 => "gateway_timeout",
            _ => "invalid_request_error",
        };
        let error =
            json!({ "message": self.message, "type": kind, "param": null, "code": self.status });
        let body = json!({ "error": error }).to_string().into_bytes();
        let mut head = ResponseHeader::build(self.status, Some(6))?;
        head.insert_header(CONTENT_TYPE, "application/json")?;
        head.insert_header(CONTENT_LENGTH, body.len())?;
        head.insert_header(CACHE_CONTROL, "no-store")?;
        if self.status == 503 {
            head.insert_header(RETRY_AFTER, RETRY_AFTER_S)?;
        }
        Ok((head, body))
    }

    /// Sends the response where no request was read, and closes.
    pub async fn send(&self, stream: Stream) {
        // On the heap: the task of each connection stays small.
        let sending = Box::pin(async {
            let (head, body) = self.head_and_body()?;
            let mut session = HttpSession::new(stream);
            session.write_response_header(Box::new(head)).await?;
            session.write_body(&body).await?;
            let mut stream = session.into_inner();
            AsyncWriteExt::shutdown(&mut stream).await?;
            // Closing on unread bytes would reset the connection before the client has read the response.
            let mut rest = vec![0; 4096];
            while stream.read(&mut rest).await? > 0 {}
            Ok::<(), Box<dyn Error + Send + Sync>>(())
        });
        // An error means that the client is gone.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, sending).await;
    }
}
