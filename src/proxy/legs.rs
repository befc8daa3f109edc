//! The two legs of a request that a pair of servers serves: a router sends it with one number (`bootstrap_room`) to the server that
//! prefills, and to the one that decodes and answers. Of the first leg a hop reads what its reply tells; its row is the other's.

use pingora::http::ResponseHeader;

use crate::clock::Stamp;
use crate::request::attempt::{Attempt, ServerRole};
use crate::request::endpoint::Endpoint;
use crate::request::field::Field;
use crate::request::head::{content_type, is_encoded};
use crate::request::observer::{End, Observer};
use crate::request::record::Record;
use crate::request::scalar::Scalar;
use crate::request::scan::rule::{Rule, members, scalar};
use crate::request::scan::{Scanner, Sink};
use crate::request::timeline::{ClockOf, Moment, Relation, Side};

/// A hop's watch over a leg that has no row here.
#[derive(Debug)]
pub struct LegWatch {
    observer: Observer,
    /// So many more bytes of the reply are read.
    left: usize,
}

/// Reads a reply of `/server_info`.
#[derive(Debug)]
pub struct ServerInfo {
    scanner: Scanner,
    /// What the server does, once that is read; of one that is none of a pair, `None` in it.
    found: Option<Option<ServerRole>>,
}

/// Bytes of a reply that tell whose it is, where that is not known.
const UNKNOWN: usize = 16 * 1024;

static SERVER_INFO: Rule = members(&[("disaggregation_mode", scalar(Field::DisaggregationMode))]);

impl Sink for Option<Option<ServerRole>> {
    fn scalar(&mut self, _field: Field, value: Scalar<'_>) {
        if let Some(word) = value.string() {
            *self = Some(ServerRole::named(&word));
        }
    }

    fn text(&mut self, _field: Field, _piece: &[u8]) {}
}

impl ServerInfo {
    /// Reads it if that is what is asked for.
    pub fn asked_by(path: &str) -> Option<ServerInfo> {
        matches!(path, "/server_info" | "/get_server_info").then(|| ServerInfo {
            scanner: Scanner::new(&SERVER_INFO),
            found: None,
        })
    }

    /// Takes a piece. Gives what the server does, once that is read; of one that is none of a pair, `None` in it.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<Option<ServerRole>> {
        self.scanner.feed(bytes, &mut self.found);
        self.found
    }
}

impl LegWatch {
    /// About to read a request's body.
    pub fn new(endpoint: Endpoint) -> LegWatch {
        LegWatch {
            observer: Observer::of_leg(endpoint),
            left: 0,
        }
    }

    /// Takes a piece of the request's body. Gives its room, once that is read.
    pub fn request(&mut self, bytes: &[u8]) -> Option<u64> {
        self.observer.request_body(bytes);
        self.observer.room()
    }

    /// The head of the reply of a server that does this has come.
    pub fn head(&mut self, head: &ResponseHeader, role: Option<ServerRole>, at: Stamp) {
        let (status, headers) = (head.status.as_u16(), &head.headers);
        let (kind, encoded) = (content_type(headers), is_encoded(headers));
        self.observer.response_head(status, kind, encoded, at);
        self.left = match role {
            Some(ServerRole::Prefill) => usize::MAX,
            _ => UNKNOWN,
        };
    }

    /// Takes a piece of the reply.
    pub fn response(&mut self, bytes: &[u8], at: Stamp) {
        let more = bytes.get(..self.left.min(bytes.len())).unwrap_or_default();
        self.left -= more.len();
        if !more.is_empty() {
            self.observer.response_body(more, at, 0);
        }
    }

    /// What was read of the reply.
    pub fn end(self, at: Stamp) -> Vec<Record> {
        self.observer.finish(End::Complete, at).into_records(None)
    }
}

