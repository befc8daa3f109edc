//! How a request ended, judged by its status, its body, and its connections.

use std::borrow::Cow;

use nix::errno::Errno;

use crate::names::names;

names! {
    /// How a request ended. The default holds until the end is known: only the proxy has the request by then. The docs show the
    /// comment of each.
    #[derive(Default)]
    pub enum Outcome {
        /// The answer came whole: the message to the end of its framing, the generation to its last event; or the client left
        /// after the last event. A 2xx without a body is `ok` too (`generation_whole` is `False`), unless a stream was asked
        /// for.
        Ok = "ok",
        /// The request was wrong: 4xx, also as the code of an error event inside a 200; 3xx (it was sent to the wrong place:
        /// redirects are not followed); a request that is not valid HTTP, or over a size limit of the proxy.
        ClientError = "client_error",
        /// The server (or the router) failed: 5xx, a 1xx in place of an answer, a 2xx that is neither events nor JSON, such as an
        /// HTML page, or an error event inside a 200 (unless its code or type is that of another outcome).
        ServerError = "server_error",
        /// Overload: 429, 503, a full queue, or too long in a router queue (408, of our front 503).
        Rejected = "rejected",
        /// The client went away before the last event. In the generator's rows: it gave the request up because its run was
        /// stopped (`error`: `given up: the run was stopped`), which `summary.json` does not count as failed.
        ClientAbort = "client_abort",
        /// The engine was told to drop the request (`/abort_request`, or a deadline of its own); the client stayed.
        EngineAbort = "engine_abort",
        /// The server (or the router) ended its response early: before its head, within the message, or, where the message looks whole,
        /// within the generation or before a stream's first event. `message_whole` and `generation_whole` say what was cut.
        UpstreamDied = "upstream_died",
        /// A time limit of the proxy or the generator ran out; `error` says who was waited for.
        Timeout = "timeout",
        /// The proxy could not do its part: no upstream took the request (502), it shut down, or a fault was injected.
        ProxyError = "proxy_error" default,
        /// The generator got no connection to its target: refused, no route, or no answer in time.
        ConnectError = "connect_error",
    }
}

impl Outcome {
    /// Whether nothing failed: the request succeeded, or its client left.
    pub fn is_ok_or_client_abort(self) -> bool {
        matches!(self, Outcome::Ok | Outcome::ClientAbort)
    }
}

/// How the exchange ended, as its driver saw it. The body may know better: a stream that is cut is `upstream_died` even if its
/// connection closed properly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The response was read to the end of its framing.
    Complete,
    /// The client went away.
    ClientGone,
    /// The generator, which is the client, gave the request up because its run was stopped.
    GivenUp,
    /// It failed in a way that has this outcome, and this reason.
    Failed(Outcome, String),
}

/// The error of a request that the generator gave up because its run was stopped.
pub const GIVEN_UP: &str = "given up: the run was stopped";

/// What connecting fails with if the generator's machine lacks files (system, process) or local ports.
pub const OWN_SHORTAGES: [i32; 3] = [
    Errno::ENFILE as i32,
    Errno::EMFILE as i32,
    Errno::EADDRNOTAVAIL as i32,
];

/// What is known of a response: the message, and the generation that it carries.
#[derive(Clone, Debug, Default)]
pub struct ResponseFacts<'a> {
    /// Its status.
    pub status: Option<u16>,
    /// The outcome that a proxy of ours reported on a response that it gave itself.
    pub reported_outcome: Option<Outcome>,
    /// Whether the body showed the generation's end; `None` if it cannot be read.
    pub generation_whole: Option<bool>,
    /// An error in the body.
    pub failure: Option<&'a Failure>,
    /// What the body is, if it was read and is no generation: neither events nor JSON.
    pub misplaced: Option<&'static str>,
}

/// An error in a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// Its status code: an error's `code`, an abort's `status_code`.
    pub code: Option<u64>,
    /// Its message.
    pub message: String,
    /// It is an engine's abort of a sequence (`finish_reason.type` is `abort`), not an error event.
    pub is_abort: bool,
}

/// Judges how a request ended: returns its outcome and, unless it succeeded, a short error, and the message of the body that
/// belongs to it ([`error_text`]).
pub fn judge<'f>(end: End, facts: &ResponseFacts<'f>) -> (Outcome, String, &'f str) {
    let has_ended = facts.generation_whole == Some(true);
    let (outcome, error) = match end {
        End::Complete => return of_response(facts),
        // A client that leaves after the last event has the whole response.
        End::ClientGone | End::GivenUp if has_ended => return of_response(facts),
        End::ClientGone => (Outcome::ClientAbort, "the client went away".to_owned()),
        End::GivenUp => (Outcome::ClientAbort, GIVEN_UP.to_owned()),
        End::Failed(outcome, reason) if has_ended => {
            (outcome, format!("{reason}, after the generation's end"))
        }
        End::Failed(outcome, reason) => (outcome, reason),
    };
    (outcome, error, "")
}

