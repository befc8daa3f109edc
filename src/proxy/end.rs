//! How a request ended, from what Pingora says.

use pingora::{Error, ErrorSource, ErrorType};

use crate::edge::connection::Ending;
use crate::edge::shortage;
use crate::request::observer::End;

use super::answer;
use super::framing;
use super::injection::INJECTED;

/// How an exchange ended that Pingora says failed with `error`, its upstream being `upstream` and `ending` what
/// became of the client's connection.
pub fn end_of(error: &Error, ending: Option<Ending>, upstream: &str) -> End {
    let etype = error.etype();
    if let Some(end) = of_client(error, ending) {
        return end;
    }
    if *etype == ErrorType::SocketError {
        let why = shortage::reason(error);
        return End::ProxyError(format!("the proxy could not open a connection: {why}"));
    }
    let is_limit = matches!(
        etype,
        ErrorType::ConnectTimedout | ErrorType::ReadTimedout | ErrorType::WriteTimedout
    );
    let who = match error.esource() {
        ErrorSource::Downstream if is_limit => "the client",
        ErrorSource::Downstream if answer::is_gone(etype) => return End::ClientGone,
        ErrorSource::Downstream => {
            return End::BadRequest(format!("400 the request: {}", words(etype)));
        }
        ErrorSource::Upstream => upstream,
        ErrorSource::Internal | ErrorSource::Unset => {
            return End::ProxyError(format!("the proxy failed: {}", etype.as_str()));
        }
    };
    let mut words = format!("{who}: {}", words(etype));
    if answer::is_tls(etype) {
        words = format!("{words}: {}", answer::tls_reason(error));
    }
    if is_limit {
        End::Timeout(words)
    } else if answer::is_connect(etype) {
        End::ProxyError(words)
    } else {
        End::UpstreamDied(words)
    }
}

/// The end of a request that was not taken, came to a limit on clients, or met an injected fault.
fn of_client(error: &Error, ending: Option<Ending>) -> Option<End> {
    let is_too_slow = ending == Some(Ending::ResponseTooSlow);
    let end = match error.etype() {
        _ if is_too_slow && error.esource() == &ErrorSource::Downstream => {
            End::Timeout("the client: held up the response for too long".into())
        }
        ErrorType::HTTPStatus(408) => End::Timeout("the client: sent its body too slowly".into()),
        ErrorType::HTTPStatus(framing::BAD_TARGET) => {
            End::BadRequest("400 the request target holds a control byte".into())
        }
        ErrorType::HTTPStatus(framing::UNKNOWN_CODING) => {
            End::BadRequest("501 the request's Transfer-Encoding is not chunked".into())
        }
        ErrorType::HTTPStatus(413) => End::BadRequest("413 the request body is too large".into()),
        ErrorType::HTTPStatus(431) => End::BadRequest("431 the request head is too large".into()),
        &INJECTED => injected(),
        _ => return None,
    };
    Some(end)
}

/// How a request ended that met an injected fault.
pub fn injected() -> End {
    End::ProxyError("an injected fault".into())
}

fn words(etype: &ErrorType) -> &'static str {
    match etype {
        ErrorType::ConnectTimedout => "connecting took too long",
        ErrorType::ReadTimedout => "silent for too long",
        ErrorType::WriteTimedout => "took no bytes for too long",
        ErrorType::ConnectRefused => "connection refused",
        ErrorType::ConnectNoRoute => "no route",
        ErrorType::ConnectError => "no connection came about",
        ErrorType::ConnectionClosed => "connection closed before the end of the response",
        ErrorType::ReadError | ErrorType::WriteError => "connection broke",
        etype if answer::is_tls(etype) => "no TLS connection came about",
        ErrorType::InvalidHTTPHeader | ErrorType::H1Error => "not valid HTTP/1.1",
        other => other.as_str(),
    }
}
