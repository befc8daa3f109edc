//! How a request ended, judged from its status, what its body said, and how its connections went.

use std::borrow::Cow;

use nix::errno::Errno;

use super::names::names;

names! {
    /// How a request ended. What stands above each is told to users too.
    pub enum Outcome {
        /// The answer came whole: the message to the end of its framing, the generation to its last event; or the client left
        /// after the last event. A 2xx without a body is `ok` too (`generation_whole` is `False`), unless a stream was asked
        /// for.
        Ok = "ok",
        /// The request was wrong: 4xx, also as the code of an error event inside a 200; 3xx (it was sent to the wrong place:
        /// redirects are not followed); a request that is not valid HTTP, or over a size limit of the proxy.
        ClientError = "client_error",
        /// The server (or the router) failed: 5xx, a 1xx in place of an answer, or an error event inside a 200 (one whose code
        /// is another outcome's is that).
        ServerError = "server_error",
        /// Too much to do: 429, 503, a full queue, or too long in a router queue (408, of our front 503).
        Rejected = "rejected",
        /// The client went away before the last event. In the generator's rows: it gave the request up because its run was
        /// stopped (`error`: `given up: the run was stopped`), which `summary.json` does not count as failed.
        ClientAbort = "client_abort",
        /// The engine was told to drop the request (`/abort_request`, or a deadline of its own); the client stayed.
        EngineAbort = "engine_abort",
        /// The server (or the router) broke off: before its answer, within the message, or, where the message looks whole,
        /// within the generation or before a stream's first event. `message_whole` and `generation_whole` say what was cut.
        UpstreamDied = "upstream_died",
        /// A time limit of the proxy or the generator ran out; `error` says who was waited for.
        Timeout = "timeout",
        /// The proxy could not do its part: no upstream took the request (502), it shut down, or a fault was injected.
        ProxyError = "proxy_error",
        /// The generator got no connection to its target: refused, no route, or no answer in time.
        ConnectError = "connect_error",
    }
}

impl Outcome {
    /// Whether nothing failed: it went well, or its client left.
    pub fn is_left(self) -> bool {
        matches!(self, Outcome::Ok | Outcome::ClientAbort)
    }
}

/// Until its end is known nobody but the proxy has it.
impl Default for Outcome {
    fn default() -> Outcome {
        Outcome::ProxyError
    }
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
    /// A proxy of ours had too much to do.
    Rejected(String),
    /// The upstream connection broke after the request was sent.
    UpstreamDied(String),
    /// No upstream took the request, or we failed ourselves.
    ProxyError(String),
    /// The generator got no connection.
    NoConnection(String),
    /// A time limit of ours ran out.
    Timeout(String),
    /// This process shut down before the end.
    Shutdown,
}

/// What is said of a request that the generator gave up because its run was stopped.
pub const GIVEN_UP: &str = "given up: the run was stopped";

/// What connecting fails with for want of the generator's own: files (of the system, of the process), local ports.
pub const OWN_WANTS: [i32; 3] = [
    Errno::ENFILE as i32,
    Errno::EMFILE as i32,
    Errno::EADDRNOTAVAIL as i32,
];

/// What is judged of a response: the message, and the generation that it carries.
#[derive(Clone, Debug, Default)]
pub struct Seen<'a> {
    /// Its status.
    pub status: Option<u16>,
    /// A proxy of ours answered itself, and said how it judged.
    pub told: Option<Outcome>,
    /// The message was read to the end of its framing.
    pub is_whole: bool,
    /// What the body showed of the generation's end.
    pub generation: Generation,
    /// An error in the body.
    pub failure: Option<&'a Failure>,
}

/// What a body showed of the generation's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generation {
    /// Nothing that can be read.
    #[default]
    Unknown,
    /// There was no body.
    Absent,
    /// A stream in which not one event came.
    Empty,
    /// It began, and its end is missing.
    Cut,
    /// Its end.
    Whole,
}

/// An error that a body reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// A status code that it names: an error's `code`, an abort's `status_code`.
    pub code: Option<u64>,
    /// Its message.
    pub message: String,
    /// It is an engine's abort of a sequence (`finish_reason.type` is `abort`), not an error event.
    pub abort: bool,
}

impl Seen<'_> {
    /// Whether `words`, as [`judge`] gave them, are the body's own.
    pub fn quoted_in(&self, words: &str) -> bool {
        let message = self.failure.map_or("", |failure| &failure.message);
        !message.is_empty() && words.ends_with(&few_words("", message))
    }

    /// The code that stands before the body's words: as [`of_response`] judges.
    pub fn code(&self) -> Option<u64> {
        let status = self.status.filter(|status| of_status(*status).is_some());
        let named = || self.failure?.code;
        status.map(u64::from).or_else(named)
    }
}

