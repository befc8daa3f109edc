//! Tests of the join tables.

use super::attempts::MAX_ATTEMPTS;
use super::*;
use crate::request::sample::Sample;
use crate::request::{
    ClockOf, End, Endpoint, Moment, Observer, Outcome, ParentSpan, Relation, Side,
};

/// Join tables and their metrics.
struct Tables {
    joins: Joins,
    metrics: Metrics,
}

/// An attempt that has arrived and, in a process without a front, its request.
struct Arrived {
    data: SharedAttempt,
    request: Option<SharedRequest>,
}

impl Arrived {
    fn needs_row(&self) -> bool {
        !self.data.lock().is_joined
    }

    /// The attempts of its request that have arrived so far, with this one as the one that answers.
    fn so_far(&self) -> RequestAttempts {
        let span = self.data.lock().span;
        self.request.as_ref().unwrap().lock().attempts(Some(span))
    }
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
    /// Joins an attempt that came with the span `parent`, if any, and the request id `id`.
    fn arrive(&self, number: u64, parent: Option<u64>, id: Option<&str>) -> Arrived {
        let host = format!("server:{number}");
        let mut attempt = Attempt::new(span(number), "w0".into(), host, at(1));
        attempt.parent = parent.map(|parent| ParentSpan {
            trace: 1,
            span: span(parent),
        });
        let (data, request) = self.joins.join(attempt, id);
        Arrived { data, request }
    }

    /// Joins one of a request's two legs, which name a room.
    fn leg(&self, number: u64, room: u64, role: Option<ServerRole>) -> Arrived {
        let leg = self.arrive(number, None, None);
        (leg.data.lock().room, leg.data.lock().role) = (Some(room), role);
        leg.data.lock().body_timing.piece(at(1), 0);
        self.joins.add_room(&leg.data, room, at(1));
        leg
    }

    fn end(&self, attempt: &Arrived, rows: Option<Vec<Row>>, now: Stamp) -> Option<Vec<Row>> {
        self.joins
            .end(&attempt.data, attempt.request.clone(), rows, now)
    }

    /// Opens a request of the front with one id, sent with one span.
    fn open(&self, id: &str, sent_with: u64) -> SharedRequest {
        self.joins.open(id, span(sent_with))
    }

    /// Closes a request that was sent.
    fn close(&self, request: &SharedRequest) -> RequestAttempts {
        self.joins.close(request, true, at(3))
    }

    fn counted(&self, by: &str) -> u64 {
        self.metrics.joins.with(&[by]).get()
    }

    /// Returns the sizes of all tables, so that a leak shows.
    fn sizes(&self) -> [usize; 3] {
        let table = self.joins.table.lock();
        let by_span = &table.by_span;
        let spans = [by_span.entries.len(), by_span.since.len()];
        [spans[0], table.by_id.len(), spans[1]]
    }
}

fn end(attempt: &Arrived, status: Option<u16>, outcome: Outcome) {
    let mut data = attempt.data.lock();
    (data.status, data.outcome, data.ended) = (status, Some(outcome), Some(at(2)));
}

#[test]
fn an_attempt_after_the_end_is_counted_and_in_no_row() {
    let tables = tables(true);
    let request = tables.open("id", 100);
    tables.arrive(1, Some(100), Some("id"));
    tables.close(&request);
    tables.joins.sweep(at(50));
    assert!(!tables.arrive(4, Some(100), Some("id")).needs_row());
    assert_eq!(tables.counted("late"), 1);
    tables.joins.sweep(at(3).plus_nanos(MEMORY + 1));
    assert_eq!(tables.sizes(), [0; 3]);
    // One that was never sent is not remembered.
    let refused = tables.open("id", 101);
    tables.joins.close(&refused, false, at(200));
    assert_eq!(tables.sizes(), [0; 3]);
}

#[test]
fn the_attempt_that_answered_stands_for_the_request() {
    for (answered_by, last, failed) in [
        // Without a response, the last one.
        (None, Some(2), 1),
        (Some(1), Some(1), 1),
        // If that is at another process, all of ours failed.
        (Some(77), None, 2),
    ] {
        let tables = tables(true);
        let request = tables.open("id", 100);
        let _both = [1, 2].map(|n| tables.arrive(n, Some(100), None));
        if let Some(by) = answered_by {
            request.lock().answered_by = Some(span(by));
        }
        let closed = tables.close(&request);
        assert_eq!(closed.last.map(|last| last.span), last.map(span));
        let count = failed as u32 + 1;
        assert_eq!((closed.others.len(), closed.count), (failed, count));
    }
}

