//! What the table of rows that wait promises.

use super::*;
use crate::engine::span::{Part, Scheduler, Stage};
use crate::offset::Offset;
use crate::request::attempt::{Attempt, SpanId};
use crate::request::endpoint::Endpoint;
use crate::request::observer::{End, Observer};
use crate::request::outcome::Outcome;
use crate::request::sequence::TimingSource;
use crate::request::timeline::{ClockOf, Moment, Relation, Side};

mod any_order;

const TRACE: u128 = 0xab_u128 << 64 | 7;
const TRACED: TimingSource = TimingSource::Trace;
/// As a server makes them.
const RANDOM: [&str; 2] = [
    "162c0ee15e8440c09a363c8d738bcd77",
    "262c0ee15e8440c09a363c8d738bcd77",
];

fn at(ms: i64) -> Stamp {
    Stamp::from_nanos(ms * 1_000_000)
}

/// A request of one row for each of these ids.
fn rows(id: &str, rids: &[Option<&str>]) -> Vec<Row> {
    let mut observer = Observer::new(Side::Front, Endpoint::Chat, id.into());
    let row = observer.row_mut();
    row.trace_id = Some(format!("{TRACE:032x}"));
    row.span_id = SpanId::new(5);
    let row = observer.finish(End::Complete, at(1));
    let row = row.into_iter().next().unwrap();
    let rows = rids.iter().map(|rid| {
        let mut row = row.clone();
        row.engine_id = rid.map(str::to_owned);
        row
    });
    rows.collect()
}

/// A request whose server tells three tokens of it, in this trace.
fn told(rid: &str) -> Told {
    Told {
        rid: Some(rid.into()),
        trace: Some(TRACE),
        output_tokens: Some(3),
        ..Told::of(TRACED)
    }
}

/// The same but for a change.
fn changed(mut told: Told, change: impl FnOnce(&mut Told)) -> Told {
    change(&mut told);
    told
}

/// The same below this span.
fn below(parent: u64, rid: &str) -> Told {
    changed(told(rid), |told| told.parent = Some(parent))
}

/// The same in this trace.
fn traced(trace: u128, rid: &str) -> Told {
    changed(told(rid), |told| told.trace = Some(trace))
}

/// The same that a router has named as our request.
fn named(told: Told) -> Told {
    changed(told, |told| told.request_id = Some("q".into()))
}

fn line(told: Told) -> Told {
    Told {
        source: TimingSource::Log,
        trace: None,
        ..told
    }
}

/// The spans of what is told; each time others.
fn spans(told: &Told) -> Vec<EngineSpan> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static IDS: AtomicU64 = AtomicU64::new(1000);
    let first = IDS.fetch_add(10, Ordering::Relaxed);
    let start = told.received.unwrap_or(at(1));
    let span = |id, parent, part| EngineSpan {
        trace: told.trace.unwrap(),
        id,
        parent,
        start,
        end: start.plus_nanos(1),
        part,
        retractions: 0,
    };
    let root = Told {
        rid: told.rid.clone(),
        output_tokens: told.output_tokens,
        ..Told::of(TRACED)
    };
    let mut spans = vec![
        span(first + 1, first, Part::Scheduler(Scheduler::default())),
        span(first + 2, first + 1, Part::Stage(Stage::Waiting)),
        span(first + 3, first + 1, Part::Stage(Stage::Prefill)),
    ];
    let mut parent = told.parent.unwrap_or(0);
    if let Some(name) = &told.request_id {
        parent = first + 4;
        let request_id = name.as_str().into();
        spans.push(span(parent, 0, Part::Router { request_id }));
    }
    if root.rid.is_some() {
        spans.push(span(first, parent, Part::Root(Box::new(root))));
    }
    spans
}

impl Table {
    /// Something is told: whether it is late, and what goes out by it.
    fn told(&mut self, told: Told, now: Stamp) -> (bool, Vec<Joined>) {
        let late = match told.source {
            TimingSource::Log => self.line(told, now),
            _ => {
                let spans = spans(&told).into_iter();
                spans.map(|span| self.span(span, now)).last() == Some(true)
            }
        };
        (late, self.whole())
    }

    /// A request has ended; what goes out by it.
    fn comes(&mut self, rows: Vec<Row>, wanted: TimingSource, until: i64) -> Option<Joined> {
        let ended = Ended {
            rows,
            wanted,
            at: at(until - 3),
        };
        self.ended(ended, at(until)).unwrap()
    }

