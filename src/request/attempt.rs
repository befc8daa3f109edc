//! A request's way through one worker hop. A router that retries makes several of them for one request; one
//! answers, the others are told beside it.

use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::clock::{NANOS, Stamp};

use super::cell::{Value, cells, nanos};
use super::names::names;
use super::outcome::Outcome;
use super::passage::Passage;
use super::timeline::PrefillTimes;

names! {
    /// What a server of a pair does, by SGLang's `--disaggregation-mode`.
    #[serde(rename_all = "lowercase")]
    pub enum ServerRole {
        /// It prefills.
        Prefill = "prefill",
        /// It decodes, and answers.
        Decode = "decode",
    }
}

/// What requests are sent to: at a base URL, or behind a proxy of ours where one stands there.
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

/// A number in so many lower-case hex digits. Formatting it as text takes ten times as long, which each request would do thrice.
#[derive(Clone, Copy, Debug)]
pub struct Hex<const DIGITS: usize>([u8; DIGITS]);

/// The span that a request came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CameWith {
    /// Its trace.
    pub trace: u128,
    /// The span.
    pub span: SpanId,
}

/// What a worker hop saw of one sending of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The hop's own span, which the server was told as its parent.
    pub span: SpanId,
    /// The hop's name.
    pub worker: String,
    /// The server behind it, `host:port`.
    pub host: String,
    /// The span that it came with.
    pub came_with: Option<CameWith>,
    /// The hop read the head that the router sent.
    pub arrival: Stamp,
    /// The hop sent the head to the server.
    pub forwarded: Option<Stamp>,
    /// Status of the server's response, or of the hop's own answer.
    pub status: Option<u16>,
    /// When the body of its response passed the hop.
    pub passage: Passage,
    /// When the hop was done with it.
    pub ended: Option<Stamp>,
    /// How it ended; `None` while it goes on.
    pub outcome: Option<Outcome>,
    /// The room that its body names: the router sends it to two servers, to both with the same.
    pub room: Option<u64>,
    /// What the server does, where that is known.
    pub role: Option<ServerRole>,
    /// What a prefill server's reply told, by sequence.
    pub prefill: Vec<PrefillTimes>,
    /// After it had come as nobody's, a request of the front took it.
    pub is_joined: bool,
}

/// An attempt that did not answer the request, as rows and headers tell it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Failed {
    /// The server, `host:port`; of one that was never sent on, the hop's name.
    pub host: String,
    /// How it ended; `None` when it was still open at the last look.
    pub outcome: Option<Outcome>,
    /// Status of its response.
    pub status: Option<u16>,
    /// How long the hop had it, nanoseconds.
    pub nanos: Option<i64>,
}

/// How many failed attempts a row and a header name; the number in `attempts` is whole.
pub const MAX_FAILED: usize = 8;
/// Nobody has an attempt for as long as a year: such a number was never measured.
const LONGEST: i64 = 366 * 86_400 * NANOS;

impl SpanId {
    /// From a number; `None` for 0, which W3C forbids.
    pub fn new(number: u64) -> Option<SpanId> {
        NonZeroU64::new(number).map(SpanId)
    }

    /// The number.
    pub const fn number(self) -> u64 {
        self.0.get()
    }

    /// From 16 lower-case hex digits.
    pub fn parse(text: &str) -> Option<SpanId> {
        Hex::<16>::parse(text).and_then(|number| SpanId::new(number as u64))
    }

    /// As 16 lower-case hex digits.
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
    /// Of a number that has no more.
    pub fn of(mut number: u128) -> Hex<DIGITS> {
        let mut digits = [0; DIGITS];
        for digit in digits.iter_mut().rev() {
            *digit = b"0123456789abcdef"[number as usize & 15];
            number >>= 4;
        }
        Hex(digits)
    }

    /// The digits.
    pub fn text(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The number of so many digits.
    pub fn parse(text: &str) -> Option<u128> {
        let number = text.bytes().try_fold(0, |number, byte| {
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                _ => return None,
            };
            Some(number << 4 | u128::from(digit))
        });
        number.filter(|_| text.len() == DIGITS)
    }
}

impl Attempt {
    /// An attempt whose head has just been read.
    pub fn new(span: SpanId, worker: String, host: String, arrival: Stamp) -> Attempt {
        Attempt {
            span,
            worker,
            host,
            came_with: None,
            arrival,
            forwarded: None,
            status: None,
            passage: Passage::default(),
            ended: None,
            outcome: None,
            room: None,
            role: None,
            prefill: Vec::new(),
            is_joined: false,
        }
    }

    /// Whether both attempts at a request are of one sending, to two servers: by the room; where no body told one, by what they do.
    pub fn is_other_leg_of(&self, other: &Attempt) -> bool {
        let is_one = match (self.room, other.room) {
            (None, None) => self.role.is_some() && other.role.is_some() && self.role != other.role,
            (own, others) => own == others,
        };
        is_one && self.span != other.span
    }