fn of_response<'f>(facts: &ResponseFacts<'f>) -> (Outcome, String, &'f str) {
    let unquoted = |outcome, error: &str| (outcome, error.to_owned(), "");
    let Some(status) = facts.status else {
        return unquoted(Outcome::UpstreamDied, "no response came");
    };
    let quote = facts.failure.map_or("", |failure| &failure.message);
    if let Some(outcome) = of_status(status) {
        if let Some(outcome) = facts.reported_outcome {
            // The words are our own.
            return (outcome, error_text(&status.to_string(), quote), "");
        }
        return match status {
            ..200 => (outcome, format!("{status} is not a final response"), ""),
            300..=399 => (outcome, format!("{status} redirects are not followed"), ""),
            _ => (outcome, status.to_string(), quote),
        };
    }
    if let Some(failure) = facts.failure {
        let code = failure.code.map_or(String::new(), |code| code.to_string());
        return match failure.is_abort && quote.is_empty() {
            true => (
                of_failure(failure),
                error_text(&code, "the engine aborted it"),
                "",
            ),
            false => (of_failure(failure), code, quote),
        };
    }
    if let Some(what) = facts.misplaced {
        let error = format!("{what} in place of a generation");
        return (Outcome::ServerError, error, "");
    }
    match facts.generation_whole {
        Some(false) => unquoted(Outcome::UpstreamDied, "the response ended without its end"),
        Some(true) | None => unquoted(Outcome::Ok, ""),
    }
}

/// Returns the outcome of a status other than 2xx.
fn of_status(status: u16) -> Option<Outcome> {
    match status {
        408 | 429 | 503 => Some(Outcome::Rejected),
        300..=499 => Some(Outcome::ClientError),
        200..=299 => None,
        _ => Some(Outcome::ServerError),
    }
}

/// Returns the outcome of an error inside a 200.
fn of_failure(failure: &Failure) -> Outcome {
    let message = failure.message.to_ascii_lowercase();
    match failure.code {
        Some(408 | 429 | 503) => Outcome::Rejected,
        _ if message.contains("queue is full") => Outcome::Rejected,
        // smg 1.13.0 reports a broken server connection this way, and ends the stream properly.
        None if failure.message.starts_with("Stream error:") => Outcome::UpstreamDied,
        // The engine was ordered to drop it: neither the server nor the client failed.
        None if failure.is_abort => Outcome::EngineAbort,
        Some(400..=499) => Outcome::ClientError,
        _ => Outcome::ServerError,
    }
}

/// Shortens SGLang's message of a failed KV transfer to its reason, without the request's ids, which stand before that.
fn without_ids(line: &str) -> Cow<'_, str> {
    const FAILED: &str = "Decode transfer failed";
    let reason = line.strip_prefix(FAILED);
    let reason = reason.and_then(|rest| rest.split_once(" with exception "));
    let reason = reason.and_then(|(_, exception)| exception.split_once("): "));
    // The captured part of a message ends soon after that, within an address.
    let reason = reason.and_then(|(_, reason)| reason.split(" (").next());
    reason.map_or(Cow::Borrowed(line), |reason| {
        format!("{FAILED}: {reason}").into()
    })
}

/// Returns place and message of a `1 validation error:`, which the next line has before it quotes the request.
fn validation_detail(lines: &str) -> Option<&str> {
    let (_, detail) = lines.split_once("{'type': ")?;
    let detail = &detail[detail.find("'loc': ")?..];
    Some(&detail[..detail.find(", 'input': ")?])
}

/// Returns an error without the message of its body.
pub fn without_quote(error: &str) -> String {
    let hint = "the server's message is in the records file only, as it may quote the prompt";
    let text = format!("{error}; {hint}");
    text.trim_start_matches("; ").to_owned()
}

/// Joins an error and the first line of the body's message, of at most 200 characters.
pub fn error_text(code: &str, message: &str) -> String {
    let (line, rest) = message.split_once('\n').unwrap_or((message, ""));
    let line = line.trim();
    let line = match validation_detail(rest).filter(|_| line.ends_with("validation error:")) {
        Some(detail) => format!("{line} {detail}").into(),
        None => without_ids(line),
    };
    let text: String = line.chars().take(200).collect();
    match (code.is_empty(), text.is_empty()) {
        (true, true) => "an error without a message".to_owned(),
        (true, false) => text,
        (false, true) => code.to_owned(),
        (false, false) => format!("{code} {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server says may quote the prompt, what a hop says does not.
    #[test]
    fn the_words_of_our_own_proxies_are_no_quote() {
        let refused = Failure {
            message: "upstream: connection refused".into(),
            ..Failure::default()
        };
        for (by, error, quote) in [
            (None, "502", "upstream: connection refused"),
            (
                Some(Outcome::ProxyError),
                "502 upstream: connection refused",
                "",
            ),
        ] {
            let facts = ResponseFacts {
                status: Some(502),
                reported_outcome: by,
                failure: Some(&refused),
                ..ResponseFacts::default()
            };
            let outcome = by.unwrap_or(Outcome::ServerError);
            let judged = judge(End::Complete, &facts);
            assert_eq!(judged, (outcome, error.to_owned(), quote));
        }
    }
}
