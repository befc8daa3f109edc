//! One attempt: a request's way through one worker hop. A router that retries makes several attempts for one request; one of them
//! answers, the others are listed as failed. With it, when the body of its response passed, and what servers of pairs have told of their
//! roles.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::clock::{NANOS, Stamp};

use super::cell::{Value, cells, nanos};
use super::outcome::Outcome;
use super::timeline::PrefillTimes;
use crate::names::names;

names! {
    /// The role of a server of a prefill/decode pair, by SGLang's `--disaggregation-mode`.
    #[serde(rename_all = "lowercase")]
    pub enum ServerRole {
        /// It prefills.
        Prefill = "prefill",
        /// It decodes, and answers.
        Decode = "decode",
    }
}

/// What requests are sent to: what is at the base URL or, if that is a proxy of ours, what is behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamKind {
    /// A router, or something unknown: who served a request, and when the router sent it on, stays
    /// unknown unless a proxy says so.
    #[default]
    Router,
    /// The server itself: the last send before it counts as the router's, and without a proxy the base
    /// URL names the host.
    Server,
}

/// A span id of W3C Trace Context: 16 lower-case hex digits, not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub struct SpanId(NonZeroU64);

/// A number as `DIGITS` lower-case hex digits. Every request formats three of them; `format!` takes ten times as long.
#[derive(Clone, Copy, Debug)]
pub struct Hex<const DIGITS: usize>([u8; DIGITS]);

/// The span that the sender of a request named as the parent (`traceparent`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentSpan {
    /// Its trace.
    pub trace: u128,
    /// The span.
    pub span: SpanId,
}

/// What a worker hop saw of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The hop's own span, sent to the server as the parent.
    pub span: SpanId,
    /// The hop's name.
    pub worker: String,
    /// The server behind it, `host:port`.
    pub host: String,
    /// The span that the request arrived with.
    pub parent: Option<ParentSpan>,
    /// The hop read the head that the router sent.
    pub arrival: Stamp,
    /// The hop sent the head to the server.
    pub forwarded: Option<Stamp>,
    /// Status of the server's response, or of one that the hop gave itself.
    pub status: Option<u16>,
    /// When the body of its response passed the hop.
    pub body_timing: BodyTiming,
    /// When the hop was done with the attempt.
    pub ended: Option<Stamp>,
    /// How it ended; `None` while it goes on.
    pub outcome: Option<Outcome>,
    /// `bootstrap_room` of its body: a router sends a request with the same room to both servers of a pair.
    pub room: Option<u64>,
    /// The server's role, if known.
    pub role: Option<ServerRole>,
    /// Times that a prefill server's response reported, by sequence.
    pub prefill: Vec<PrefillTimes>,
    /// It belongs to a request of a front of its hop's process, which has it in its row.
    pub is_joined: bool,
}

/// When the body of a response passed one observer: first byte, last byte and longest gap, as far as it has arrived. Front and hop
/// see the same body byte by byte, as a router passes bytes on unchanged: the same first byte, the same last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyTiming {
    /// Its first bytes; of a stream, those of the first event.
    pub first: Option<Stamp>,
    /// Its last bytes so far.
    pub last: Option<Stamp>,
    /// The longest time between two pieces, less the time in which writes were held up; nanoseconds.
    pub longest_gap_nanos: Option<i64>,
    stall_nanos: i64,
}

/// A failed attempt, as rows and headers list it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct FailedAttempt {
    /// The server, `host:port`; the hop's name if the attempt was never sent on.
    pub host: String,
    /// How it ended; `None` if it was still open when the list was made.
    pub outcome: Option<Outcome>,
    /// Status of its response.
    pub status: Option<u16>,
    /// How long it took, nanoseconds.
    pub nanos: Option<i64>,
}

/// The role of each worker's server, if prefill and decode are servers of their own, as far as they have reported it.
#[derive(Debug, Default)]
pub struct Roles {
    /// By worker; `None` for a server that does all of a request.
    by_worker: BTreeMap<String, Option<ServerRole>>,
    /// Attempts at servers of unknown role, newest first: the parent of the server's spans, and the worker.
    pending: VecDeque<(u64, String)>,
}

/// The number of failed attempts that a row or header lists; `attempts` counts all of them.
pub const MAX_FAILED: usize = 8;
/// The maximum number of attempts at servers of unknown role that are remembered.
const MAX_PENDING: usize = 1024;
/// Stands in a decode server's error when its prefill server is gone.
const PREFILL_LOST: &str = "prefill instance";

