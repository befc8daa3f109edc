//! What the join tables promise.

use super::*;
use crate::request::endpoint::Endpoint;
use crate::request::observer::{End, Observer};
use crate::request::outcome::Outcome;
use crate::request::timeline::Side;

/// Join tables and what they count.
struct Tables {
    joins: Joins,
    metrics: Metrics,
}

fn tables(has_front: bool) -> Tables {
    let metrics = Metrics::new().unwrap();
    Tables {
        joins: Joins::new(has_front, metrics.clone()),
        metrics,
    }
}

fn span(number: u64) -> SpanId {
    SpanId::new(number).unwrap()
}

fn at(seconds: i64) -> Stamp {
    Stamp::from_nanos(seconds * NANOS)
}

fn attempt(number: u64) -> Attempt {
    Attempt::new(span(number), "w0".into(), format!("server:{number}"), at(1))
}

fn ended(number: u64, status: Option<u16>, outcome: Outcome) -> Attempt {
    Attempt {
        status,
        outcome: Some(outcome),
        ended: Some(at(2)),
        ..attempt(number)
    }
}

fn rows(id: &str) -> Option<Vec<Record>> {
    let observer = Observer::new(Side::Hop, Endpoint::Generate, id.into());
    Some(observer.finish(End::Complete, at(2)).into_records(None))
}

fn ids(rows: &[Vec<Record>]) -> Vec<&str> {
    let ids = rows.iter().flatten().map(|row| row.facts.req_id.as_str());
    ids.collect()
}