#[test]
fn requests_that_share_an_id_are_never_joined_by_it() {
    let tables = tables(true);
    // By their spans they are.
    let (one, two) = (tables.open("same", 100), tables.open("same", 200));
    assert!(tables.arrive(1, None, Some("same")).needs_row());
    tables.arrive(11, Some(200), Some("same"));
    tables.arrive(12, Some(100), Some("same"));
    // A response that names an attempt of neither changes nothing.
    one.lock().answered_by = Some(span(1));
    let closed = tables.close(&one);
    assert_eq!((closed.last, closed.others[0].span), (None, span(12)));
    // An attempt may still be a retry of the one that has ended.
    let alone = tables.arrive(3, None, Some("same"));
    assert!(alone.needs_row());
    assert_eq!(tables.counted("ambiguous"), 2);
    let closed = tables.close(&two);
    assert_eq!(closed.last.unwrap().span, span(11));
    let now = tables.end(&alone, Some(Vec::new()), at(4));
    assert!(now.is_none());
    let waits = tables.joins.sweep(at(9)).is_empty();
    assert!(waits, "another process may yet take it");
    assert_eq!(tables.joins.sweep(at(10)).len(), 1);
    assert_eq!(tables.counted("nothing"), 1);
}

#[test]
fn a_client_may_give_all_its_requests_one_id() {
    let tables = tables(true);
    for number in 1..=CAPACITY as u64 {
        let request = tables.open("same", 1_000_000 + number);
        let attempt = tables.arrive(number, None, Some("same"));
        assert!(!attempt.needs_row(), "one at a time");
        tables.close(&request);
    }
    let [spans, ids, _] = tables.sizes();
    assert_eq!((spans, ids), (CAPACITY, 0));
    tables.joins.sweep(at(100));
    assert_eq!(tables.sizes(), [0; 3]);
}

#[test]
fn without_a_front_each_attempt_has_its_row_and_the_failed_ones_before_it() {
    let tables = tables(false);
    let done = |attempt: &Arrived| {
        let rows = tables.end(attempt, Some(Vec::new()), at(2));
        assert!(rows.is_some(), "at once");
    };
    let first = tables.arrive(1, Some(100), Some("id"));
    assert!(first.needs_row());
    assert_eq!((first.so_far().count, first.so_far().failed.len()), (1, 0));
    end(&first, Some(503), Outcome::Rejected);
    let second = tables.arrive(2, Some(100), Some("id"));
    let RequestAttempts { count, failed, .. } = second.so_far();
    assert_eq!((count, failed.len(), failed[0].status), (2, 1, Some(503)));
    done(&first);
    end(&second, Some(200), Outcome::Ok);
    done(&second);
    assert_eq!(tables.counted("nothing"), 0, "it is no failure to join");
    let third = tables.arrive(3, Some(100), Some("id"));
    assert_eq!(third.so_far().failed.len(), 1);
    done(&third);
    // A first attempt that answers is not kept.
    let alone = tables.arrive(4, Some(200), None);
    end(&alone, Some(200), Outcome::Ok);
    done(&alone);
    let [spans, _, ended] = tables.sizes();
    assert_eq!((spans, ended), (1, 3));
    tables.joins.sweep(at(3).plus_nanos(MEMORY));
    assert_eq!(tables.sizes(), [0; 3]);
}

#[test]
fn a_request_has_a_bounded_number_of_attempts_and_those_dropped_are_counted() {
    let tables = tables(true);
    let _request = tables.open("id", 100);
    for number in 0..=MAX_ATTEMPTS as u64 {
        assert!(!tables.arrive(number + 1, Some(100), None).needs_row());
    }
    assert_eq!(tables.metrics.joins_dropped.with(&[]).get(), 1);
}

#[test]
fn while_two_processes_share_the_hops_attempts_of_the_other_have_no_rows() {
    let tables = tables(true);
    let joins = &tables.joins;
    let attempt = tables.arrive(1, None, None);
    let end = |now| tables.end(&attempt, Some(Vec::new()), now);
    let swept = || joins.sweep(at(1_000)).len();
    assert!(end(at(10)).is_none() && end(at(11)).is_none());
    assert_eq!((swept(), tables.counted("nothing")), (2, 2));
    assert!(end(at(20)).is_none());
    // The attempt ended before this process knew of the other.
    joins.share_until(Stamp::MAX);
    assert_eq!(swept(), 0);
    // The other process ended at 30: only attempts that ended before may be its.
    joins.share_until(at(30));
    assert!(end(at(29)).is_none() && end(at(31)).is_none());
    assert_eq!(swept(), 1);
    let counts = ["nothing", "elsewhere"].map(|by| tables.counted(by));
    assert_eq!(counts, [3, 2]);
}

