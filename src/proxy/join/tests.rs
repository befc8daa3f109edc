//! What the join tables promise.

use super::*;
use crate::request::attempt::CameWith;
use crate::request::outcome::Outcome;
use crate::request::sample::Sample;

mod legs;

/// Join tables and what they count.
struct Tables {
    joins: Joins,
    metrics: Metrics,
}

fn tables(has_front: bool) -> Tables {
    let metrics = Metrics::new().unwrap();
    let joins = Joins::new(has_front, metrics.clone());
    Tables { joins, metrics }
}

fn span(number: u64) -> SpanId {
    SpanId::new(number).unwrap()
}

fn at(seconds: i64) -> Stamp {
    Stamp::from_nanos(seconds * NANOS)
}

impl Tables {
    /// An attempt that came with the span `parent`, if any, and the request id `id`.
    fn arrive(&self, number: u64, parent: Option<u64>, id: Option<&str>) -> HopAttempt {
        let host = format!("server:{number}");
        let mut attempt = Attempt::new(span(number), "w0".into(), host, at(1));
        attempt.came_with = parent.map(|parent| CameWith {
            trace: 1,
            span: span(parent),
        });
        self.joins.arrived(attempt, id)
    }

    /// One of a request's two legs, which name a room.
    fn leg(&self, number: u64, room: u64, role: Option<ServerRole>) -> HopAttempt {
        let leg = self.arrive(number, None, None);
        (leg.told.lock().room, leg.told.lock().role) = (Some(room), role);
        self.joins.in_room(&leg, room, at(1));
        leg
    }

    /// A request of the front with one id, sent with one span.
    fn open(&self, id: &str, sent_with: u64) -> Joined {
        let request = self.joins.open(id).unwrap();
        self.joins.sent(&request, span(sent_with));
        request
    }