impl SpanId {
    /// Makes an id from a number; `None` for 0, which W3C forbids.
    pub fn new(number: u64) -> Option<SpanId> {
        NonZeroU64::new(number).map(SpanId)
    }

    /// Makes a new id.
    pub fn random() -> SpanId {
        SpanId(rand::random())
    }

    /// Returns the number.
    pub const fn number(self) -> u64 {
        self.0.get()
    }

    /// Parses 16 lower-case hex digits.
    pub fn parse(text: &str) -> Option<SpanId> {
        Hex::<16>::parse(text).and_then(|number| SpanId::new(number as u64))
    }

    /// Formats the id as 16 lower-case hex digits.
    pub fn hex(self) -> Hex<16> {
        Hex::of(self.number().into())
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.hex().text())
    }
}

impl<const DIGITS: usize> Hex<DIGITS> {
    /// Formats a number that has at most `DIGITS` digits.
    pub fn of(mut number: u128) -> Hex<DIGITS> {
        let mut digits = [0; DIGITS];
        for digit in digits.iter_mut().rev() {
            *digit = b"0123456789abcdef"[number as usize & 15];
            number >>= 4;
        }
        Hex(digits)
    }

    /// Returns the digits.
    pub fn text(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Parses exactly `DIGITS` lower-case hex digits.
    pub fn parse(text: &str) -> Option<u128> {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_number = text.len() == DIGITS && text.bytes().all(is_digit);
        u128::from_str_radix(text, 16).ok().filter(|_| is_number)
    }
}

impl Attempt {
    /// Makes an attempt whose request head has just been read.
    pub fn new(span: SpanId, worker: String, host: String, arrival: Stamp) -> Attempt {
        Attempt {
            span,
            worker,
            host,
            parent: None,
            arrival,
            forwarded: None,
            status: None,
            body_timing: BodyTiming::default(),
            ended: None,
            outcome: None,
            room: None,
            role: None,
            prefill: Vec::new(),
            is_joined: false,
        }
    }

    /// Whether the two attempts are the legs of one sending to a prefill and a decode server: by their rooms, or, if neither body
    /// named one, by their roles.
    pub fn is_other_leg_of(&self, other: &Attempt) -> bool {
        let is_same_sending = match (self.room, other.room) {
            (None, None) => self.role.is_some() && other.role.is_some() && self.role != other.role,
            (own, others) => own == others,
        };
        is_same_sending && self.span != other.span
    }

    /// Whether its response is one that a router passes on as the answer.
    pub fn has_answered(&self) -> bool {
        self.status.is_some_and(|status| status < 400)
    }

    /// Whether it failed for another reason than the router closing the connection.
    pub fn has_failed(&self) -> bool {
        self.outcome
            .is_some_and(|outcome| !outcome.is_ok_or_client_abort())
    }

    /// Whether it is the prefill leg of a pair: another server decodes.
    pub fn is_prefill_leg(&self) -> bool {
        self.room.is_some() && !self.may_answer()
    }

    /// Whether its response may be the client's: not if the server only prefills.
    pub fn may_answer(&self) -> bool {
        self.role != Some(ServerRole::Prefill)
    }

    /// The attempt as a failed one.
    pub fn failed(&self) -> FailedAttempt {
        let is_sent = !self.host.is_empty();
        FailedAttempt {
            host: if is_sent { &self.host } else { &self.worker }.clone(),
            outcome: self.outcome,
            status: self.status,
            nanos: self.ended.map(|ended| ended.nanos_since(self.arrival)),
        }
    }
}

impl BodyTiming {
    /// Records that bytes passed at `at`, when writes had been held up for `stall_nanos` in all. Returns whether they were the
    /// first.
    pub fn piece(&mut self, at: Stamp, stall_nanos: i64) -> bool {
        let stalled = stall_nanos.saturating_sub(self.stall_nanos);
        self.stall_nanos = stall_nanos;
        if let Some(last) = self.last.replace(at) {
            let gap = at.nanos_since(last).saturating_sub(stalled).max(0);
            self.longest_gap_nanos = self.longest_gap_nanos.max(Some(gap));
        }
        let is_first = self.first.is_none();
        self.first.get_or_insert(at);
        is_first
    }

