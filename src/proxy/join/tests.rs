//! What the join tables promise.

use super::*;
use crate::request::outcome::Outcome;

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

impl Tables {
    fn counted(&self, by: &str) -> u64 {
        let text = self.metrics.text();
        let name = format!("queuescope_joins_total{{by=\"{by}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0, |value| value.parse().unwrap())
    }

    /// Everything that is held, so that a leak shows.
    fn held(&self) -> [usize; 6] {
        let table = self.joins.table.lock();
        [
            table.requests.len(),
            table.by_span.len(),
            table.by_id.len(),
            table.ended.len(),
            table.attempts,
            table.failures_elsewhere.len() + table.elsewhere_since.len(),
        ]
    }
}

#[test]
fn retries_join_by_the_span_and_the_answer_is_set_apart() {
    let tables = tables(true);
    let joins = &tables.joins;
    let key = joins.open("id").unwrap();
    let (owner, parent) = (Owner::Request(key), Some(span(100)));
    joins.sent(key, span(100));
    for number in 1..=3 {
        assert_eq!(joins.arrived(&attempt(number), parent, Some("id")), owner);
    }
    let first = ended(1, Some(503), Outcome::Rejected);
    let second = ended(2, None, Outcome::UpstreamDied);
    joins.update(owner, &first, parent, at(2));
    joins.update(owner, &second, parent, at(2));
    let third = ended(3, Some(200), Outcome::Ok);
    joins.update(owner, &third, parent, at(2));
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
    joins.update(owner, &third, parent, at(3));
    assert_eq!(tables.counted("span"), 3);
    // One that comes later still is counted, and in no row.
    joins.sweep(at(50));
    let late = joins.arrived(&attempt(4), parent, Some("id"));
    assert_eq!((late, tables.counted("late")), (Owner::Ended, 1));
    joins.update(late, &attempt(4), parent, at(4));
    joins.sweep(at(3).plus_nanos(MEMORY + 1));
    assert_eq!(tables.held(), [0; 6]);
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
    let owner = joins.arrived(&attempt(1), Some(span(999)), Some("id"));
    assert_eq!(owner, Owner::Request(key));
    let failed = ended(1, Some(503), Outcome::Rejected);
    joins.update(owner, &failed, None, at(2));
    joins.arrived(&attempt(2), Some(span(998)), Some("id"));
    joins.answered(key, span(2));
    let closed = joins.close(key, at(3));
    assert_eq!((closed.count, closed.failed.len()), (2, 1));
    assert_eq!(closed.last.unwrap().span, span(2));
    assert_eq!(tables.counted("request_id"), 2);
    joins.sweep(at(100));
    assert_eq!(tables.held(), [0; 6]);
}

#[test]
fn a_router_that_keeps_spans_takes_the_request_id_from_no_other() {
    let tables = tables(true);
    let joins = &tables.joins;
    let (kept, lost) = (joins.open("kept").unwrap(), joins.open("lost").unwrap());
    joins.sent(kept, span(100));
    joins.sent(lost, span(200));
    let of_kept = joins.arrived(&attempt(1), Some(span(100)), Some("kept"));
    let of_lost = joins.arrived(&attempt(2), Some(span(999)), Some("lost"));
    assert_eq!(
        (of_kept, of_lost),
        (Owner::Request(kept), Owner::Request(lost))
    );
}

#[test]
fn requests_that_share_their_id_are_never_told_apart_by_it() {
    let tables = tables(true);
    let joins = &tables.joins;
    let (one, two) = (joins.open("same").unwrap(), joins.open("same").unwrap());
    assert_eq!(
        joins.arrived(&attempt(1), None, Some("same")),
        Owner::Nobody
    );
    // With spans each goes to its own.
    joins.sent(one, span(100));
    joins.sent(two, span(200));
    joins.arrived(&attempt(11), Some(span(200)), Some("same"));
    joins.arrived(&attempt(12), Some(span(100)), Some("same"));
    // A response that names one of neither leaves the rows as they are.
    joins.answered(one, span(1));
    let closed = joins.close(one, at(4));
    assert_eq!((closed.last, closed.others[0].span), (None, span(12)));
    // What is left may be a retry of the one that has ended.
    assert_eq!(
        joins.arrived(&attempt(3), None, Some("same")),
        Owner::Nobody
    );
    assert_eq!(tables.counted("ambiguous"), 2);
    assert_eq!(joins.close(two, at(4)).last.unwrap().span, span(11));
    assert!(joins.ended(Vec::new(), at(4)).is_none());
    assert!(
        joins.sweep(at(9)).is_empty(),
        "another process may yet come"
    );
    assert_eq!(joins.sweep(at(10)).len(), 1);
    assert_eq!(tables.counted("nothing"), 1);
}

#[test]
fn a_client_may_give_all_its_requests_one_id() {
    let tables = tables(true);
    let joins = &tables.joins;
    for number in 1..=CAPACITY as u64 {
        let key = joins.open("same").unwrap();
        joins.sent(key, span(1_000_000 + number));
        let owner = joins.arrived(&attempt(number), None, Some("same"));
        assert_eq!(owner, Owner::Request(key), "one at a time");
        joins.close(key, at(1));
    }
    let [requests, spans, ids, ..] = tables.held();
    assert_eq!((requests, spans, ids), (0, CAPACITY, 0));
    joins.sweep(at(100));
    assert_eq!(tables.held(), [0; 6]);
}

#[test]
fn without_a_front_each_attempt_has_its_row_and_knows_the_failed_ones_before() {
    let tables = tables(false);
    let joins = &tables.joins;
    let parent = Some(span(100));
    let owner = joins.arrived(&attempt(1), parent, Some("id"));
    assert_eq!(owner, Owner::Nobody);
    let first = ended(1, Some(503), Outcome::Rejected);
    joins.update(owner, &first, parent, at(2));
    joins.arrived(&attempt(2), parent, Some("id"));
    let earlier = joins.earlier(span(100), span(2));
    assert_eq!(earlier.len(), 1);
    assert_eq!(earlier[0].status, Some(503));
    // At its end it is told again.
    joins.update(owner, &first, parent, at(2));
    let second = ended(2, Some(200), Outcome::Ok);
    joins.update(owner, &second, parent, at(2));
    assert!(joins.ended(Vec::new(), at(2)).is_some(), "at once");
    assert_eq!(tables.counted("nothing"), 0, "it is no failure to join");
    assert_eq!(joins.earlier(span(100), span(3)).len(), 1, "once");
    joins.sweep(at(3).plus_nanos(MEMORY));
    assert_eq!(tables.held(), [0; 6]);
}

#[test]
fn the_tables_are_bounded_and_what_they_refuse_is_counted() {
    let tables = tables(true);
    let joins = &tables.joins;
    let dropped = |times: usize| {
        let text = tables.metrics.text();
        let line = format!("queuescope_joins_dropped_total {times}\n");
        assert!(text.contains(&line), "{text}");
    };
    let first = joins.open("0").unwrap();
    let keys: Vec<_> = (1..CAPACITY)
        .map(|number| joins.open(&number.to_string()).unwrap())
        .collect();
    assert_eq!(joins.open("one more"), None);
    dropped(1);
    joins.close(first, at(1));
    assert!(joins.open("one more").is_some(), "an ended one makes room");
    let arrive = |key: &RequestKey, number: u64| {
        joins.sent(*key, span(1_000_000 + key.0));
        joins.arrived(&attempt(number), Some(span(1_000_000 + key.0)), None)
    };
    // A request takes so many, and all together so many.
    let mut number = 1;
    for key in keys.iter().take(CAPACITY / MOST_ATTEMPTS + 1) {
        for _ in 0..MOST_ATTEMPTS + 1 {
            assert_eq!(arrive(key, number), Owner::Request(*key));
            number += 1;
        }
    }
    assert_eq!(tables.held()[4], CAPACITY);
    dropped(1 + CAPACITY / MOST_ATTEMPTS + MOST_ATTEMPTS + 1);
}

#[test]
fn while_two_processes_share_the_hops_nobody_tells_anothers_attempts() {
    let tables = tables(true);
    let joins = &tables.joins;
    let end = |now| joins.ended(Vec::new(), now);
    let told = || joins.sweep(at(1_000)).len();
    assert!(end(at(10)).is_none() && end(at(11)).is_none());
    assert_eq!((told(), tables.counted("nothing")), (2, 2));
    assert!(end(at(20)).is_none());
    // It ended before this process knew.
    joins.shared_with_predecessor(None);
    assert_eq!(told(), 0);
    // The other process has ended; what ended before may have been its, what ends after cannot be.
    joins.shared_with_predecessor(Some(at(30)));
    assert!(end(at(29)).is_none() && end(at(31)).is_none());
    assert_eq!(told(), 1);
    assert!(end(at(110)).is_none());
    joins.shared_with_successor();
    // That the predecessor has ended changes nothing about the successor.
    joins.shared_with_predecessor(Some(at(105)));
    assert!(joins.flush().is_empty());
    let counts = ["nothing", "elsewhere"].map(|by| tables.counted(by));
    assert_eq!(counts, [3, 3]);
}