    fn counted(&self, by: &str) -> u64 {
        let text = self.metrics.text();
        let name = format!("queuescope_joins_total{{by=\"{by}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0, |value| value.parse().unwrap())
    }

    /// Everything that is held, so that a leak shows.
    fn held(&self) -> [usize; 5] {
        let table = self.joins.table.lock();
        [
            table.open,
            table.by_span.len(),
            table.by_id.len(),
            table.ended.len(),
            table.attempts,
        ]
    }
}

fn end(attempt: &HopAttempt, status: Option<u16>, outcome: Outcome) {
    let mut told = attempt.told.lock();
    (told.status, told.outcome, told.ended) = (status, Some(outcome), Some(at(2)));
}

/// Whether it was joined to a request.
fn is_joined(attempt: &HopAttempt) -> bool {
    !attempt.needs_row
}

#[test]
fn what_comes_after_the_end_is_counted_and_in_no_row() {
    let tables = tables(true);
    let request = tables.open("id", 100);
    tables.arrive(1, Some(100), Some("id"));
    tables.joins.close(&request, at(3));
    // One that comes later still is counted, and in no row.
    tables.joins.sweep(at(50));
    assert!(!tables.arrive(4, Some(100), Some("id")).needs_row);
    assert_eq!(tables.counted("late"), 1);
    tables.joins.sweep(at(3).plus_nanos(MEMORY + 1));
    assert_eq!(tables.held(), [0; 5]);
}

#[test]
fn who_stands_for_the_request_depends_on_what_answered() {
    for (answered_by, last, failed) in [
        // Without a response the last attempt does.
        (None, Some(2), 1),
        (Some(1), Some(1), 1),
        // One of another process leaves ours among the failed.
        (Some(77), None, 2),
    ] {
        let tables = tables(true);
        let request = tables.open("id", 100);
        let _both = [1, 2].map(|n| tables.arrive(n, Some(100), None));
        if let Some(by) = answered_by {
            request.answered(span(by));
        }
        let closed = tables.joins.close(&request, at(3));
        assert_eq!(closed.last.map(|last| last.span), last.map(span));
        let count = failed as u32 + 1;
        assert_eq!((closed.others.len(), closed.count), (failed, count));
    }
}

#[test]
fn requests_that_share_their_id_are_never_told_apart_by_it() {
    let tables = tables(true);
    // With spans each goes to its own.
    let (one, two) = (tables.open("same", 100), tables.open("same", 200));
    assert!(tables.arrive(1, None, Some("same")).needs_row);
    tables.arrive(11, Some(200), Some("same"));
    tables.arrive(12, Some(100), Some("same"));
    // A response that names one of neither leaves the rows as they are.
    one.answered(span(1));
    let closed = tables.joins.close(&one, at(4));
    assert_eq!((closed.last, closed.others[0].span), (None, span(12)));
    // What is left may be a retry of the one that has ended.
    let alone = tables.arrive(3, None, Some("same"));
    assert!(alone.needs_row);
    assert_eq!(tables.counted("ambiguous"), 2);
    let closed = tables.joins.close(&two, at(4));
    assert_eq!(closed.last.unwrap().span, span(11));
    let now = tables.joins.ended(&alone, Some(Vec::new()), at(4));
    assert!(now.is_none());
    let waits = tables.joins.sweep(at(9)).is_empty();
    assert!(waits, "another process may yet come");
    assert_eq!(tables.joins.sweep(at(10)).len(), 1);
    assert_eq!(tables.counted("nothing"), 1);
}

#[test]
fn a_client_may_give_all_its_requests_one_id() {
    let tables = tables(true);
    for number in 1..=CAPACITY as u64 {
        let request = tables.open("same", 1_000_000 + number);
        let attempt = tables.arrive(number, None, Some("same"));
        assert!(is_joined(&attempt), "one at a time");
        tables.joins.close(&request, at(1));
    }
    let [requests, spans, ids, ..] = tables.held();
    assert_eq!((requests, spans, ids), (0, CAPACITY, 0));
    tables.joins.sweep(at(100));
    assert_eq!(tables.held(), [0; 5]);
}

#[test]
fn without_a_front_each_attempt_has_its_row_and_knows_the_failed_ones_before() {
    let tables = tables(false);
    let done = |attempt: &HopAttempt| {
        let rows = tables.joins.ended(attempt, Some(Vec::new()), at(2));
        assert!(rows.is_some(), "at once");
    };
    let first = tables.arrive(1, Some(100), Some("id"));
    assert!(first.needs_row);
    assert_eq!(first.so_far(), (1, Vec::new()));
    end(&first, Some(503), Outcome::Rejected);
    let second = tables.arrive(2, Some(100), Some("id"));
    let (count, failed) = second.so_far();
    assert_eq!((count, failed.len(), failed[0].status), (2, 1, Some(503)));
    done(&first);
    end(&second, Some(200), Outcome::Ok);
    done(&second);
    assert_eq!(tables.counted("nothing"), 0, "it is no failure to join");
    let third = tables.arrive(3, Some(100), Some("id"));
    assert_eq!(third.so_far().1.len(), 1);
    done(&third);
    // One that answers at once is not remembered.
    let alone = tables.arrive(4, Some(200), None);
    end(&alone, Some(200), Outcome::Ok);
    done(&alone);
    let [_, spans, _, ended, _] = tables.held();
    assert_eq!((spans, ended), (1, 3));
    tables.joins.sweep(at(3).plus_nanos(MEMORY));
    assert_eq!(tables.held(), [0; 5]);
}

#[test]
fn the_tables_are_bounded_and_what_they_refuse_is_counted() {
    let tables = tables(true);
    let dropped = |times: usize| {
        let text = tables.metrics.text();
        let line = format!("queuescope_joins_dropped_total {times}\n");
        assert!(text.contains(&line), "{text}");
    };
    let numbers = 1..=CAPACITY as u64;
    let requests = numbers.map(|number| tables.open(&number.to_string(), 1_000_000 + number));
    let requests: Vec<_> = requests.collect();
    assert!(tables.joins.open("one more").is_none());
    dropped(1);
    tables.joins.close(&requests[CAPACITY - 1], at(1));
    let more = tables.joins.open("one more");
    assert!(more.is_some(), "an ended one makes room");
    // A request takes so many, and all together so many.
    let full = CAPACITY / MOST_ATTEMPTS + 1;
    for number in 0..(full * (MOST_ATTEMPTS + 1)) as u64 {
        let parent = 1_000_001 + number / (MOST_ATTEMPTS as u64 + 1);
        assert!(is_joined(&tables.arrive(number + 1, Some(parent), None)));
    }
    assert_eq!(tables.held()[4], CAPACITY);
    dropped(1 + CAPACITY / MOST_ATTEMPTS + MOST_ATTEMPTS + 1);
}

#[test]
fn while_two_processes_share_the_hops_nobody_tells_anothers_attempts() {
    let tables = tables(true);
    let joins = &tables.joins;
    let attempt = tables.arrive(1, None, None);
    let end = |now| joins.ended(&attempt, Some(Vec::new()), now);
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

/// The front's row waits for what the other leg of its request tells, and no longer than it may.
#[test]
fn a_row_waits_for_its_other_leg() {
    let tables = tables(true);
    let joins = &tables.joins;
    let row = || vec![Sample::whole().open_row()];
    let host = |rows: Option<Vec<Row>>| rows.unwrap()[0].prefill_host.take().unwrap();
    // It has told: the row is there at once.
    let told = tables.leg(1, 1, None).told;
    told.lock().ended = Some(at(2));
    assert_eq!(host(joins.with_leg(&told, row(), at(2))), "server:1");
    // It may still tell, until then or the process's end.
    for (number, is_over) in [(2, false), (3, true)] {
        let leg = tables.leg(number, number, None).told;
        assert!(joins.with_leg(&leg, row(), at(2)).is_none());
        assert!(joins.sweep(at(7)).is_empty());
        leg.lock().host = "told later".to_owned();
        let mut given = match is_over {
            true => joins.flush(),
            false => joins.sweep(at(8)),
        };
        assert_eq!((given.len(), &*host(given.pop())), (1, "told later"));
    }
}

/// A router passes on no header: the id in the reply tells whose the legs are, whether or not the hops are done with them.
#[test]
fn the_id_of_a_reply_joins_both_legs() {
    for has_ended in [false, true] {
        let tables = tables(true);
        let joins = &tables.joins;
        let request = tables.open("id", 100);
        let legs = [1, 2].map(|number| tables.leg(number, 7, None));
        for leg in &legs {
            assert!(leg.needs_row);
            joins.has_reply(leg, &format!("reply {}", leg.span), at(1));
        }
        let id = format!("reply {}", span(2));
        let waits = |leg| joins.ended(leg, Some(Vec::new()), at(2)).is_none();
        let end = || assert!(legs.iter().all(waits));
        if has_ended {
            end();
        }
        joins.replied(&request, "another");
        joins.replied(&request, &id);
        // Who has read the id may name it, and gets nothing by it.
        joins.has_reply(&tables.arrive(3, None, None), &id, at(1));
        joins.replied(&request, &id);
        joins.replied(&request, &format!("reply {}", span(1)));
        if !has_ended {
            end();
        }
        let closed = joins.close(&request, at(3));
        let (last, leg) = (closed.last.unwrap(), closed.leg.unwrap());
        let leg = leg.lock().span;
        assert_eq!((last.span, leg, closed.count), (span(2), span(1), 1));
        assert!(closed.is_named && closed.others.is_empty());
        assert!(
            joins.sweep(at(100)).is_empty(),
            "they are in the front's row"
        );
        let counts = ["reply", "nothing"].map(|by| tables.counted(by));
        assert_eq!(counts, [2, 0]);
    }
}

/// A client names its requests itself: by an id that one of them has at a time its attempts are joined, by one that two have none.
#[test]
fn an_id_that_a_client_names_joins_what_it_names_alone() {
    let tables = tables(true);
    let joins = &tables.joins;
    let pair = |first: u64| {
        let roles = [ServerRole::Prefill, ServerRole::Decode];
        let legs = (first..).zip(roles);
        let legs = legs.map(|(number, role)| tables.leg(number, first, Some(role)));
        let legs: Vec<HopAttempt> = legs.collect();
        legs.iter()
            .for_each(|leg| joins.has_reply(leg, "mine", at(1)));
        legs
    };
    for (first, is_alone) in [(1, true), (5, false), (9, true)] {
        let request = tables.open("id", 100 + first);
        let _legs = pair(first);
        let _others = (!is_alone).then(|| pair(first + 2));
        joins.replied(&request, "mine");
        let closed = joins.close(&request, at(3));
        let joined = closed.last.map(|last| last.span);
        assert_eq!(joined, is_alone.then_some(span(first + 1)));
        assert_eq!(closed.leg.is_some(), is_alone);
    }
    // Without a room each attempt is one sending.
    for count in [1, 2] {
        let request = tables.open("id", 200 + count);
        let numbers = (0..count).map(|number| 20 + 2 * count + number);
        let attempts: Vec<HopAttempt> = numbers.map(|n| tables.arrive(n, None, None)).collect();
        attempts
            .iter()
            .for_each(|one| joins.has_reply(one, "mine", at(1)));
        joins.replied(&request, "mine");
        let closed = joins.close(&request, at(3));
        assert_eq!(closed.last.is_some(), count == 1);
    }
}