    /// Returns what is known before the body's end: only its first bytes are final.
    pub fn so_far(&self) -> BodyTiming {
        BodyTiming {
            first: self.first,
            ..BodyTiming::default()
        }
    }
}

/// Adds to a request's error which server of its pair was lost, if `outcome` or the error says that this one was.
pub fn append_lost_server(
    error: &mut String,
    role: ServerRole,
    host: &str,
    outcome: Option<Outcome>,
) {
    let is_named = role == ServerRole::Prefill && error.contains(PREFILL_LOST);
    let died = outcome.filter(|of| matches!(of, Outcome::UpstreamDied | Outcome::ProxyError));
    if (is_named || died.is_some()) && !error.is_empty() && !host.is_empty() {
        let how = died.map_or_else(String::new, |died| format!(": {}", died.name()));
        error.push_str(&format!(" ({} server {host}{how})", role.name()));
    }
}

/// Groups attempts by the router's sendings: the two legs of one are together. A group has at most two, since a router may send
/// again under the same room.
pub fn sendings<T>(
    attempts: impl IntoIterator<Item = T>,
    is_other_leg: impl Fn(&T, &T) -> bool,
) -> Vec<Vec<T>> {
    let mut all: Vec<Vec<T>> = Vec::new();
    for attempt in attempts {
        let takes_leg =
            |legs: &&mut Vec<T>| matches!(&legs[..], [leg] if is_other_leg(leg, &attempt));
        match all.iter_mut().find(takes_leg) {
            Some(legs) => legs.push(attempt),
            None => all.push(vec![attempt]),
        }
    }
    all
}

/// The text in the column `failed_attempts`, where attempts are joined by `; `, and for people: `127.0.0.1:30000 server_error 503 after 0.0012 s`.
impl fmt::Display for FailedAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = self.outcome.map_or("open", Outcome::name);
        write!(f, "{} {outcome}", self.host)?;
        if let Some(status) = self.status {
            write!(f, " {status}")?;
        }
        if let Some(nanos) = self.nanos {
            write!(f, " after {:.6} s", nanos as f64 / NANOS as f64)?;
        }
        Ok(())
    }
}

cells! {
    SpanId: Value::Text(text) => SpanId::parse(&text), |id| Value::Text(id.hex().text().to_owned().into());
    Vec<FailedAttempt>: Value::Text(text) => Some(parse_failed(&text).collect()), |failed| match &failed[..] {
        [] => Value::Empty,
        failed => Value::Text(Vec::from_iter(failed.iter().map(ToString::to_string)).join("; ").into()),
    };
}

/// Parses the column `failed_attempts`; a part that does not parse is left out.
pub fn parse_failed(text: &str) -> impl Iterator<Item = FailedAttempt> {
    text.split("; ").filter_map(|part| {
        let (attempt, took) = part.split_once(" after ").unwrap_or((part, ""));
        let mut words = attempt.split_whitespace();
        let took = took.strip_suffix(" s");
        Some(FailedAttempt {
            host: words.next()?.to_owned(),
            outcome: words.next().and_then(Outcome::named),
            status: words.next().and_then(|status| status.parse().ok()),
            nanos: took.and_then(|took| nanos(took.as_bytes())),
        })
    })
}

impl Roles {
    /// Returns the role of a worker's server, if known.
    pub fn of(&self, worker: &str) -> Option<Option<ServerRole>> {
        self.by_worker.get(worker).copied()
    }

    /// Sets the role that a worker's server reported.
    pub fn learn(&mut self, worker: &str, role: Option<ServerRole>) {
        self.by_worker.insert(worker.to_owned(), role);
    }

    /// Forgets the role of a worker that has another server now.
    pub fn forget(&mut self, worker: &str) {
        self.by_worker.remove(worker);
        self.pending.retain(|(_, of)| of != worker);
    }

    /// Takes an attempt at a worker: if its role is unknown, it is looked for in the server's spans, which will have `span` as
    /// their parent.
    pub fn expect_role(&mut self, span: SpanId, worker: &str) {
        if !self.by_worker.contains_key(worker) {
            self.pending.push_front((span.number(), worker.to_owned()));
            self.pending.truncate(MAX_PENDING);
        }
    }

    /// Takes the role that the root of a server's spans names; `span` is the root's parent.
    pub fn resolve_role(&mut self, span: u64, role: ServerRole) {
        let index = self.pending.iter().position(|(of, _)| *of == span);
        if let Some((_, worker)) = index.and_then(|index| self.pending.remove(index)) {
            self.by_worker.entry(worker).or_insert(Some(role));
        }
    }
}

#[cfg(test)]
mod tests;
