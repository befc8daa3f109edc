//! The error response to a client whose request failed, from Pingora's error.

use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorSource, ErrorType};

use crate::edge::answer::Answer;

use super::identity::REQUEST_ID;
use super::injection::INJECTED;

/// The response for `error`, which names no hosts; `None` when the client is gone, or is to see a broken connection.
pub fn of_error(error: &Error) -> Option<Answer> {
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
        (ErrorSource::Internal | ErrorSource::Unset, _) => (500, "proxy_error", "the proxy failed"),
    };
    Some(Answer {
        status,
        kind,
        message: what.to_owned(),
    })
}

/// The head for a body of `length` bytes.
///
/// # Errors
/// When `request_id` cannot stand in a header.
pub fn head(answer: &Answer, length: usize, request_id: &[u8]) -> pingora::Result<ResponseHeader> {
    let mut head = ResponseHeader::build(answer.status, Some(5))?;
    head.insert_header(CONTENT_TYPE, "application/json")?;
    head.insert_header(CONTENT_LENGTH, length)?;
    head.insert_header(CACHE_CONTROL, "no-store")?;
    if !request_id.is_empty() {
        head.insert_header(REQUEST_ID, request_id)?;
    }
    Ok(head)
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
