//! Why a request failed: the response to its client and what its record says, in one table; and what the log says.

use std::error::Error as Cause;
use std::io;
use std::iter::successors;

use pingora::{Error, ErrorType};

use crate::client::limits::{ErrorResponse, Refusal};
use crate::client::listener::hint;
use crate::request::End;
use crate::request::Outcome::{
    self, ClientError, ProxyError, Rejected, ServerError, Timeout, UpstreamDied,
};

/// Why a request did not come to its end.
#[derive(Debug)]
pub enum Failure {
    /// The client asked for something that is refused, or reached a limit.
    Refused(Refusal),
    /// The client is gone.
    ClientGone,
    /// Writes to the client took too long in sum.
    ClientStalled,
    /// An upstream could not be connected to, the connection broke, its response is not valid, or it did nothing for too long.
    Upstream(Box<Error>),
    /// A fault was injected.
    Injected,
    /// No upstream is left, or the proxy itself failed, as without a socket or port.
    Internal(String),
}

impl Failure {
    /// Returns the failure to connect to `upstream` if it is this machine's (no socket, no port, no permission), and logs it. It says
    /// nothing about the upstream. Pingora calls some of them internal.
    pub fn of_shortage(error: &Error, upstream: &str) -> Option<Failure> {
        use ErrorType::{BindError, InternalError, SocketError};
        if !matches!(error.etype(), SocketError | BindError | InternalError) {
            return None;
        }
        let root: &(dyn Cause + 'static) = error.root_cause();
        let mut causes = successors(Some(root), |cause| (**cause).source());
        let system = causes.find_map(|cause| cause.downcast_ref::<io::Error>());
        let why = system.map_or("no socket".to_owned(), io::Error::to_string);
        let hint = system.map(hint).unwrap_or_default();
        log::warn!("cannot open a connection to {upstream}: {why}{hint}");
        Some(Failure::Internal(format!(
            "no connection can be opened: {why}"
        )))
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
                    Refusal::TooManyConnections | Refusal::QueuedTooLong => (Rejected, text),
                    _ => (ClientError, text),
                };
                (Some(response), failed)
            }
            Failure::ClientGone => return (None, End::ClientGone),
            Failure::ClientStalled => (None, client("held up the response for too long")),
            Failure::Upstream(error) => {
                let (status, outcome, what) = of_connection(error);
                let mut text = format!("{upstream}: {what}");
                // Of TLS, Pingora keeps only the text of the library's error.
                if let Some(context) = error.context.as_ref().filter(|_| what == NO_TLS) {
                    text += &format!(": {}", context.as_str());
                }
                let response = ErrorResponse::new(status, format!("upstream: {what}"));
                (Some(response), (outcome, text))
            }
            Failure::Injected => (None, (ProxyError, "an injected fault".to_owned())),
            Failure::Internal(reason) => {
                let text = format!("the proxy failed: {reason}");
                let response = ErrorResponse::new(500, "the proxy failed");
                (Some(response), (ProxyError, text))
            }
        };
        (response, End::Failed(outcome, reason))
    }
}

const NO_TLS: &str = "the TLS connection failed";

/// Returns status, outcome and text for an error of connecting or of a connection.
pub fn of_connection(error: &Error) -> (u16, Outcome, &'static str) {
    match error.etype() {
        ErrorType::ConnectTimedout => (504, Timeout, "connecting took too long"),
        ErrorType::ReadTimedout => (504, Timeout, "silent for too long"),
        ErrorType::WriteTimedout => (504, Timeout, "took no bytes for too long"),
        ErrorType::ConnectRefused => (502, ProxyError, "connection refused"),
        ErrorType::ConnectNoRoute => (502, ProxyError, "no route"),
        ErrorType::TLSHandshakeFailure
        | ErrorType::TLSHandshakeTimedout
        | ErrorType::InvalidCert => (502, ProxyError, NO_TLS),
        ErrorType::ConnectError | ErrorType::HandshakeError => {
            (502, ProxyError, "the connection failed")
        }
        ErrorType::ConnectionClosed => {
            let text = "connection closed before the end of the response";
            (502, UpstreamDied, text)
        }
        ErrorType::InvalidHTTPHeader
        | ErrorType::H1Error
        | ErrorType::Custom("InvalidChunk" | "InvalidTrailerEnd") => {
            (502, UpstreamDied, "not valid HTTP/1.1")
        }
        _ => (502, UpstreamDied, "connection broke"),
    }
}

/// Logs that a request failed, with its trace: at level info if a server or the proxy failed, else at debug.
pub fn log(path: &str, outcome: Outcome, error: &str, id: &str, trace: Option<&str>) {
    let level = match outcome {
        ServerError | UpstreamDied | Timeout | ProxyError => log::Level::Info,
        _ => log::Level::Debug,
    };
    log::log!(
        level,
        "{path:.200} failed: {}: {error}; request {id:?}; trace_id={}",
        outcome.name(),
        trace.unwrap_or("none"),
    );
}