impl Tables {
    fn counted(&self, by: &str) -> u64 {
        let text = self.metrics.text();
        let name = format!("queuescope_joins_total{{by=\"{by}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0, |value| value.parse().unwrap())
    }

    /// Everything that is held, so that a leak shows.
    fn held(&self) -> [usize; 7] {
        let table = self.joins.table.lock();
        [
            table.requests.len(),
            table.by_span.len(),
            table.by_id.len(),
            table.ended.len(),
            table.attempts.len(),
            table.unclaimed.len(),
            table.failures_elsewhere.len() + table.elsewhere_since.len(),
        ]
    }
}

#[test]
fn retries_join_by_the_span_and_the_answer_is_set_apart() {
    let tables = tables(true);
    let joins = &tables.joins;
    let key = joins.open("id").unwrap();
    joins.sent(key, span(100));
    for number in 1..=3 {
        let may_need_row = joins.arrived(&attempt(number), Some(span(100)), Some("id"));
        assert!(!may_need_row);
    }
    let parent = Some(span(100));
    let first = ended(1, Some(503), Outcome::Rejected);
    let second = ended(2, None, Outcome::UpstreamDied);
    assert!(joins.ended(&first, parent, None, at(2)).is_none());
    assert!(joins.ended(&second, parent, None, at(2)).is_none());
    joins.update(&ended(3, Some(200), Outcome::Ok), parent, at(2));
    joins.answered(key, span(3));
    let (count, failed) = joins.so_far(key);
    assert_eq!((count, failed.len()), (3, 2));
    let closed = joins.close(key, at(3));
    assert_eq!(closed.count, 3);
    assert_eq!(closed.last.unwrap().host, "server:3");
    let failed: Vec<_> = closed
        .failed
        .iter()
        .map(|f| (f.host.as_str(), f.outcome))
        .collect();
    assert_eq!(
        failed,
        [
            ("server:1", Some(Outcome::Rejected)),
            ("server:2", Some(Outcome::UpstreamDied))
        ]
    );
    // The hop may end after the front.
    assert!(
        joins
            .ended(&ended(3, Some(200), Outcome::Ok), parent, None, at(3))
            .is_none()
    );
    assert_eq!(tables.counted("span"), 3);
    // One that comes later still is counted, and in no row.
    assert!(joins.sweep(at(50)).is_empty());
    assert!(!joins.arrived(&attempt(4), parent, Some("id")));
    assert_eq!(tables.counted("late"), 1);
    assert!(joins.ended(&attempt(4), parent, None, at(4)).is_none());
    assert!(joins.sweep(at(3).plus_nanos(MEMORY + 1)).is_empty());
    assert_eq!(tables.held(), [0; 7]);
}

#[test]
fn without_a_response_the_last_attempt_stands_for_the_request() {
    let tables = tables(true);
    let joins = &tables.joins;
    let key = joins.open("id").unwrap();
    joins.sent(key, span(100));
    joins.arrived(&attempt(1), Some(span(100)), None);
    joins.arrived(&attempt(2), Some(span(100)), None);
    let closed = joins.close(key, at(3));
    assert_eq!(closed.last.unwrap().span, span(2));
    assert_eq!((closed.failed.len(), closed.count), (1, 2));
}

#[test]
fn an_answer_from_another_process_leaves_ours_among_the_failed() {
    let tables = tables(true);
    let joins = &tables.joins;
    let key = joins.open("id").unwrap();
    joins.sent(key, span(100));
    joins.arrived(&attempt(1), Some(span(100)), None);
    joins.answered(key, span(77));
    let closed = joins.close(key, at(3));
    assert_eq!(closed.last, None);
    assert_eq!((closed.failed.len(), closed.count), (1, 2));
}

#[test]
fn a_router_that_loses_the_span_leaves_the_request_id() {
    let tables = tables(true);
    let joins = &tables.joins;
    let key = joins.open("id").unwrap();
    joins.sent(key, span(100));
    let may_need_row = joins.arrived(&attempt(1), Some(span(999)), Some("id"));
    assert!(may_need_row, "until it is sure it is watched");
    let failed = ended(1, Some(503), Outcome::Rejected);
    assert!(joins.ended(&failed, None, rows("id"), at(2)).is_none());
    joins.arrived(&attempt(2), Some(span(998)), Some("id"));
    joins.answered(key, span(2));
    assert_eq!(tables.counted("response"), 0, "it was joined already");
    joins.ended(&ended(2, Some(200), Outcome::Ok), None, rows("id"), at(2));
    let closed = joins.close(key, at(3));
    assert_eq!((closed.count, closed.failed.len()), (2, 1));
    assert!(closed.released.is_empty());
    assert_eq!(tables.counted("request_id"), 2);
    assert!(joins.flush().is_empty());
    joins.sweep(at(100));
    assert_eq!(tables.held(), [0; 7]);
}

#[test]
fn duplicate_request_ids_are_never_guessed() {
    let tables = tables(true);
    let joins = &tables.joins;
    let (one, two) = (joins.open("same").unwrap(), joins.open("same").unwrap());
    assert!(joins.arrived(&attempt(1), None, Some("same")));
    assert!(joins.arrived(&attempt(2), None, Some("same")));
    assert_eq!(tables.counted("ambiguous"), 2);
    // The responses name their attempts, in whatever order.
    joins.answered(one, span(2));
    joins.ended(&ended(1, Some(200), Outcome::Ok), None, rows("same"), at(2));
    joins.answered(two, span(1));
    joins.ended(&ended(2, Some(200), Outcome::Ok), None, rows("same"), at(2));
    assert_eq!(joins.close(one, at(3)).last.unwrap().span, span(2));
    assert_eq!(joins.close(two, at(3)).last.unwrap().span, span(1));
    assert!(
        joins.flush().is_empty(),
        "no row of its own, for both are in the front's rows"
    );
    // With spans each goes to its own.
    let (one, two) = (joins.open("same").unwrap(), joins.open("same").unwrap());
    joins.sent(one, span(100));
    joins.sent(two, span(200));
    joins.arrived(&attempt(11), Some(span(200)), Some("same"));
    joins.arrived(&attempt(12), Some(span(100)), Some("same"));
    assert_eq!(joins.close(one, at(4)).last.unwrap().span, span(12));
    assert_eq!(joins.close(two, at(4)).last.unwrap().span, span(11));
}

#[test]
fn an_answer_that_the_front_never_read_is_given_back() {
    let tables = tables(true);
    let joins = &tables.joins;
    // Somebody else's request with the same id, straight at the hop, while ours waits in the router.
    let key = joins.open("same").unwrap();
    joins.arrived(&attempt(1), None, Some("same"));
    joins.ended(&ended(1, Some(200), Outcome::Ok), None, rows("same"), at(2));
    joins.arrived(&attempt(2), None, Some("same"));
    joins.answered(key, span(2));
    let closed = joins.close(key, at(3));
    assert_eq!((closed.count, closed.failed.len()), (1, 0));
    assert_eq!(ids(&closed.released), ["same"]);
}

#[test]
fn where_spans_survive_a_request_id_alone_joins_nothing() {
    let tables = tables(true);
    let joins = &tables.joins;
    let first = joins.open("first").unwrap();
    joins.sent(first, span(100));
    joins.arrived(&attempt(1), Some(span(100)), Some("first"));
    let second = joins.open("second").unwrap();
    joins.sent(second, span(200));
    joins.arrived(&attempt(2), Some(span(999)), Some("second"));
    joins.ended(
        &ended(2, None, Outcome::ClientAbort),
        None,
        rows("theirs"),
        at(2),
    );
    assert_eq!(joins.close(second, at(3)).count, 0);
    assert!(
        joins.sweep(at(2)).is_empty(),
        "the front may yet read its response"
    );
    assert_eq!(
        ids(&joins.sweep(at(2).plus_nanos(CLAIM_WAIT + 1))),
        ["theirs"]
    );
    assert_eq!(tables.counted("nothing"), 1);
}

#[test]
fn without_a_front_each_attempt_has_its_row_and_knows_the_failed_ones_before() {
    let tables = tables(false);
    let joins = &tables.joins;
    let parent = Some(span(100));
    assert!(joins.arrived(&attempt(1), parent, Some("id")));
    joins.update(&ended(1, Some(503), Outcome::Rejected), parent, at(2));
    joins.arrived(&attempt(2), parent, Some("id"));
    let earlier = joins.earlier(span(100), span(2));
    assert_eq!(earlier.len(), 1);
    assert_eq!(earlier[0].status, Some(503));
    let first = ended(1, Some(503), Outcome::Rejected);
    assert!(joins.ended(&first, parent, rows("id"), at(2)).is_some());
    let second = ended(2, Some(200), Outcome::Ok);
    assert!(joins.ended(&second, parent, rows("id"), at(2)).is_some());
    assert_eq!(joins.earlier(span(100), span(3)).len(), 1, "once");
    joins.sweep(at(3).plus_nanos(MEMORY));
    assert_eq!(tables.held(), [0; 7]);
}

#[test]
fn the_tables_are_bounded_and_what_they_refuse_is_counted() {
    let tables = tables(true);
    let joins = &tables.joins;
    let first = joins.open("0").unwrap();
    for number in 1..CAPACITY {
        joins.open(&number.to_string()).unwrap();
    }
    assert_eq!(joins.open("one more"), None);
    joins.close(first, at(1));
    assert!(joins.open("one more").is_some(), "an ended one makes room");
    for number in 1..=CAPACITY as u64 + 1 {
        let may_need_row = joins.arrived(&attempt(number), None, None);
        assert!(may_need_row);
    }
    assert_eq!(tables.held()[4], CAPACITY);
    let text = tables.metrics.text();
    assert!(
        text.contains("queuescope_joins_dropped_total 2\n"),
        "{text}"
    );
    // One that the table did not take has its row at once.
    let last = ended(CAPACITY as u64 + 1, Some(200), Outcome::Ok);
    assert!(joins.ended(&last, None, rows("last"), at(2)).is_some());
}

#[test]
fn while_two_processes_share_the_hops_nobody_tells_anothers_attempts() {
    let tables = tables(true);
    let joins = &tables.joins;
    let end = |number, now| {
        joins.arrived(&attempt(number), None, Some("id"));
        let attempt = ended(number, Some(200), Outcome::Ok);
        joins.ended(&attempt, None, rows("id"), now)
    };
    assert!(end(1, at(10)).is_none());
    joins.shared_with_predecessor(None);
    assert!(end(2, at(20)).is_none());
    // The other process has ended; what ended before may have been its, what ends after cannot be.
    joins.shared_with_predecessor(Some(at(30)));
    assert!(end(3, at(29)).is_none());
    assert!(end(4, at(31)).is_none());
    assert_eq!(joins.sweep(at(100)).len(), 1);
    joins.shared_with_successor();
    assert!(end(5, at(110)).is_none());
    // That the predecessor has ended changes nothing about the successor.
    joins.shared_with_predecessor(Some(at(105)));
    assert!(joins.flush().is_empty());
}