/// Judges how a request ended: its outcome and, unless it went well, what happened in a few words.
pub fn judge(end: End, seen: &Seen<'_>) -> (Outcome, String) {
    let has_ended = seen.generation == Generation::Whole;
    let cut = |why: String| match has_ended {
        true => format!("{why}, after the generation's end"),
        false => why,
    };
    match end {
        End::Complete => of_response(seen),
        // Whoever leaves after the last event leaves with the whole answer behind.
        End::ClientGone | End::GivenUp if has_ended => of_response(seen),
        End::UpstreamDied(_) | End::Timeout(_) | End::Shutdown if has_ended && seen.is_whole => {
            of_response(seen)
        }
        End::ClientGone => (Outcome::ClientAbort, "the client went away".to_owned()),
        End::GivenUp => (Outcome::ClientAbort, GIVEN_UP.to_owned()),
        End::BadRequest(why) => (Outcome::ClientError, why),
        End::Rejected(why) => (Outcome::Rejected, why),
        End::UpstreamDied(why) => (Outcome::UpstreamDied, cut(why)),
        End::ProxyError(why) => (Outcome::ProxyError, why),
        End::NoConnection(why) => (Outcome::ConnectError, why),
        End::Timeout(why) => (Outcome::Timeout, cut(why)),
        End::Shutdown => (Outcome::ProxyError, cut("the process shut down".to_owned())),
    }
}

fn of_response(seen: &Seen<'_>) -> (Outcome, String) {
    let Some(status) = seen.status else {
        return (Outcome::UpstreamDied, "no response came".to_owned());
    };
    if let Some(outcome) = of_status(status) {
        let message = seen.failure.map_or("", |failure| &failure.message);
        let message = match status {
            ..200 => "is no answer to a request",
            300..=399 => "the answer is elsewhere: redirects are not followed",
            _ => message,
        };
        let words = few_words(&status.to_string(), message);
        return (seen.told.unwrap_or(outcome), words);
    }
    if let Some(failure) = seen.failure {
        return (of_failure(failure), failure.words());
    }
    let died = |why: &str| (Outcome::UpstreamDied, why.to_owned());
    match seen.generation {
        Generation::Cut => died("the response ended without its end"),
        Generation::Empty => died("the stream ended without a single event"),
        Generation::Unknown | Generation::Absent | Generation::Whole => {
            (Outcome::Ok, String::new())
        }
    }
}

/// The outcome of a status that is no success.
fn of_status(status: u16) -> Option<Outcome> {
    match status {
        408 | 429 | 503 => Some(Outcome::Rejected),
        300..=499 => Some(Outcome::ClientError),
        200..=299 => None,
        _ => Some(Outcome::ServerError),
    }
}

/// The outcome of an error that stands inside a 200.
fn of_failure(failure: &Failure) -> Outcome {
    let full = failure
        .message
        .to_ascii_lowercase()
        .contains("queue is full");
    match failure.code {
        Some(408 | 429 | 503) => Outcome::Rejected,
        _ if full => Outcome::Rejected,
        // smg 1.13.0 tells so that the server broke off, and ends the stream in good order.
        None if failure.message.starts_with("Stream error:") => Outcome::UpstreamDied,
        // Somebody told the engine to drop it: nobody's fault on the server, nor has the client left.
        None if failure.abort => Outcome::EngineAbort,
        Some(400..=499) => Outcome::ClientError,
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

/// What SGLang says of a KV transfer that failed, without the request's ids, which stand before why it did.
fn without_ids(line: &str) -> Cow<'_, str> {
    const FAILED: &str = "Decode transfer failed";
    let why = line.strip_prefix(FAILED);
    let why = why.and_then(|rest| rest.split_once(" with exception "));
    let why = why.and_then(|(_, exception)| exception.split_once("): "));
    // What is captured of a message ends soon after that, within an address.
    let why = why.and_then(|(_, why)| why.split(" (").next());
    why.map_or(Cow::Borrowed(line), |why| format!("{FAILED}: {why}").into())
}

/// Where and what of a `1 validation error:`, which the next line tells, before the request's own text.
fn invalid(lines: &str) -> Option<&str> {
    let (_, told) = lines.split_once("{'type': ")?;
    let told = &told[told.find("'loc': ")?..];
    Some(&told[..told.find(", 'input': ")?])
}

/// A code and the first line of a message, of at most 200 characters.
fn few_words(code: &str, message: &str) -> String {
    let (line, rest) = message.split_once('\n').unwrap_or((message, ""));
    let line = line.trim();
    let line = match invalid(rest).filter(|_| line.ends_with("validation error:")) {
        Some(what) => format!("{line} {what}").into(),
        None => without_ids(line),
    };
    let words: String = line.chars().take(200).collect();
    match (code.is_empty(), words.is_empty()) {
        (true, true) => "an error without a message".to_owned(),
        (true, false) => words,
        (false, true) => code.to_owned(),
        (false, false) => format!("{code} {words}"),
    }
}
