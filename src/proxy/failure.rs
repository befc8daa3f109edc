//! Why a request failed: the response to its client and what its record says, in one table.

use pingora::{Error, ErrorType};

use crate::client::error_response::{ErrorResponse, Refusal};
use crate::request::observer::End;
use crate::request::outcome::Outcome::{
    self, ClientError, ProxyError, Rejected, Timeout, UpstreamDied,
};

/// Why a request did not come to its end.
#[derive(Debug)]
pub enum Failure {
    /// The client asked for something that is refused, or reached a limit.
    Refused(Refusal),
    /// The client is gone.
    ClientGone,
    /// The request's body is not framed as its head says.
    BrokenBody(Box<Error>),
    /// Writes to the client took too long in sum.
    ClientStalled,
    /// The proxy has no socket or port left.
    Shortage(String),
    /// An upstream could not be connected to: nothing was sent.
    NoConnection(Box<Error>),
    /// The connection to the upstream broke, or its response is not valid.
    Upstream(Box<Error>),
    /// The upstream sent nothing for too long.
    UpstreamSilent,
    /// A fault was injected.
    Injected,
    /// No upstream is left, or the proxy itself failed.
    Internal(&'static str),
}

impl Failure {
    /// Returns the failure for an error of reading a request's body.
    pub fn of_body(error: Box<Error>) -> Failure {
        match error.etype() {
            ErrorType::ReadError | ErrorType::ConnectionClosed | ErrorType::H2Error => {
                Failure::ClientGone
            }
            _ => Failure::BrokenBody(error),
        }
    }

    /// Returns the response to a client that has received none yet, and how the exchange with `upstream` ended. `None` if the
    /// client is gone or is to see a broken connection. The response names no hosts.
    pub fn response_and_end(&self, upstream: &str) -> (Option<ErrorResponse>, End) {
        let client = |reason: &str| (Timeout, format!("the client: {reason}"));
        let (response, (outcome, reason)) = match self {
            Failure::Refused(why) => {
                let response = why.response();
                let text = format!("{} {}", response.status, response.message);
                let failed = match why {
                    Refusal::BodyTooSlow => client("sent its body too slowly"),
                    Refusal::BodySilent => client("silent for too long"),
                    Refusal::TooManyConnections | Refusal::QueuedTooLong => (Rejected, text),
                    _ => (ClientError, text),
                };
                (Some(response), failed)
            }
            Failure::ClientGone => return (None, End::ClientGone),
            Failure::BrokenBody(error) => {
                let text = format!("400 the request: {}", error_text(error));
                (Some(Refusal::BrokenHead.response()), (ClientError, text))
            }
            Failure::ClientStalled => (None, client("held up the response for too long")),
            Failure::Shortage(why) => {
                let message = "the proxy could not open a connection to the upstream";
                let text = format!("the proxy could not open a connection: {why}");
                (response(500, message), (ProxyError, text))
            }
            Failure::NoConnection(error) | Failure::Upstream(error) => {
                let is_connected = matches!(self, Failure::Upstream(_));
                let (status, message, outcome) = of_upstream(error, is_connected);
                let text = format!("{upstream}: {}", error_text(error));
                (response(status, message), (outcome, text))
            }
            Failure::UpstreamSilent => {
                let text = format!("{upstream}: silent for too long");
                (response(504, NO_ANSWER), (Timeout, text))
            }
            Failure::Injected => (None, (ProxyError, "an injected fault".to_owned())),
            Failure::Internal(reason) => {
                let text = format!("the proxy failed: {reason}");
                (response(500, "the proxy failed"), (ProxyError, text))
            }
        };
        (response, End::Failed(outcome, reason))
    }
}

const NO_ANSWER: &str = "the upstream did not answer in time";

fn response(status: u16, message: &'static str) -> Option<ErrorResponse> {
    Some(ErrorResponse { status, message })
}

/// Returns status, message and outcome for an error of an upstream, which was connected to or was not.
fn of_upstream(error: &Error, is_connected: bool) -> (u16, &'static str, Outcome) {
    use ErrorType::{ConnectRefused, ConnectTimedout, WriteTimedout};
    let broke = "the upstream broke the connection before its answer";
    let invalid = "the upstream's response is not valid HTTP";
    match error.etype() {
        WriteTimedout if is_connected => (504, NO_ANSWER, Timeout),
        etype if is_connected && is_invalid(etype) => (502, invalid, UpstreamDied),
        _ if is_connected => (502, broke, UpstreamDied),
        ConnectTimedout => {
            let message = "the connection to the upstream timed out";
            (504, message, Timeout)
        }
        ConnectRefused => {
            let message = "the upstream refused the connection";
            (502, message, ProxyError)
        }
        etype if is_tls(etype) => (502, "no TLS connection to the upstream", ProxyError),
        _ => (502, "no connection to the upstream", ProxyError),
    }
}

/// Whether TLS could not be agreed on, or the certificate was not accepted.
fn is_tls(etype: &ErrorType) -> bool {
    use ErrorType::{InvalidCert, TLSHandshakeFailure, TLSHandshakeTimedout};
    [TLSHandshakeFailure, TLSHandshakeTimedout, InvalidCert].contains(etype)
}

/// Whether what was received is not valid HTTP.
fn is_invalid(etype: &ErrorType) -> bool {
    let of_body = ["InvalidChunk", "InvalidTrailerEnd"].contains(&etype.as_str());
    of_body || matches!(etype, ErrorType::InvalidHTTPHeader | ErrorType::H1Error)
}

/// Returns an error's text for the record.
fn error_text(error: &Error) -> String {
    let text = match error.etype() {
        ErrorType::ConnectTimedout => "connecting took too long",
        ErrorType::WriteTimedout => "took no bytes for too long",
        ErrorType::ConnectRefused => "connection refused",
        ErrorType::ConnectNoRoute => "no route",
        ErrorType::ConnectError => "the connection failed",
        ErrorType::ConnectionClosed => "connection closed before the end of the response",
        ErrorType::ReadError | ErrorType::WriteError => "connection broke",
        etype if is_invalid(etype) => "not valid HTTP/1.1",
        etype if is_tls(etype) => {
            // Pingora keeps only the text of the TLS library's error.
            let context = error.context.as_ref().map_or("", |text| text.as_str());
            return format!("the TLS connection failed: {context}");
        }
        other => other.as_str(),
    };
    text.to_owned()
}