/// The front's row waits for the report of its request's other leg, for a limited time.
#[test]
fn a_row_waits_for_its_other_leg() {
    let tables = tables(true);
    let joins = &tables.joins;
    let row = || vec![Sample::whole().open_row()];
    let host = |rows: Option<Vec<Row>>| rows.unwrap()[0].prefill_host.take().unwrap();
    // The leg has reported: the row is returned at once.
    let ended = tables.leg(1, 1, None).data;
    ended.lock().ended = Some(at(2));
    assert_eq!(host(joins.with_leg(&ended, row(), at(2))), "server:1");
    // It may report until the limit or the process's end; once it has ended, the row waits no longer.
    for (number, ended, end) in [
        (2, None, at(8)),
        (3, None, Stamp::MAX),
        (4, Some(at(6)), at(7)),
    ] {
        let leg = tables.leg(number, number, None).data;
        assert!(joins.with_leg(&leg, row(), at(2)).is_none());
        assert!(joins.sweep(at(7)).is_empty());
        leg.lock().host = "reported later".to_owned();
        leg.lock().ended = ended;
        let mut rows = joins.sweep(end);
        assert_eq!((rows.len(), &*host(rows.pop())), (1, "reported later"));
    }
}

/// Behind a router that passes on no header, the id in the response joins the legs, before and after their end.
#[test]
fn the_id_in_a_response_joins_both_legs() {
    for has_ended in [false, true] {
        let tables = tables(true);
        let joins = &tables.joins;
        let request = tables.open("id", 100);
        let legs = [1, 2].map(|number| tables.leg(number, 7, None));
        for leg in &legs {
            assert!(leg.needs_row());
            let span = leg.data.lock().span;
            joins.add_response_id(&leg.data, &format!("response {span}"), at(1));
        }
        let id = format!("response {}", span(2));
        let waits = |leg| tables.end(leg, Some(Vec::new()), at(2)).is_none();
        let end = || assert!(legs.iter().all(waits));
        if has_ended {
            end();
        }
        joins.response_read(&request, "another");
        joins.response_read(&request, &id);
        // An attempt that uses the id later is not joined.
        joins.add_response_id(&tables.arrive(3, None, None).data, &id, at(1));
        joins.response_read(&request, &id);
        joins.response_read(&request, &format!("response {}", span(1)));
        if !has_ended {
            end();
        }
        let closed = tables.close(&request);
        let (last, leg) = (closed.last.unwrap(), closed.prefill_leg.unwrap());
        let leg = leg.lock().span;
        assert_eq!((last.span, leg, closed.count), (span(2), span(1), 1));
        assert_eq!(closed.body_timing.first, Some(at(1)));
        assert!(closed.others.is_empty());
        // They are in the front's row.
        assert!(joins.sweep(at(100)).is_empty());
        let counts = ["reply", "nothing"].map(|by| tables.counted(by));
        assert_eq!(counts, [2, 0]);
    }
}

/// An id that comes again is kept for as long as the first time.
#[test]
fn what_was_joined_is_no_reason_to_forget_the_next_one_early() {
    let tables = tables(true);
    let joins = &tables.joins;
    for (number, seconds) in [(1, 1), (2, 50)] {
        let request = tables.open("id", 100 + number);
        let attempt = tables.arrive(number, None, None);
        joins.add_response_id(&attempt.data, "again", at(seconds));
        joins.sweep(at(seconds + 20));
        joins.response_read(&request, "again");
        assert!(joins.close(&request, true, at(seconds)).last.is_some());
    }
}

/// Clients can choose the id in the response: attempts of two requests with one id are joined to none.
#[test]
fn an_id_that_a_client_chose_joins_only_what_it_is_unique_for() {
    let tables = tables(true);
    let joins = &tables.joins;
    let pair = |first: u64, roles: [Option<ServerRole>; 2]| {
        let legs = (first..).zip(roles);
        let legs = legs.map(|(number, role)| tables.leg(number, first, role));
        legs.inspect(|leg| joins.add_response_id(&leg.data, "mine", at(1)))
            .collect::<Vec<_>>()
    };
    let known = [ServerRole::Prefill, ServerRole::Decode].map(Some);
    for (first, roles, is_alone) in [
        (1, known, true),
        (5, known, false),
        (9, known, true),
        (13, [None; 2], true),
    ] {
        let request = tables.open("id", 100 + first);
        let _legs = pair(first, roles);
        let _others = (!is_alone).then(|| pair(first + 2, roles));
        joins.response_read(&request, "mine");
        let closed = tables.close(&request);
        assert_eq!(closed.count, u32::from(is_alone));
        // Which of two servers of unknown roles answered stays open.
        let is_known = is_alone && roles == known;
        let answered = closed.last.map(|last| last.span);
        assert_eq!(answered, is_known.then_some(span(first + 1)));
        assert_eq!(closed.prefill_leg.is_some(), is_known);
        assert_eq!(closed.body_timing.first.is_some(), is_known);
    }
    assert_eq!(tables.counted("reply"), 6);
    // Without a room each attempt is one sending.
    for count in [1, 2] {
        let request = tables.open("id", 200 + count);
        let numbers = (0..count).map(|number| 20 + 2 * count + number);
        let attempts: Vec<Arrived> = numbers.map(|n| tables.arrive(n, None, None)).collect();
        for one in &attempts {
            joins.add_response_id(&one.data, "mine", at(1));
        }
        joins.response_read(&request, "mine");
        let closed = tables.close(&request);
        assert_eq!(closed.last.is_some(), count == 1);
        // Each further piece of a response that is no stream names its id again: what is joined is not joined once more.
        let later = tables.open("id", 300 + count);
        for one in &attempts {
            joins.add_response_id(&one.data, "mine", at(1));
        }
        joins.response_read(&later, "mine");
        assert!(tables.close(&later).last.is_none());
    }
}

