//! The two legs of a request that a prefill/decode pair of servers serves. The router sends it, with one number (`bootstrap_room`),
//! to the server that prefills and to the one that decodes and answers. What the response of the prefill leg reports is put into
//! the row of the other.

use serde_json::Value;

use crate::request::attempt::{Attempt, ServerRole, append_lost_server};
use crate::request::row::Row;
use crate::request::timeline::{ClockOf, Moment, Relation, Side};

/// The response of `/server_info`, as far as it was read.
#[derive(Debug, Default)]
pub struct ServerInfo(Vec<u8>);

/// How much of a response is read to find out which server of a pair it is from, in bytes.
pub const MAX_SNIFFED_BYTES: u64 = 16 * 1024;
/// How much of a `/server_info` is read, in bytes; a real server's has about 20,000.
const MAX_INFO_BYTES: usize = 1 << 20;

impl ServerInfo {
    /// Returns an empty one if `path` asks for it.
    pub fn for_path(path: &str) -> Option<ServerInfo> {
        matches!(path, "/server_info" | "/get_server_info").then(ServerInfo::default)
    }

    /// Takes a piece of the response.
    pub fn feed(&mut self, bytes: &[u8]) {
        let room = MAX_INFO_BYTES - self.0.len();
        self.0.extend(bytes.iter().take(room));
    }

    /// Returns the server's role once the response is whole: `Some(None)` if it is no server of a pair.
    pub fn role(&self) -> Option<Option<ServerRole>> {
        let info: Value = serde_json::from_slice(&self.0).ok()?;
        let mode = info.get("disaggregation_mode")?.as_str()?;
        Some(ServerRole::named(mode))
    }
}

/// Notes in a leg's attempt what its response reported.
pub fn note_response(attempt: &mut Attempt, response: &[Row]) {
    let has_run = |row: &Row| {
        let entered = [Moment::QueueEnd, Moment::DecodeStart];
        entered.iter().any(|at| row.timeline.raw(*at).is_some())
    };
    // A server that decodes too makes more than the first token.
    let has_prefilled = |row: &Row| {
        row.timeline.raw(Moment::PrefillEnd).is_some()
            && row.actual_output_tokens.is_none_or(|tokens| tokens <= 1)
    };
    let role = match () {
        () if response.iter().any(has_prefilled) => Some(ServerRole::Prefill),
        () if response.iter().any(has_run) => Some(ServerRole::Decode),
        () => None,
    };
    attempt.role = attempt.role.or(role);
    if attempt.role != Some(ServerRole::Decode) {
        let times = response.iter().map(|row| row.timeline.as_prefill());
        attempt.prefill = times.collect();
    }
}

/// Puts the prefill leg of a request into the request's rows.
pub fn put_prefill(leg: &Attempt, rows: &mut [Row]) {
    for row in rows.iter_mut() {
        row.internal.room = row.internal.room.or(leg.room);
        row.prefilled_by(leg);
        let times = usize::try_from(row.index).ok();
        let times = times.and_then(|index| leg.prefill.get(index));
        row.timeline.set_pair(times.copied().unwrap_or_default());
        put_prefill_replied(leg, row);
        if let Some(error) = &mut row.error {
            append_lost_server(error, ServerRole::Prefill, &leg.host, leg.outcome);
        }
    }
    let attempts = rows.first_mut().map(|row| &mut row.internal.trace.attempts);
    // Empty where no spans are made of them.
    if let Some(attempts) = attempts.filter(|attempts| !attempts.is_empty()) {
        attempts.insert(0, leg.clone());
    }
}

/// Sets `prefill_replied` if the router held the response until prefill's was complete: the front saw none of it before.
fn put_prefill_replied(leg: &Attempt, row: &mut Row) {
    let timeline = &mut row.timeline;
    let is_one_clock = timeline.side() == Side::Front
        && timeline.mark(Moment::WorkerFirstToken).is_some()
        && timeline.relation(ClockOf::Hop) == Relation::Same;
    let [at_hop, head] =
        [Moment::WorkerFirstToken, Moment::ResponseHead].map(|moment| timeline.raw(moment));
    let replied = leg.body_timing.last.filter(|_| is_one_clock);
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
    use crate::clock::Stamp;
    use crate::request::attempt::SpanId;
    use crate::request::endpoint::Endpoint;
    use crate::request::observer::{End, Observer};

    #[test]
    fn the_role_of_a_server_is_in_its_server_info() {
        for (mode, role) in [
            ("\"prefill\"", Some(Some(ServerRole::Prefill))),
            ("\"decode\"", Some(Some(ServerRole::Decode))),
            ("\"null\"", Some(None)),
            ("null", None),
        ] {
            let nested = "\"a\":{\"disaggregation_mode\":\"decode\"}";
            let body = format!("{{{nested},\"disaggregation_mode\":{mode}}}");
            let mut info = ServerInfo::for_path("/server_info").unwrap();
            body.as_bytes().chunks(1).for_each(|byte| {
                assert_eq!(info.role(), None);
                info.feed(byte);
            });
            assert_eq!(info.role(), role, "{mode}");
        }
        assert!(ServerInfo::for_path("/model_info").is_none());
    }

    #[test]
    fn a_router_that_passed_the_head_on_before_prefill_replied_held_nothing() {
        let at = |ms: i64| Stamp::from_nanos(1_795_000_000_000_000_000 + ms * 1_000_000);
        let span = SpanId::new(1).unwrap();
        let mut leg = Attempt::new(span, "p0".to_owned(), "p".to_owned(), at(0));
        leg.body_timing.piece(at(100));
        for (head, held) in [(50, None), (110, Some(at(100)))] {
            let mut observer = Observer::new(Side::Front, Endpoint::Generate, String::new());
            let timeline = observer.timeline_mut();
            timeline.relate(ClockOf::Hop, Relation::Same);
            timeline.set(Moment::WorkerFirstToken, at(60));
            timeline.set(Moment::FirstToken, at(120));
            observer.response_head(200, Some("text/event-stream"), false, at(head));
            let mut rows = observer.finish(End::Complete, at(200));
            put_prefill(&leg, &mut rows);
            assert_eq!(rows[0].timeline.raw(Moment::PrefillReplied), held, "{head}");
        }
    }
}
