//! Why a request failed: what its client is answered, and what its record says. One table.

use pingora::{Error, ErrorType};

use crate::client::answer::{Answer, Refusal};
use crate::request::observer::End;
use crate::telemetry::prometheus::Limit;

/// Why a request did not come to its end.
#[derive(Debug)]
pub enum Failure {
    /// The client asked for what it does not get, or came to a limit.
    Refused(Refusal),
    /// The client is gone.
    ClientGone,
    /// The body is not what its framing says.
    BrokenBody(Box<Error>),
    /// A single write to the client took too long.
    ClientTookNothing,
    /// Writes to the client took too long in sum.
    ClientStalled,
    /// No socket or port of our own is left.
    Shortage(String),
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

    /// The limit of ours that the client came to.
    pub fn limit(&self) -> Option<Limit> {
        match self {
            Failure::ClientStalled => Some(Limit::Stall),
            Failure::Refused(why) => limit(*why),
            _ => None,
        }
    }

    /// What the client is answered, where nothing has been yet, and how the exchange with `upstream` ended. No answer: the
    /// client is gone or is to see a broken connection. It names no hosts.
    pub fn told(&self, upstream: &str) -> (Option<Answer>, End) {
        let of_client = |what: &str| End::Timeout(format!("the client: {what}"));
        let ours = |why: &dyn std::fmt::Display| End::ProxyError(format!("the proxy {why}"));
        match self {
            Failure::Refused(why) => {
                let answer = why.answer();
                let words = format!("{} {}", answer.status, answer.message);
                let end = match why {
                    Refusal::BodyTooSlow => of_client("sent its body too slowly"),
                    Refusal::BodySilent => of_client("silent for too long"),
                    Refusal::TooManyConnections | Refusal::QueuedTooLong => End::Rejected(words),
                    _ => End::BadRequest(words),
                };
                (Some(answer), end)
            }
            Failure::ClientGone => (None, End::ClientGone),
            Failure::BrokenBody(error) => {
                let words = format!("400 the request: {}", words(error));
                (Some(Refusal::BrokenHead.answer()), End::BadRequest(words))
            }
            Failure::ClientTookNothing => (None, of_client("took no bytes for too long")),
            Failure::ClientStalled => (None, of_client("held up the response for too long")),
            Failure::Shortage(why) => {
                let message = "the proxy could not open a connection to the upstream";
                let why = format!("could not open a connection: {why}");
                (answer(500, message), ours(&why))
            }
            Failure::NoConnection(error) | Failure::Upstream(error) => {
                let is_connected = matches!(self, Failure::Upstream(_));
                let (status, message, end) = of_upstream(error.etype(), is_connected);
                let words = format!("{upstream}: {}", words(error));
                (answer(status, message), end(words))
            }
            Failure::UpstreamSilent => {
                let end = End::Timeout(format!("{upstream}: silent for too long"));
                (answer(504, NO_ANSWER), end)
            }
            Failure::Injected => (None, End::ProxyError("an injected fault".into())),
            Failure::Internal(what) => {
                let why = format!("failed: {what}");
                (answer(500, "the proxy failed"), ours(&why))
            }
        }
    }
}

/// The limit for which a client is refused.
pub fn limit(why: Refusal) -> Option<Limit> {
    match why {
        Refusal::HeadTooLarge => Some(Limit::HeadBytes),
        Refusal::HeadTooSlow => Some(Limit::HeadTime),
        Refusal::BodyTooLarge => Some(Limit::BodyBytes),
        Refusal::BodyTooSlow => Some(Limit::BodyTime),
        Refusal::TooManyConnections => Some(Limit::Connections),
        _ => None,
    }
}

const NO_ANSWER: &str = "the upstream did not answer in time";

fn answer(status: u16, message: &'static str) -> Option<Answer> {
    Some(Answer { status, message })
}

/// What an error of an upstream that was, or was not, connected to means.
fn of_upstream(etype: &ErrorType, is_connected: bool) -> (u16, &'static str, fn(String) -> End) {
    use ErrorType::{ConnectRefused, ConnectTimedout, WriteTimedout};
    let broke = "the upstream broke the connection before its answer";
    match etype {
        WriteTimedout if is_connected => (504, NO_ANSWER, End::Timeout),
        _ if is_connected => (502, broke, End::UpstreamDied),
        ConnectTimedout => {
            let message = "the connection to the upstream timed out";
            (504, message, End::Timeout)
        }
        ConnectRefused => {
            let message = "the upstream refused the connection";
            (502, message, End::ProxyError)
        }
        etype if is_tls(etype) => (502, "no TLS connection to the upstream", End::ProxyError),
        _ => (502, "no connection to the upstream", End::ProxyError),
    }
}

/// Whether an error means that TLS could not be agreed on, or the certificate was not taken.
fn is_tls(etype: &ErrorType) -> bool {
    use ErrorType::{InvalidCert, TLSHandshakeFailure, TLSHandshakeTimedout};
    [TLSHandshakeFailure, TLSHandshakeTimedout, InvalidCert].contains(etype)
}

/// What helps where the server shows a certificate that may sign others, as `openssl req -x509` makes them.
const CA_ITSELF: &str = "; its certificate is a CA's own: give the server one that the CA of upstream_ca has signed, or one without \
                         CA:TRUE, for upstream_ca too";

fn words(error: &Error) -> String {
    let words = match error.etype() {
        ErrorType::ConnectTimedout => "connecting took too long",
        ErrorType::WriteTimedout => "took no bytes for too long",
        ErrorType::ConnectRefused => "connection refused",
        ErrorType::ConnectNoRoute => "no route",
        ErrorType::ConnectError => "no connection came about",
        ErrorType::ConnectionClosed => "connection closed before the end of the response",
        ErrorType::ReadError | ErrorType::WriteError => "connection broke",
        ErrorType::InvalidHTTPHeader | ErrorType::H1Error => "not valid HTTP/1.1",
        etype if is_tls(etype) => {
            // What the TLS library said: Pingora keeps no source of it, only these words, whole as they are.
            let said = error.context.as_ref().map_or("", |said| said.as_str());
            let help = match said.contains("CaUsedAsEndEntity") {
                true => CA_ITSELF,
                false => "",
            };
            return format!("no TLS connection came about: {said}{help}");
        }
        other => other.as_str(),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tls_failed_by_is_told_in_whatever_words_it_comes() {
        let said = "certificate expired, SNI: h cause: as of another version";
        let error = Error::explain(ErrorType::TLSHandshakeFailure, said);
        let (answer, end) = Failure::NoConnection(error).told("h:1");
        let words = format!("h:1: no TLS connection came about: {said}");
        assert_eq!((answer.unwrap().status, end), (502, End::ProxyError(words)));
    }
}
