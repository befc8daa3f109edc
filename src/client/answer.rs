//! Error responses of the proxy's own, and what is refused before there is a request to send on.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use pingora::http::ResponseHeader;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// An answer in the shape of OpenAI's errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// What happened.
    pub message: &'static str,
}

/// What a client is refused, or asked for in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There are as many connections as are taken.
    TooManyConnections,
    /// A head over its limit in bytes.
    HeadTooLarge,
    /// A head, or a TLS handshake, over its limit in time.
    HeadTooSlow,
    /// Bytes that are no head.
    BrokenHead,
    /// A target with a control byte.
    BadTarget,
    /// A transfer coding other than `chunked`: RFC 9112, section 6.1.
    UnknownCoding,
    /// `CONNECT`: this is no tunnel.
    Tunnel,
    /// A body over its limit in bytes.
    BodyTooLarge,
    /// A body over its limit in time.
    BodyTooSlow,
    /// Nothing of a body for too long.
    BodySilent,
    /// Its turn did not come in time.
    QueuedTooLong,
}

/// After which a client that was refused for want of room may try again, seconds.
const RETRY_S: usize = 1;
/// How long a client has to read our answer and close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl Refusal {
    /// The answer to the client.
    pub fn answer(self) -> Answer {
        let (status, message) = match self {
            Refusal::BrokenHead => (400, "the request is not valid HTTP/1.1"),
            Refusal::BadTarget => (400, "the request target holds a control byte"),
            Refusal::Tunnel => (405, "this proxy makes no tunnels (CONNECT)"),
            Refusal::HeadTooSlow | Refusal::BodyTooSlow => {
                (408, "the request did not come in time")
            }
            Refusal::BodySilent => (408, "the request body did not come in time"),
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
        Answer { status, message }
    }
}

impl Answer {
    /// The head, and the JSON body with OpenAI's `type`.
    ///
    /// # Errors
    /// None that its fields can come to.
    pub fn message(&self) -> pingora::Result<(ResponseHeader, Vec<u8>)> {
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
            head.insert_header(RETRY_AFTER, RETRY_S)?;
        }
        Ok((head, body))
    }

    /// Answers where there is no request, and closes.
    pub async fn close(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        // Whatever goes wrong, the client is gone.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.write(&mut stream)).await;
    }

    async fn write(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let (mut head, body) = self.message()?;
        head.insert_header(CONNECTION, "close")?;
        let reason = head.get_reason_phrase().unwrap_or_default();
        let mut message = format!("HTTP/1.1 {} {reason}\r\n", self.status).into_bytes();
        head.header_to_h1_wire(&mut message);
        message.extend_from_slice(b"\r\n");
        message.extend(body);
        stream.write_all(&message).await?;
        stream.shutdown().await?;
        // Closing on unread bytes would reset the connection under the answer.
        // On the heap, or each connection would hold as much.
        let mut rest = vec![0; 4096];
        while stream.read(&mut rest).await? > 0 {}
        Ok(())
    }
}