    fn waits(&mut self, rows: Vec<Row>, until: i64) {
        assert!(self.comes(rows, TRACED, until).is_none());
    }
}

/// A table in which a request waits until 9 ms.
fn waiting(rows: Vec<Row>) -> Table {
    let mut table = Table::new(8);
    table.waits(rows, 9);
    table
}

/// What a request that goes out was told: row, id, and whether by the row's own.
fn matches<'a>(joined: &'a Joined) -> Vec<(usize, &'a str, bool)> {
    let rid = |of: &'a Match| of.report.told.rid.as_deref().unwrap_or("");
    let found = joined.found.iter();
    found.map(|of| (of.row, rid(of), of.is_sure)).collect()
}

/// A request whose client left before any id came, when its time is over.
fn without_id(tolds: &[Told]) -> Vec<Joined> {
    let mut table = Table::new(8);
    for told in tolds {
        assert!(!table.told(told.clone(), at(0)).0);
    }
    table.waits(rows("q", &[None]), 9);
    table.due(at(9))
}

#[test]
fn a_request_goes_out_when_all_of_its_sequences_were_told_of() {
    let mut table = Table::new(8);
    table.told(told("y"), at(0));
    table.waits(rows("a", &[Some("x"), Some("y")]), 9);
    // A log line is taken, but not waited for.
    assert!(table.told(line(told("x")), at(1)).1.is_empty());
    let (_, joined) = table.told(told("x"), at(1));
    let (x, y) = ((0, "x", true), (1, "y", true));
    assert_eq!(matches(&joined[0]), [x, x, y]);
    assert_eq!((table.waiting(), table.spans.held()), (0, 0));
}

#[test]
fn at_its_deadline_it_goes_out_with_what_there_is() {
    let [x, y] = RANDOM;
    let mut table = waiting(rows("a", &[Some(x), Some(y)]));
    assert!(table.due(at(8)).is_empty());
    let mut part = spans(&told(x));
    part.retain(|span| span.part != Part::Stage(Stage::Prefill));
    for span in part {
        table.span(span, at(8));
    }
    assert!(table.whole().is_empty());
    let out = table.due(at(9));
    assert_eq!(matches(&out[0]), [(0, x, true)]);
    assert!(out[0].found[0].report.told.queue_end.is_some());
    // What it lacked is late, what it had is not.
    assert!(table.told(told(y), at(10)).0);
    assert!(!table.told(told(x), at(10)).0);
    assert_eq!(table.spans.held(), 0);
}

#[test]
fn a_row_without_an_id_takes_the_one_request_of_its_trace() {
    let phantom = changed(told("p"), |told| told.output_tokens = Some(0));
    for (tolds, taken) in [
        (vec![told("x")], Some("x")),
        // Those that never ran do not count.
        (vec![phantom.clone(), told("x"), phantom], Some("x")),
        // Two that ran: nobody knows which.
        (vec![told("x"), told("y")], None),
        // But for the one below our own span.
        (vec![told("x"), below(5, "y")], Some("y")),
        // A server's own 64 bits of a trace.
        (vec![traced(7, "x")], None),
        // A router that began a trace of its own names our request.
        (vec![named(traced(9 << 64, "x"))], Some("x")),
    ] {
        let expected: Vec<_> = taken.map(|rid| (0, rid, false)).into_iter().collect();
        assert_eq!(matches(&without_id(&tolds)[0]), expected, "{tolds:?}");
    }
}

#[test]
fn stages_whose_root_is_lost_are_of_the_one_request_of_a_trace() {
    for (came_with, wanted) in [(None, 1), (SpanId::new(6), 0)] {
        let mut table = Table::new(8);
        let mut row = rows("a", &[Some("x")]);
        row[0].parent_span_id = came_with;
        table.waits(row, 9);
        table.told(changed(told(""), |told| told.rid = None), at(2));
        // A client's own trace may hold other requests, of which more is to come.
        assert_eq!(matches(&table.due(at(9))[0]).len(), wanted);
    }
}

