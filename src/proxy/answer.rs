//! The answers that the proxy gives itself, when no upstream could.

use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorSource, ErrorType};

use super::fault::hook::INJECTED;
use super::framing;
use super::identity::REQUEST_ID;

/// An answer in the shape of OpenAI's errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// What happened.
    pub message: String,
}

impl Answer {
    /// What a client is told whose request is not taken.
    pub fn refusing(status: u16) -> Answer {
        let (kind, what) = match status {
            framing::BAD_TARGET => (
                "invalid_request_error",
                "the request target holds a control byte",
            ),
            framing::UNKNOWN_CODING => (
                "invalid_request_error",
                "the only Transfer-Encoding that this proxy takes is chunked",
            ),
            413 => (
                "invalid_request_error",
                "the request body is larger than this proxy takes",
            ),
            431 => (
                "invalid_request_error",
                "the request head is larger than this proxy takes",
            ),
            503 => (
                "overloaded",
                "this proxy has as many connections as it takes; try again later",
            ),
            _ => ("request_timeout", "the request did not come in time"),
        };
        Answer {
            status,
            kind,
            message: what.to_owned(),
        }
    }

    /// What a client is told of `error`, without naming hosts; `None` when it is gone, or is meant to think so.
    pub fn of(error: &Error) -> Option<Answer> {
        let (status, kind, what) = match (error.esource(), error.etype()) {
            (_, &INJECTED) => return None,
            (ErrorSource::Downstream, ErrorType::HTTPStatus(status)) => {
                return Some(Answer::refusing(*status));
            }
            (ErrorSource::Downstream, ErrorType::ReadTimedout) => (
                408,
                "request_timeout",
                "the request body did not come in time",
            ),
            (ErrorSource::Downstream, ErrorType::WriteTimedout) => return None,
            (ErrorSource::Downstream, etype) if is_gone(etype) => return None,
            (ErrorSource::Downstream, _) => (
                400,
                "invalid_request_error",
                "the request is not valid HTTP/1.1",
            ),
            (ErrorSource::Upstream, ErrorType::ConnectTimedout) => (
                504,
                "gateway_timeout",
                "the connection to the upstream timed out",
            ),
            (ErrorSource::Upstream, ErrorType::ReadTimedout | ErrorType::WriteTimedout) => (
                504,
                "gateway_timeout",
                "the upstream did not answer in time",
            ),
            (ErrorSource::Upstream, ErrorType::SocketError) => (
                500,
                "proxy_error",
                "the proxy could not open a connection to the upstream",
            ),
            (ErrorSource::Upstream, ErrorType::ConnectRefused) => {
                (502, "bad_gateway", "the upstream refused the connection")
            }
            (ErrorSource::Upstream, etype) if is_tls(etype) => {
                (502, "bad_gateway", "no TLS connection to the upstream")
            }
            (ErrorSource::Upstream, etype) if is_connect(etype) => {
                (502, "bad_gateway", "no connection to the upstream")
            }
            (ErrorSource::Upstream, _) => (
                502,
                "bad_gateway",
                "the upstream broke the connection before its answer",
            ),
            (ErrorSource::Internal | ErrorSource::Unset, _) => {
                (500, "proxy_error", "the proxy failed")
            }
        };
        Some(Answer {
            status,
            kind,
            message: what.to_owned(),
        })
    }

    /// The body.
    pub fn body(&self) -> String {
        let error = serde_json::json!({
            "message": self.message, "type": self.kind, "param": null, "code": self.status,
        });
        serde_json::json!({ "error": error }).to_string()
    }

    /// A whole message, for a connection on which there is no request.
    pub fn message_on_its_own(&self) -> String {
        let body = self.body();
        let reason = http::StatusCode::from_u16(self.status)
            .ok()
            .and_then(|status| status.canonical_reason())
            .unwrap_or_default();
        format!(
            "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             cache-control: no-store\r\nconnection: close\r\n\r\n{body}",
            self.status,
            body.len()
        )
    }

    /// The head for a body of `length` bytes.
    ///
    /// # Errors
    /// When `request_id` cannot stand in a header.
    pub fn head(&self, length: usize, request_id: &[u8]) -> pingora::Result<ResponseHeader> {
        let mut head = ResponseHeader::build(self.status, Some(5))?;
        head.insert_header(CONTENT_TYPE, "application/json")?;
        head.insert_header(CONTENT_LENGTH, length)?;
        head.insert_header(CACHE_CONTROL, "no-store")?;
        if !request_id.is_empty() {
            head.insert_header(REQUEST_ID, request_id)?;
        }
        Ok(head)
    }
}

/// Whether an error of a client's connection means that the client has left.
pub fn is_gone(etype: &ErrorType) -> bool {
    matches!(
        etype,
        ErrorType::WriteError
            | ErrorType::ReadError
            | ErrorType::ConnectionClosed
            | ErrorType::H2Error
    )
}

/// Whether an error means that no connection came about, so that nothing was sent.
pub fn is_connect(etype: &ErrorType) -> bool {
    matches!(
        etype,
        ErrorType::ConnectTimedout
            | ErrorType::ConnectRefused
            | ErrorType::ConnectNoRoute
            | ErrorType::ConnectError
            | ErrorType::SocketError
            | ErrorType::BindError
            | ErrorType::TLSHandshakeFailure
            | ErrorType::TLSHandshakeTimedout
            | ErrorType::InvalidCert
    )
}

/// Whether an error means that TLS could not be agreed on, or the certificate was not taken.
pub fn is_tls(etype: &ErrorType) -> bool {
    matches!(
        etype,
        ErrorType::TLSHandshakeFailure | ErrorType::TLSHandshakeTimedout | ErrorType::InvalidCert
    )
}

/// What the TLS library says of it. Pingora has that only as a piece of its own text.
pub fn tls_reason(error: &Error) -> String {
    let text = error.to_string();
    let cause = text
        .split_once("cause: ")
        .map_or(&*text, |(_, cause)| cause);
    let cause = cause.split(", SNI: ").next().unwrap_or(cause);
    cause.trim().to_owned()
}
