//! The proxy's own error responses, and why a client is refused.

use std::borrow::Cow;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use pingora::http::ResponseHeader;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

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
/// How long a client has to read the response and close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

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
        let message = message.into();
        ErrorResponse { status, message }
    }
}

impl ErrorResponse {
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
    pub async fn send(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        // An error means that the client is gone.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.write(&mut stream)).await;
    }

    async fn write(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let (mut head, body) = self.head_and_body()?;
        head.insert_header(CONNECTION, "close")?;
        let reason = head.get_reason_phrase().unwrap_or_default();
        let mut message = format!("HTTP/1.1 {} {reason}\r\n", self.status).into_bytes();
        head.header_to_h1_wire(&mut message);
        message.extend_from_slice(b"\r\n");
        message.extend(body);
        stream.write_all(&message).await?;
        stream.shutdown().await?;
        // Closing on unread bytes would reset the connection before the client has read the response.
        // On the heap: the task of each connection stays small.
        let mut rest = vec![0; 4096];
        while stream.read(&mut rest).await? > 0 {}
        Ok(())
    }
}
