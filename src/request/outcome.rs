//! How a request ended, judged from its status, what its body said, and how its connections went.

use super::response::{Failure, Said};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Outcome {
    /// The response came whole.
    Ok,
    /// 4xx: the request was wrong.
    ClientError,
    /// 5xx, or an error event inside a 200.
    ServerError,
    /// 429, 503 or a full queue; 408 from a router's queue.
    Rejected,
    /// The client went away.
    ClientAbort,
    /// The stream ended without its end.
    UpstreamDied,
    /// A time limit of ours ran out.
    Timeout,
    /// The proxy could not do its part: no upstream took the request.
    ProxyError,
}

/// How the exchange ended, as its driver saw it. The body may know better: a stream that is cut though its
/// connection closed properly is `upstream_died` all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The response was read to the end of its framing.
    Complete,
    /// The client went away.
    ClientGone,
    /// The generator, which is the client, gave the request up because its run was stopped.
    GivenUp,
    /// The client sent what is no valid request.
    BadRequest(String),
    /// The upstream connection broke after the request was sent.
    UpstreamDied(String),
    /// No upstream took the request, or we failed ourselves.
    ProxyError(String),
    /// A time limit of ours ran out.
    Timeout(String),
    /// This process shut down before the end.
    Shutdown,
}

impl Outcome {
    /// Every outcome, in the order of reports.
    pub const ALL: [Outcome; 8] = [
        Outcome::Ok,
        Outcome::ClientError,
        Outcome::ServerError,
        Outcome::Rejected,
        Outcome::ClientAbort,
        Outcome::UpstreamDied,
        Outcome::Timeout,
        Outcome::ProxyError,
    ];

    /// The name in columns and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::ClientError => "client_error",
            Outcome::ServerError => "server_error",
            Outcome::Rejected => "rejected",
            Outcome::ClientAbort => "client_abort",
            Outcome::UpstreamDied => "upstream_died",
            Outcome::Timeout => "timeout",
            Outcome::ProxyError => "proxy_error",
        }
    }
}

/// Judges how a request ended: its outcome and, unless it went well, what happened in a few words.
/// `cut` says that the body promised an end and did not show it.
pub fn judge(end: End, status: Option<u16>, said: &Said, cut: bool) -> (Outcome, String) {
    // Whoever leaves after the last event leaves with the whole answer behind.
    let answered = said.ended && !matches!(end, End::ProxyError(_) | End::BadRequest(_));
    let end = if answered { End::Complete } else { end };
    match end {
        End::Complete => of_response(status, said, cut),
        End::ClientGone => (Outcome::ClientAbort, "the client went away".to_owned()),
        End::GivenUp => (
            Outcome::ClientAbort,
            "given up: the run was stopped".to_owned(),
        ),
        End::BadRequest(why) => (Outcome::ClientError, why),
        End::UpstreamDied(why) => (Outcome::UpstreamDied, why),
        End::ProxyError(why) => (Outcome::ProxyError, why),
        End::Timeout(why) => (Outcome::Timeout, why),
        End::Shutdown => (Outcome::ProxyError, "the process shut down".to_owned()),
    }
}

fn of_response(status: Option<u16>, said: &Said, cut: bool) -> (Outcome, String) {
    let Some(status) = status else {
        return (Outcome::UpstreamDied, "no response came".to_owned());
    };
    if let Some(outcome) = of_status(status) {
        let message = said.failure.as_ref().map_or("", |failure| &failure.message);
        return (outcome, few_words(&status.to_string(), message));
    }
    if let Some(failure) = &said.failure {
        return (of_failure(failure), failure.words());
    }
    if cut {
        return (
            Outcome::UpstreamDied,
            "the response ended without its end".to_owned(),
        );
    }
    (Outcome::Ok, String::new())
}

/// The outcome of a status that is an error.
fn of_status(status: u16) -> Option<Outcome> {
    match status {
        408 | 429 | 503 => Some(Outcome::Rejected),
        400..=499 => Some(Outcome::ClientError),
        500.. => Some(Outcome::ServerError),
        _ => None,
    }
}

/// The outcome of an error that stands inside a 200.
fn of_failure(failure: &Failure) -> Outcome {
    let full = failure
        .message
        .to_ascii_lowercase()
        .contains("queue is full");
    match failure.code {
        Some(429 | 503) => Outcome::Rejected,
        _ if full => Outcome::Rejected,
        // smg 1.13.0 tells so that the server broke off, and ends the stream in good order.
        None if failure.message.starts_with("Stream error:") => Outcome::UpstreamDied,
        // Somebody told the engine to drop it (`/abort_request`): nobody's fault on the server.
        None if failure.abort => Outcome::ClientAbort,
        Some(400..=499) if failure.abort => Outcome::ClientError,
        _ => Outcome::ServerError,
    }
}

impl Failure {
    fn words(&self) -> String {
        let code = self.code.map_or_else(String::new, |code| code.to_string());
        match (self.abort, self.message.is_empty()) {
            (true, true) => few_words(&code, "the engine aborted it"),
            _ => few_words(&code, &self.message),
        }
    }
}

/// A code and the first line of a message, of at most 200 characters.
fn few_words(code: &str, message: &str) -> String {
    let line = message.lines().next().unwrap_or("").trim();
    let words: String = line.chars().take(200).collect();
    match (code.is_empty(), words.is_empty()) {
        (true, true) => "an error without a message".to_owned(),
        (true, false) => words,
        (false, true) => code.to_owned(),
        (false, false) => format!("{code} {words}"),
    }
}