#[test]
fn what_is_told_of_nobody_is_forgotten_by_age_and_by_number() {
    // A request of ours takes five spans and what they are found by.
    let mut table = Table::new(2);
    for trace in 1..=4 {
        table.told(traced(trace << 64, "a"), at(0));
    }
    assert!(table.forget(at(299_999)) >= 1);
    assert!(table.spans.held() <= 16);
    // It is looked for now and then.
    let forgotten = table.forget(at(305_000));
    assert!(forgotten >= 2, "{forgotten}");
    assert_eq!(table.spans.held(), 0);
}

/// A hop's attempt, below which the server's spans lie.
fn attempt() -> Attempt {
    Attempt::new(SpanId::new(77).unwrap(), "w".into(), "h".into(), at(0))
}

#[test]
fn behind_a_hop_the_servers_spans_lie_below_the_hops() {
    let mut row = rows("q", &[None]);
    row[0].parent_span_id = SpanId::new(6);
    row[0].more.trace.attempts.push(attempt());
    let mut table = Table::new(8);
    table.told(told("other"), at(0));
    table.told(below(77, "x"), at(0));
    table.waits(row, 9);
    assert_eq!(matches(&table.due(at(9))[0]), [(0, "x", false)]);
}

#[test]
fn below_a_hop_every_row_of_a_request_is_told_of_at_once() {
    // Ids of a client's own making, and a router that begins traces of its own.
    let mut two = rows("q", &[Some("x_0"), Some("x_1")]);
    two[0].more.trace.attempts.push(attempt());
    let ours = |rid| changed(elsewhere(rid), |told| told.parent = Some(77));
    let mut table = waiting(two);
    assert!(table.told(ours("x_0"), at(1)).1.is_empty());
    let (_, joined) = table.told(ours("x_1"), at(1));
    assert_eq!(matches(&joined[0]), [(0, "x_0", true), (1, "x_1", true)]);
}

/// Another request's spans under the same id: another trace.
fn elsewhere(rid: &str) -> Told {
    traced(TRACE + 1, rid)
}

/// A request of one row with this id that was sent at this moment.
fn sent(rid: &str, trace: u128, ms: i64) -> Vec<Row> {
    let mut row = rows("q", &[Some(rid)]);
    row[0].timeline.set(Moment::Forwarded, at(ms));
    row[0].trace_id = Some(format!("{trace:032x}"));
    row
}

#[test]
fn of_an_id_that_is_used_again_each_takes_what_is_of_its_trace() {
    let mut table = Table::new(8);
    // Another client's, before and after.
    table.told(elsewhere("x"), at(0));
    table.waits(sent("x", TRACE, 1), 9);
    assert!(matches!(&table.told(elsewhere("x"), at(2)), (false, out) if out.is_empty()));
    let (_, joined) = table.told(told("x"), at(3));
    assert_eq!(joined[0].found[0].report.told.trace, Some(TRACE));
    assert_eq!(matches(&joined[0]), [(0, "x", true)]);
    // Its own once more is nobody else's, that of a later request is.
    assert!(!table.told(told("x"), at(4)).0);
    let later = traced(TRACE + 2, "x");
    assert!(!table.told(later, at(5)).0);
    let joined = table.comes(sent("x", TRACE + 2, 4), TRACED, 9).unwrap();
    assert_eq!(joined.found[0].report.told.trace, Some(TRACE + 2));
}

#[test]
fn what_comes_late_or_under_another_id_is_not_the_next_ones() {
    let mut table = Table::new(8);
    table.told(told("first-attempt"), at(0));
    table.waits(rows("a", &[Some("second")]), 9);
    assert_eq!(matches(&table.due(at(9))[0]), []);

    let mut table = Table::new(8);
    table.waits(sent("x", TRACE, 0), 1);
    assert_eq!(table.due(at(1)).len(), 1);
    table.waits(sent("x", TRACE + 1, 2), 9);
    assert!(table.told(told("x"), at(3)).1.is_empty());
    assert_eq!(table.told(elsewhere("x"), at(4)).1.len(), 1);
}

#[test]
fn two_that_wait_under_one_id_get_each_its_own() {
    let mut table = waiting(sent("x", TRACE, 0));
    table.waits(sent("x", TRACE + 1, 1), 9);
    for (told, trace) in [(told("x"), TRACE), (elsewhere("x"), TRACE + 1)] {
        let joined = table.told(told, at(2)).1;
        let found = &joined[0].found[0].report;
        assert_eq!(found.told.trace, Some(trace));
        let own = joined[0].of.rows[0].trace_id.clone();
        assert_eq!(own, Some(format!("{trace:032x}")));
    }
    // Of one trace, the one below whose span it lies.
    let [other, mut own] = [0, 1].map(|ms| sent("x", TRACE, ms));
    own[0].span_id = SpanId::new(6);
    table.waits(other, 9);
    table.waits(own, 10);
    let (_, joined) = table.told(below(6, "x"), at(3));
    assert_eq!(joined.len(), 1);
    assert_eq!(joined[0].of.rows[0].span_id, SpanId::new(6));
}