    /// Whether it brought what a router passes on as the answer.
    pub fn has_answered(&self) -> bool {
        self.status.is_some_and(|status| status < 400)
    }

    /// Whether it failed, other than by the router's leaving.
    pub fn has_failed(&self) -> bool {
        self.outcome.is_some_and(|outcome| !outcome.is_left())
    }

    /// Whether it is a leg that another server decodes.
    pub fn is_prefill_leg(&self) -> bool {
        self.room.is_some() && !self.may_answer()
    }

    /// Whether its reply may be what the client gets: not that of a prefill server.
    pub fn may_answer(&self) -> bool {
        self.role != Some(ServerRole::Prefill)
    }

    /// Whether nothing more is told of it.
    pub fn has_told(&self) -> bool {
        self.ended.is_some() || !self.prefill.is_empty()
    }

    /// As one that did not answer.
    pub fn failed(&self) -> Failed {
        let places = [&self.host, &self.worker];
        let place = places.into_iter().find(|place| !place.is_empty());
        Failed {
            host: place.cloned().unwrap_or_default(),
            outcome: self.outcome,
            status: self.status,
            nanos: self.ended.map(|ended| ended.nanos_since(self.arrival)),
        }
    }
}

/// Says in the error of a request which server of its pair was lost, if this one was.
pub fn tell_lost(error: &mut String, role: ServerRole, host: &str, outcome: Option<Outcome>) {
    if error.is_empty() || host.is_empty() {
        return;
    }
    let is_told = role == ServerRole::Prefill && error.contains(LOST);
    match outcome {
        _ if is_told => error.push_str(&format!(" ({host})")),
        Some(died @ (Outcome::UpstreamDied | Outcome::ProxyError)) => {
            error.push_str(&format!(
                " ({} server {host}: {})",
                role.name(),
                died.name()
            ));
        }
        _ => {}
    }
}

/// What decode says when the server that prefills is gone.
const LOST: &str = "prefill instance";

/// Attempts by the router's sendings, of which the two legs of one are together. A router may send again under one room.
pub fn sendings<T>(
    attempts: impl IntoIterator<Item = T>,
    is_other_leg: impl Fn(&T, &T) -> bool,
) -> Vec<Vec<T>> {
    let mut all: Vec<Vec<T>> = Vec::new();
    for attempt in attempts {
        let is_of = |legs: &&mut Vec<T>| matches!(&legs[..], [leg] if is_other_leg(leg, &attempt));
        match all.iter_mut().find(is_of) {
            Some(legs) => legs.push(attempt),
            None => all.push(vec![attempt]),
        }
    }
    all
}

/// For people and CSV cells: `127.0.0.1:30000 server_error 503 after 0.0012 s`.
impl fmt::Display for Failed {
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
}

/// What a row says of them: joined by `; `.
pub fn shown(failed: &[Failed]) -> Option<String> {
    let all: Vec<String> = failed.iter().map(Failed::to_string).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Those that [`shown`] told; a part that does not parse is as if absent.
pub fn told(shown: &str) -> impl Iterator<Item = Failed> {
    shown.split("; ").filter_map(|one| {
        let (what, took) = one.split_once(" after ").unwrap_or((one, ""));
        let mut words = what.split_whitespace();
        let took = took.strip_suffix(" s");
        let took = took.and_then(|took| nanos(took.as_bytes()));
        Some(Failed {
            host: words.next()?.to_owned(),
            outcome: words.next().and_then(Outcome::named),
            status: words.next().and_then(|status| status.parse().ok()),
            nanos: took.filter(|nanos| (0..LONGEST).contains(nanos)),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_id_is_sixteen_hex_digits() {
        let id = SpanId::parse("00f067aa0ba902b7").unwrap();
        assert_eq!(id.to_string(), "00f067aa0ba902b7");
        for wrong in [
            "",
            "0000000000000000",
            "00F067AA0BA902B7",
            "f067aa0ba902b7",
            "+0f067aa0ba902b7",
        ] {
            assert_eq!(SpanId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_failed_attempt_is_read_as_it_is_shown() {
        let id = SpanId::new(1).unwrap();
        let begun = Stamp::from_nanos(5);
        let open = Attempt::new(id, "w0".into(), "[::1]:30000".into(), begun);
        let mut rejected = open.clone();
        rejected.status = Some(503);
        rejected.outcome = Some(Outcome::Rejected);
        rejected.ended = Some(begun.plus_nanos(1_500_000));
        let mut unsent = rejected.clone();
        unsent.host.clear();
        for (attempt, shown) in [
            (open, "[::1]:30000 open"),
            (rejected, "[::1]:30000 rejected 503 after 0.001500 s"),
            (unsent, "w0 rejected 503 after 0.001500 s"),
        ] {
            let failed = attempt.failed();
            assert_eq!(failed.to_string(), shown);
            assert_eq!(told(shown).collect::<Vec<_>>(), [failed]);
        }
    }
}