/// Without a front's row, the decode leg's row has what the prefill leg reported.
#[test]
fn legs_without_a_front_are_one_row() {
    for has_front in [true, false] {
        let tables = tables(has_front);
        let _prefill = tables.leg(1, 7, None);
        let decode = tables.leg(2, 7, Some(ServerRole::Decode));
        let rows = vec![Sample::whole().open_row()];
        assert!(tables.end(&decode, Some(rows), at(2)).is_none());
        assert!(tables.joins.sweep(at(7)).is_empty());
        if !has_front {
            // The successor has none of these attempts.
            tables.joins.share_until(Stamp::MAX);
        }
        // Later, or when the process ends.
        let end = if has_front { at(8) } else { Stamp::MAX };
        let rows = tables.joins.sweep(end).pop().unwrap();
        assert_eq!(rows[0].prefill_host.as_deref(), Some("server:1"));
    }
}

/// A prefill leg that was refused at once waits for the decode leg, and gets no row beside that one's.
#[test]
fn a_refused_prefill_leg_is_no_row_of_its_own_though_it_was_first() {
    for (has_front, comes) in [(false, true), (false, false), (true, true), (true, false)] {
        let tables = tables(has_front);
        let joins = &tables.joins;
        let arrive = |number, role| {
            let leg = tables.leg(number, 7, Some(role));
            leg.data.lock().worker = role.name().to_owned();
            leg
        };
        let row = || Some(vec![Sample::whole().open_row()]);
        let refused = arrive(1, ServerRole::Prefill);
        end(&refused, Some(502), Outcome::ProxyError);
        assert!(tables.end(&refused, row(), at(2)).is_none());
        if comes {
            let decode = arrive(2, ServerRole::Decode);
            end(&decode, None, Outcome::ClientAbort);
            assert!(tables.end(&decode, row(), at(3)).is_none());
        }
        let rows = joins.sweep(at(100)).len();
        assert_eq!(rows, 1, "{has_front} {comes}");
    }
}

#[test]
fn an_overload_that_no_server_answered_is_the_routers() {
    let none = RequestAttempts::default();
    let of_router = [408, 429, 500, 503].map(|status| none.leave_to_router(status));
    assert_eq!(of_router, [true, true, false, true]);
    // The router closed this one, as it had no decode server for it.
    let mut closed = Attempt::new(span(1), "p0".into(), "prefill:1".into(), at(1));
    closed.outcome = Some(Outcome::ClientAbort);
    for (answered, expected) in [(None, true), (Some(503), false)] {
        closed.status = answered;
        let attempts = RequestAttempts {
            last: Some(closed.clone()),
            count: 1,
            ..RequestAttempts::default()
        };
        let of_router = [408, 503].map(|status| attempts.leave_to_router(status));
        assert_eq!(of_router, [false, expected]);
    }
}

#[test]
fn a_router_that_passed_the_head_on_before_prefill_replied_held_nothing() {
    let at = |ms: i64| Stamp::from_nanos(1_795_000_000_000_000_000 + ms * 1_000_000);
    let span = SpanId::new(1).unwrap();
    let mut leg = Attempt::new(span, "p0".to_owned(), "p".to_owned(), at(0));
    leg.body_timing.piece(at(100), 0);
    for (head, held) in [(50, None), (110, Some(at(100)))] {
        let mut observer = Observer::new(Side::Front, Endpoint::Generate, String::new());
        let timeline = &mut observer.row_mut().timeline;
        timeline.relate(ClockOf::Hop, Relation::Same);
        timeline.set(Moment::WorkerFirstToken, at(60));
        timeline.set(Moment::FirstToken, at(120));
        observer.response_head(200, Some("text/event-stream"), false, at(head));
        let mut rows = observer.finish(End::Complete, at(200));
        put_prefill(&leg, &mut rows);
        assert_eq!(rows[0].timeline.raw(Moment::PrefillReplied), held, "{head}");
    }
}