#[test]
fn a_routers_name_for_it_may_come_last() {
    let mut table = waiting(sent("x", TRACE, 0));
    let mut spans = spans(&named(elsewhere("x")));
    spans.sort_by_key(|span| matches!(span.part, Part::Router { .. }));
    let router = spans.pop().unwrap();
    for span in spans {
        table.span(span, at(1));
    }
    assert!(table.whole().is_empty());
    table.span(router, at(2));
    assert_eq!(matches(&table.whole()[0]), [(0, "x", true)]);
}

#[test]
fn in_another_trace_it_is_taken_at_the_end_if_it_is_alone() {
    let [random, _] = RANDOM;
    let end = |rid: &str, tolds: &[(Told, i64)], row: Vec<Row>| {
        let mut table = Table::new(8);
        for (told, came) in tolds {
            assert!(!table.told(told.clone(), at(*came)).0);
        }
        table.waits(row, 9);
        let out = table.due(at(9));
        let own = out[0].found.iter().map(|found| found.is_sure);
        let own: Vec<bool> = own.collect();
        (own, table.told(elsewhere(rid), at(10)).0)
    };
    let one = |rid| [(elsewhere(rid), 2)];
    // An id that a client may have made bounds no clock.
    let row = |rid| sent(rid, TRACE, 1);
    for (rid, is_sure) in [("x", false), (random, true)] {
        assert_eq!(end(rid, &one(rid), row(rid)), (vec![is_sure], false));
        // What comes late is known by an id that nobody uses again.
        assert_eq!(end(rid, &[], row(rid)), (vec![], is_sure));
    }
    // What came before it was sent; two of them; what was received too early.
    assert!(end("x", &[(elsewhere("x"), 0)], row("x")).0.is_empty());
    let other = traced(TRACE + 2, "x");
    let two = [(elsewhere("x"), 2), (other, 2)];
    assert!(end("x", &two, row("x")).0.is_empty());
    for (received, taken) in [(-400, 0), (-50, 1)] {
        let mut row = row("x");
        let (nanos, error_nanos) = (0, 100_000_000);
        let apart = Relation::Apart(Offset { nanos, error_nanos });
        row[0].timeline.relate(ClockOf::Engine, apart);
        let told = changed(elsewhere("x"), |told| told.received = Some(at(received)));
        assert_eq!(end("x", &[(told, 2)], row).0.len(), taken);
    }
}

#[test]
fn of_a_log_the_nearest_line_since_the_sending_is_the_rows() {
    let line = |tokens| changed(line(told("x")), |told| told.output_tokens = Some(tokens));
    let mut table = Table::new(8);
    for (tokens, came) in [(1, 0), (2, 3), (3, 5)] {
        table.told(line(tokens), at(came));
    }
    let ended = |table: &mut Table, sent: Vec<Row>| {
        let joined = table.comes(sent, TimingSource::Log, 9);
        joined.map(|joined| joined.found[0].report.told.output_tokens)
    };
    assert_eq!(ended(&mut table, sent("x", TRACE, 1)), Some(Some(3)));
    // It has its line: the next is of the next.
    assert!(!table.told(line(4), at(6)).0);
    assert_eq!(ended(&mut table, sent("x", TRACE, 5)), Some(Some(4)));
    // SGLang logs none whose client has left.
    let mut left = sent("x", TRACE, 7);
    left[0].outcome = Some(Outcome::ClientAbort);
    assert_eq!(ended(&mut table, left), None);
    assert!(!table.told(line(5), at(8)).0);
}

#[test]
fn a_line_of_a_row_that_went_out_is_no_other_rows() {
    let [x, _] = RANDOM;
    let mut table = waiting(sent(x, TRACE, 1));
    assert_eq!(table.told(told(x), at(2)).1.len(), 1);
    assert!(!table.told(line(told(x)), at(3)).0);
    assert_eq!(table.spans.held(), 0);
}
