//! How a request ended, from what Pingora says.

use pingora::{Error, ErrorSource, ErrorType};

use crate::request::observer::End;

use super::answer;

/// How an exchange ended that Pingora says failed with `error`, its upstream being `upstream`.
pub fn end_of(error: &Error, upstream: &str) -> End {
    let etype = error.etype();
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

fn words(etype: &ErrorType) -> &'static str {
    match etype {
        ErrorType::ConnectTimedout => "connecting took too long",
        ErrorType::ReadTimedout => "silent for too long",
        ErrorType::WriteTimedout => "took no bytes for too long",
        ErrorType::ConnectRefused => "connection refused",
        ErrorType::ConnectNoRoute => "no route",
        ErrorType::ConnectError | ErrorType::SocketError | ErrorType::BindError => {
            "no connection came about"
        }
        ErrorType::ConnectionClosed => "connection closed before the end of the response",
        ErrorType::ReadError | ErrorType::WriteError => "connection broke",
        etype if answer::is_tls(etype) => "no TLS connection came about",
        ErrorType::InvalidHTTPHeader | ErrorType::H1Error => "not valid HTTP/1.1",
        other => other.as_str(),
    }
}