/// Notes of a leg what its reply told.
pub fn note(attempt: &mut Attempt, reply: &[Record]) {
    let has_run = |row: &Record| {
        let entered = [Moment::QueueEnd, Moment::DecodeStart];
        entered.iter().any(|at| row.timeline.raw(*at).is_some())
    };
    // One that does both makes more than the first token.
    let has_prefilled = |row: &Record| {
        row.timeline.raw(Moment::PrefillEnd).is_some()
            && row.sequence.output_tokens.is_none_or(|tokens| tokens <= 1)
    };
    let told = match () {
        () if reply.iter().any(has_prefilled) => Some(ServerRole::Prefill),
        () if reply.iter().any(has_run) => Some(ServerRole::Decode),
        () => None,
    };
    attempt.role = attempt.role.or(told);
    if attempt.role != Some(ServerRole::Decode) {
        let times = reply.iter().map(|row| row.timeline.as_prefill());
        attempt.prefill = times.collect();
    }
}

/// Puts the leg of the server that prefilled a request into the request's rows.
pub fn put(leg: &Attempt, rows: &mut [Record]) {
    for row in rows.iter_mut() {
        row.facts.room = row.facts.room.or(leg.room);
        row.facts.prefill_host = Some(leg.host.clone()).filter(|host| !host.is_empty());
        let times = usize::try_from(row.sequence.index).ok();
        let times = times.and_then(|index| leg.prefill.get(index));
        row.timeline.pair(times.copied().unwrap_or_default());
        hold(leg, row);
        if let (Some(host), true) = (&row.facts.prefill_host, row.facts.error.contains(LOST)) {
            row.facts.error = format!("{} ({host})", row.facts.error);
        }
    }
    let attempts = rows.first_mut().map(|row| &mut row.facts.trace.attempts);
    // Only where they are kept.
    if let Some(attempts) = attempts.filter(|attempts| !attempts.is_empty()) {
        attempts.insert(0, leg.clone());
    }
}

/// What decode says when the server that prefills is gone.
const LOST: &str = "prefill instance";

/// Whether the router held the response until it had all of prefill's reply: nothing of it came to the front sooner.
fn hold(leg: &Attempt, row: &mut Record) {
    let timeline = &mut row.timeline;
    let is_one_clock = timeline.side() == Side::Front
        && timeline.saw_way_back()
        && timeline.relation(ClockOf::Hop) == Relation::Same;
    let [at_hop, head] =
        [Moment::WorkerFirstToken, Moment::ResponseHead].map(|moment| timeline.raw(moment));
    let replied = leg.passage.last.filter(|_| is_one_clock);
    if let (Some(at_hop), Some(replied), Some(head)) = (at_hop, replied, head)
        && at_hop < replied
        && replied <= head
    {
        timeline.set(Moment::PrefillReplied, replied);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::attempt::SpanId;

    #[test]
    fn what_a_server_does_is_read_of_its_server_info() {
        for (word, role) in [
            ("\"prefill\"", Some(Some(ServerRole::Prefill))),
            ("\"decode\"", Some(Some(ServerRole::Decode))),
            ("\"null\"", Some(None)),
            ("null", None),
        ] {
            let body = format!(
                "{{\"a\":{{\"disaggregation_mode\":\"decode\"}},\"disaggregation_mode\":{word}}}"
            );
            let mut info = ServerInfo::asked_by("/server_info").unwrap();
            let found = body.as_bytes().chunks(1).find_map(|byte| info.feed(byte));
            assert_eq!(found, role, "{word}");
        }
        assert!(ServerInfo::asked_by("/model_info").is_none());
    }

    #[test]
    fn a_router_that_passed_on_the_head_before_prefill_had_replied_held_nothing() {
        let at = |ms: i64| Stamp::from_nanos(1_795_000_000_000_000_000 + ms * 1_000_000);
        let span = SpanId::new(1).unwrap();
        let mut leg = Attempt::new(span, "p0".to_owned(), "p".to_owned(), at(0));
        leg.passage.piece(at(100), 0);
        for (head, held) in [(50, None), (110, Some(at(100)))] {
            let mut observer = Observer::new(Side::Front, Endpoint::Generate, String::new());
            observer.timeline_mut().relate(ClockOf::Hop, Relation::Same);
            observer
                .timeline_mut()
                .set(Moment::WorkerFirstToken, at(60));
            observer.response_head(200, Some("text/event-stream"), false, at(head));
            observer.timeline_mut().set(Moment::FirstToken, at(120));
            let mut rows = observer.finish(End::Complete, at(200)).into_records(None);
            put(&leg, &mut rows);
            assert_eq!(rows[0].timeline.raw(Moment::PrefillReplied), held, "{head}");
        }
    }
}
