//! Why a request failed: what its client is answered, and what its record says. One table.

use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType};

use crate::client::answer::{Answer, Refusal};
use crate::client::shortage;
use crate::request::observer::End;

use super::identity::REQUEST_ID;

/// Why a request did not come to its end.
#[derive(Debug)]
pub enum Failure {
    /// The client asked for what it does not get, or came to a limit.
    Refused(Refusal),
    /// The client is gone.
    ClientGone,
    /// The body is not what its framing says.
    BrokenBody(Box<Error>),
    /// The client sent nothing of its body for too long.
    ClientSilent,
    /// A single write to the client took too long.
    ClientTookNothing,
    /// Writes to the client took too long in sum.
    ClientStalled,
    /// No socket or port of our own is left.
    Shortage(Box<Error>),
    /// No connection to an upstream came about: nothing was sent.
    NoConnection(Box<Error>),
    /// The connection to the upstream broke, or what it sent cannot be read.
    Upstream(Box<Error>),
    /// The upstream said nothing for too long.
    UpstreamSilent,
    /// An injected fault.
    Injected,
    /// No upstream is left, or we failed ourselves.
    Internal(&'static str),
}

impl Failure {
    /// An error of reading a request's body.
    pub fn of_body(error: Box<Error>) -> Failure {
        match error.etype() {
            ErrorType::ReadError | ErrorType::ConnectionClosed | ErrorType::H2Error => {
                Failure::ClientGone
            }
            _ => Failure::BrokenBody(error),
        }
    }

    /// What the client is answered, where nothing has been yet; `None` when it is gone or is to see a broken connection.
    /// It names no hosts.
    pub fn answer(&self) -> Option<Answer> {
        self.told("").0
    }

    /// How the exchange with `upstream` ended.
    pub fn end(&self, upstream: &str) -> End {
        self.told(upstream).1
    }

    fn told(&self, upstream: &str) -> (Option<Answer>, End) {
        let client = |what: &str| End::Timeout(format!("the client: {what}"));
        match self {
            Failure::Refused(why) => {
                let answer = why.answer();
                let end = match why {
                    Refusal::BodyTooSlow => client("sent its body too slowly"),
                    _ => End::BadRequest(format!("{} {}", answer.status, refused(*why))),
                };
                (Some(answer), end)
            }
            Failure::ClientGone => (None, End::ClientGone),
            Failure::BrokenBody(error) => {
                let end = format!("400 the request: {}", words(error.etype()));
                (Some(Refusal::BrokenHead.answer()), End::BadRequest(end))
            }
            Failure::ClientSilent => {
                let message = "the request body did not come in time";
                let answer = answer(408, "request_timeout", message);
                (answer, client("silent for too long"))
            }
            Failure::ClientTookNothing => (None, client("took no bytes for too long")),
            Failure::ClientStalled => (None, client("held up the response for too long")),
            Failure::Shortage(error) => {
                let message = "the proxy could not open a connection to the upstream";
                let why = shortage::reason(error);
                let end = format!("the proxy could not open a connection: {why}");
                (answer(500, "proxy_error", message), End::ProxyError(end))
            }
            Failure::NoConnection(error) => unconnected(error, upstream),
            Failure::Upstream(error) => broken(error, upstream),
            Failure::UpstreamSilent => {
                let end = format!("{upstream}: silent for too long");
                (
                    timeout("the upstream did not answer in time"),
                    End::Timeout(end),
                )
            }
            Failure::Injected => {
                let end = End::ProxyError("an injected fault".into());
                (None, end)
            }
            Failure::Internal(what) => {
                let end = format!("the proxy failed: {what}");
                (
                    answer(500, "proxy_error", "the proxy failed"),
                    End::ProxyError(end),
                )
            }
        }
    }
}

fn answer(status: u16, kind: &'static str, message: &'static str) -> Option<Answer> {
    Some(Answer {
        status,
        kind,
        message,
    })
}

fn bad_gateway(message: &'static str) -> Option<Answer> {
    answer(502, "bad_gateway", message)
}

fn timeout(message: &'static str) -> Option<Answer> {
    answer(504, "gateway_timeout", message)
}

/// No connection came about.
fn unconnected(error: &Error, upstream: &str) -> (Option<Answer>, End) {
    let words = format!("{upstream}: {}", words(error.etype()));
    match error.etype() {
        ErrorType::ConnectTimedout => {
            let answer = timeout("the connection to the upstream timed out");
            (answer, End::Timeout(words))
        }
        ErrorType::ConnectRefused => {
            let answer = bad_gateway("the upstream refused the connection");
            (answer, End::ProxyError(words))
        }
        etype if is_tls(etype) => {
            let end = End::ProxyError(format!("{words}: {}", tls_reason(error)));
            (bad_gateway("no TLS connection to the upstream"), end)
        }
        _ => {
            let answer = bad_gateway("no connection to the upstream");
            (answer, End::ProxyError(words))
        }
    }
}

/// The connection broke.
fn broken(error: &Error, upstream: &str) -> (Option<Answer>, End) {
    let words = format!("{upstream}: {}", words(error.etype()));
    match error.etype() {
        ErrorType::WriteTimedout | ErrorType::ReadTimedout => {
            let answer = timeout("the upstream did not answer in time");
            (answer, End::Timeout(words))
        }
        _ => {
            let answer = bad_gateway("the upstream broke the connection before its answer");
            (answer, End::UpstreamDied(words))
        }
    }
}

/// The head of `answer`, for a body of `length` bytes.
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

/// Whether an error means that no connection came about, by the upstream's doing.
pub fn is_connect(etype: &ErrorType) -> bool {
    let others = matches!(
        etype,
        ErrorType::ConnectTimedout
            | ErrorType::ConnectRefused
            | ErrorType::ConnectNoRoute
            | ErrorType::ConnectError
    );
    others || is_tls(etype)
}

/// Whether an error means that TLS could not be agreed on, or the certificate was not taken.
fn is_tls(etype: &ErrorType) -> bool {
    matches!(
        etype,
        ErrorType::TLSHandshakeFailure | ErrorType::TLSHandshakeTimedout | ErrorType::InvalidCert
    )
}

/// What the TLS library says of it. Pingora has that only as a piece of its own text.
fn tls_reason(error: &Error) -> String {
    let text = error.to_string();
    let cause = text
        .split_once("cause: ")
        .map_or(&*text, |(_, cause)| cause);
    let cause = cause.split(", SNI: ").next().unwrap_or(cause);
    cause.trim().to_owned()
}

fn refused(why: Refusal) -> &'static str {
    match why {
        Refusal::BadTarget => "the request target holds a control byte",
        Refusal::UnknownCoding => "the request's Transfer-Encoding is not chunked",
        Refusal::BodyTooLarge => "the request body is too large",
        Refusal::HeadTooLarge => "the request head is too large",
        Refusal::Tunnel => "the request asks for a tunnel",
        _ => "the request: not valid HTTP/1.1",
    }
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
        etype if is_tls(etype) => "no TLS connection came about",
        ErrorType::InvalidHTTPHeader | ErrorType::H1Error => "not valid HTTP/1.1",
        other => other.as_str(),
    }
}
