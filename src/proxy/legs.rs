//! The two legs of a request that a prefill/decode pair of servers serves. The router sends it, with one number (`bootstrap_room`),
//! to the server that prefills and to the one that decodes and answers. What the response of the prefill leg reports is put into
//! the row of the other.

use crate::request::{
    Attempt, ClockOf, Moment, Relation, Row, ServerRole, Side, append_lost_server,
};

/// Puts the prefill leg of a request into the request's rows.
pub fn put_prefill(leg: &Attempt, rows: &mut [Row]) {
    for row in rows.iter_mut() {
        row.internal.room = row.internal.room.or(leg.room);
        row.prefilled_by(leg);
        let times = leg.prefill.get(row.index as usize);
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
    let is_one_clock =
        timeline.side() == Side::Front && timeline.relation(ClockOf::Hop) == Relation::Same;
    let [at_hop, head] =
        [Moment::WorkerFirstToken, Moment::ResponseHead].map(|moment| timeline.mark(moment));
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
    use crate::request::{End, Endpoint, Observer, SpanId};

    #[test]
    fn a_router_that_passed_the_head_on_before_prefill_replied_held_nothing() {
        let at = |ms: i64| Stamp::from_nanos(1_795_000_000_000_000_000 + ms * 1_000_000);
        let span = SpanId::new(1).unwrap();
        let mut leg = Attempt::new(span, "p0".to_owned(), "p".to_owned(), at(0));
        leg.body_timing.piece(at(100), 0);
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
