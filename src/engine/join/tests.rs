//! Which report each waiting row gets.

use super::*;
use crate::engine::otlp::{Scheduler, SpanKind, Stage};
use crate::engine::report_store::tests::span;
use crate::request::{Attempt, Endpoint, Moment, Outcome, Row, Side, SpanId};

mod any_order;

const TRACE: u128 = 0xab_u128 << 64 | 7;
const TRACED: TimingSource = TimingSource::Trace;
/// Engine ids as a server makes them.
const RANDOM: [&str; 2] = [
    "162c0ee15e8440c09a363c8d738bcd77",
    "262c0ee15e8440c09a363c8d738bcd77",
];

fn at(ms: i64) -> Stamp {
    Stamp::from_nanos(ms * 1_000_000)
}

/// A request with a row for each of these engine ids.
fn rows(id: &str, rids: &[Option<&str>]) -> Vec<Row> {
    let rows = rids.iter().map(|rid| Row {
        outcome: Some(Outcome::Ok),
        trace_id: Some(format!("{TRACE:032x}")),
        span_id: SpanId::new(5),
        engine_id: rid.map(str::to_owned),
        ..Row::new(Side::Front, Endpoint::Chat, id.into())
    });
    rows.collect()
}

/// A report of three tokens, in [`TRACE`].
fn report(rid: &str) -> EngineReport {
    EngineReport {
        rid: Some(rid.into()),
        trace: Some(TRACE),
        output_tokens: Some(3),
        ..EngineReport::of(TRACED)
    }
}

/// The report with a change.
fn changed(mut report: EngineReport, change: impl FnOnce(&mut EngineReport)) -> EngineReport {
    change(&mut report);
    report
}

/// A report below this span.
fn below(parent: u64, rid: &str) -> EngineReport {
    changed(report(rid), |report| report.parent = Some(parent))
}

/// A report in this trace.
fn in_trace(trace: u128, rid: &str) -> EngineReport {
    changed(report(rid), |report| report.trace = Some(trace))
}

/// The report, below a router's span that names our request.
fn named(report: EngineReport) -> EngineReport {
    changed(report, |report| report.request_id = Some("q".into()))
}

fn log_line(report: EngineReport) -> EngineReport {
    EngineReport {
        source: TimingSource::Log,
        trace: None,
        ..report
    }
}

/// The spans that give this report; their ids differ in each call.
fn spans(report: &EngineReport) -> Vec<EngineSpan> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static IDS: AtomicU64 = AtomicU64::new(1000);
    let first = IDS.fetch_add(10, Ordering::Relaxed);
    let span = |id, parent, kind| span(report.trace.unwrap(), id, parent, kind);
    let mut spans = vec![
        span(first + 1, first, SpanKind::Scheduler(Scheduler::default())),
        span(first + 2, first + 1, SpanKind::Stage(Stage::Waiting)),
        span(first + 3, first + 1, SpanKind::Stage(Stage::Prefill)),
    ];
    let mut parent = report.parent.unwrap_or(0);
    if let Some(name) = &report.request_id {
        parent = first + 4;
        let request_id = name.as_str().into();
        spans.push(span(parent, 0, SpanKind::Router { request_id }));
    }
    if report.rid.is_some() {
        let root = EngineReport {
            parent: Some(parent),
            request_id: None,
            ..report.clone()
        };
        spans.push(span(first, parent, SpanKind::Root(Box::new(root))));
    }
    spans
}

impl JoinTable {
    /// Adds a report. Returns whether it is late, and the requests that it completes.
    fn receive(&mut self, report: EngineReport, now: Stamp) -> (bool, Vec<Joined>) {
        let late = match report.source {
            TimingSource::Log => self.add_log_line(report, now),
            _ => {
                let spans = spans(&report).into_iter();
                spans.map(|span| self.add_span(span, now)).last() == Some(true)
            }
        };
        (late, self.take_ready(Stamp::from_nanos(0)))
    }

    /// Adds an ended request. Returns it if it is complete.
    fn add(&mut self, rows: Vec<Row>, wanted: TimingSource, until: i64) -> Option<Joined> {
        let ended = EndedRequest {
            rows,
            expected_source: wanted,
            at: at(until - 3),
            deadline: at(until),
        };
        self.add_request(ended).unwrap();
        self.take_ready(Stamp::from_nanos(0)).pop()
    }

    fn add_waiting(&mut self, rows: Vec<Row>, until: i64) {
        assert!(self.add(rows, TRACED, until).is_none());
    }
}

/// A table in which a request waits until 9 ms.
fn table_with(rows: Vec<Row>) -> JoinTable {
    let mut table = JoinTable::new(8);
    table.add_waiting(rows, 9);
    table
}

fn is_certain(of: &Match) -> bool {
    of.strength < MatchStrength::Alone
}

/// The matches of a released request: row, engine id, and whether they are certain.
fn matches<'a>(joined: &'a Joined) -> Vec<(usize, &'a str, bool)> {
    let rid = |of: &'a Match| of.candidate.report.rid.as_deref().unwrap_or("");
    let matches = joined.matches.iter();
    matches
        .map(|of| (of.row, rid(of), is_certain(of)))
        .collect()
}

/// What is released at the deadline of a request, before which these reports came.
fn at_deadline(reports: &[EngineReport], rows: Vec<Row>) -> Joined {
    let mut table = JoinTable::new(8);
    for report in reports {
        assert!(!table.receive(report.clone(), at(0)).0);
    }
    table.add_waiting(rows, 9);
    table.take_ready(at(9)).remove(0)
}

#[test]
fn a_request_is_released_when_all_of_its_sequences_are_reported() {
    let mut table = JoinTable::new(8);
    table.receive(report("y"), at(0));
    table.add_waiting(rows("a", &[Some("x"), Some("y")]), 9);
    // A log line is used, but not waited for.
    assert!(table.receive(log_line(report("x")), at(1)).1.is_empty());
    let (_, joined) = table.receive(report("x"), at(1));
    let (x, y) = ((0, "x", true), (1, "y", true));
    assert_eq!(matches(&joined[0]), [x, x, y]);
    assert!(table.waiting() == 0 && table.store.is_within(0));
}

#[test]
fn at_its_deadline_a_request_is_released_with_the_reports_that_there_are() {
    let [x, y] = RANDOM;
    let mut table = table_with(rows("a", &[Some(x), Some(y)]));
    assert!(table.take_ready(at(8)).is_empty());
    let mut part = spans(&report(x));
    part.retain(|span| span.kind != SpanKind::Stage(Stage::Prefill));
    for span in part {
        table.add_span(span, at(8));
    }
    assert!(table.take_ready(at(2)).is_empty());
    let out = table.take_ready(at(9));
    assert_eq!(matches(&out[0]), [(0, x, true)]);
    assert!(out[0].matches[0].candidate.report.queue_end.is_some());
    // The report that it lacked is late; the one that it had is not.
    for rid in [x, y] {
        let both = [report(rid), log_line(report(rid))];
        assert_eq!(both.map(|of| table.receive(of, at(10)).0), [rid == y; 2]);
    }
    assert!(table.store.is_within(0), "neither is kept");
}

#[test]
fn a_row_without_an_id_takes_the_one_request_of_its_trace() {
    let phantom = changed(report("p"), |report| report.output_tokens = Some(0));
    for (reports, expected) in [
        (vec![report("x")], Some("x")),
        // Requests that never ran do not count.
        (vec![phantom.clone(), report("x"), phantom], Some("x")),
        // Of two that ran, either may be the row's.
        (vec![report("x"), report("y")], None),
        // Unless one is below our own span.
        (vec![report("x"), below(5, "y")], Some("y")),
        // In a trace of its own, unless a router names our request there.
        (vec![in_other_trace("x")], None),
        (vec![named(in_trace(9 << 64, "x"))], Some("x")),
    ] {
        let expected: Vec<_> = expected.map(|rid| (0, rid, false)).into_iter().collect();
        // The client left before the engine id was known.
        let joined = at_deadline(&reports, rows("q", &[None]));
        assert_eq!(matches(&joined), expected, "{reports:?}");
    }
    // A number of 64 bits may be another trace, which a server began.
    let mut row = rows("q", &[None]);
    row[0].trace_id = Some(format!("{:032x}", 7));
    assert!(matches(&at_deadline(&[in_trace(7, "x")], row)).is_empty());
}

#[test]
fn stages_without_a_root_belong_to_the_only_request_of_a_trace() {
    let rootless = [changed(report(""), |report| report.rid = None)];
    // A client's own trace may hold other requests, whose roots may still arrive.
    for (parent, expected) in [(None, 1), (SpanId::new(6), 0)] {
        let mut row = rows("a", &[Some("x")]);
        row[0].parent_span_id = parent;
        assert_eq!(at_deadline(&rootless, row).matches.len(), expected);
    }
}

/// Rows of a request with an attempt at a hop, below which the server's spans lie.
fn behind_a_hop(rids: &[Option<&str>]) -> Vec<Row> {
    let attempt = Attempt::new(SpanId::new(77).unwrap(), "w".into(), "h".into(), at(0));
    let mut rows = rows("q", rids);
    rows[0].parent_span_id = SpanId::new(6);
    rows[0].internal.trace.attempts.push(attempt);
    rows
}

#[test]
fn below_a_hop_all_rows_of_a_request_are_matched_before_the_deadline_and_one_without_an_id_then() {
    let row = behind_a_hop(&[None]);
    let joined = at_deadline(&[report("other"), below(77, "x")], row);
    assert_eq!(matches(&joined), [(0, "x", false)]);
    // The client chose the ids, and the router begins traces of its own.
    let ours = |rid| changed(in_other_trace(rid), |report| report.parent = Some(77));
    let mut table = table_with(behind_a_hop(&[Some("x_0"), Some("x_1")]));
    assert!(table.receive(ours("x_0"), at(1)).1.is_empty());
    let (_, joined) = table.receive(ours("x_1"), at(1));
    assert_eq!(matches(&joined[0]), [(0, "x_0", true), (1, "x_1", true)]);
}

/// A report in another trace.
fn in_other_trace(rid: &str) -> EngineReport {
    in_trace(TRACE + 1, rid)
}

/// A request of one row with this engine id and trace, sent at this time.
fn sent_at(rid: &str, trace: u128, ms: i64) -> Vec<Row> {
    let mut row = rows("q", &[Some(rid)]);
    row[0].timeline.set(Moment::Forwarded, at(ms));
    row[0].trace_id = Some(format!("{trace:032x}"));
    row
}

#[test]
fn rows_with_the_same_id_get_the_reports_of_their_traces() {
    let mut table = JoinTable::new(8);
    // Reports of another client's request, before and after.
    table.receive(in_other_trace("x"), at(0));
    table.add_waiting(sent_at("x", TRACE, 1), 9);
    assert!(matches!(&table.receive(in_other_trace("x"), at(2)), (false, out) if out.is_empty()));
    let (_, joined) = table.receive(report("x"), at(3));
    assert_eq!(joined[0].matches[0].candidate.report.trace, Some(TRACE));
    assert_eq!(matches(&joined[0]), [(0, "x", true)]);
    // A second report of it is no other row's. That of a later request is.
    assert!(!table.receive(report("x"), at(4)).0);
    let later = in_trace(TRACE + 2, "x");
    assert!(!table.receive(later, at(5)).0);
    let joined = table.add(sent_at("x", TRACE + 2, 4), TRACED, 9).unwrap();
    assert_eq!(joined.matches[0].candidate.report.trace, Some(TRACE + 2));
}

#[test]
fn two_waiting_requests_with_one_id_get_their_own_reports() {
    let mut table = table_with(sent_at("x", TRACE, 0));
    table.add_waiting(sent_at("x", TRACE + 1, 1), 9);
    for (report, trace) in [(report("x"), TRACE), (in_other_trace("x"), TRACE + 1)] {
        let joined = table.receive(report, at(2)).1;
        let candidate = &joined[0].matches[0].candidate;
        assert_eq!(candidate.report.trace, Some(trace));
        let own = joined[0].request.rows[0].trace_id.clone();
        assert_eq!(own, Some(format!("{trace:032x}")));
    }
    // In one trace, the row above whose span it is gets it.
    let [other, mut own] = [0, 1].map(|ms| sent_at("x", TRACE, ms));
    own[0].span_id = SpanId::new(6);
    table.add_waiting(other, 9);
    table.add_waiting(own, 10);
    let (_, joined) = table.receive(below(6, "x"), at(3));
    assert_eq!(joined.len(), 1);
    assert_eq!(joined[0].request.rows[0].span_id, SpanId::new(6));
}

#[test]
fn two_requests_with_one_id_get_one_each_of_the_log_lines_that_are_read_at_once() {
    let mut table = JoinTable::new(8);
    for trace in [TRACE, TRACE + 1] {
        let waits = table.add(sent_at("x", trace, 0), TimingSource::Log, 9);
        assert!(waits.is_none());
    }
    for _ in 0..2 {
        table.add_log_line(log_line(report("x")), at(1));
    }
    let released = [1, 2, 3].map(|now| table.take_ready(at(now)).len());
    assert_eq!(released, [1, 1, 0]);
}

#[test]
fn the_routers_span_may_arrive_last() {
    let mut table = table_with(sent_at("x", TRACE, 0));
    let mut spans = spans(&named(in_other_trace("x")));
    spans.sort_by_key(|span| matches!(span.kind, SpanKind::Router { .. }));
    let router = spans.pop().unwrap();
    for span in spans {
        table.add_span(span, at(1));
    }
    assert!(table.take_ready(at(2)).is_empty());
    table.add_span(router, at(2));
    assert_eq!(matches(&table.take_ready(at(2))[0]), [(0, "x", true)]);
}

#[test]
fn at_the_deadline_the_only_report_with_a_servers_id_is_taken_though_its_trace_differs() {
    let [random, other] = RANDOM;
    let end = |rid: &str, reports: &[(EngineReport, i64)]| {
        let mut table = JoinTable::new(8);
        for (report, arrived) in reports {
            assert!(!table.receive(report.clone(), at(*arrived)).0);
        }
        table.add_waiting(sent_at(rid, TRACE, 1), 9);
        let out = table.take_ready(at(9));
        let own = Vec::from_iter(out[0].matches.iter().map(is_certain));
        (own, table.receive(in_other_trace(rid), at(10)).0)
    };
    // One with an id that a client may have chosen may be another request's.
    for (rid, taken) in [("x", vec![]), (random, vec![true])] {
        assert_eq!(end(rid, &[(in_other_trace(rid), 2)]), (taken, false));
        // A late report is recognized only by an id that is never reused.
        assert_eq!(end(rid, &[]), (vec![], rid == random));
    }
    // Not taken: one with another id, in the row's own trace too; one that arrived before the sending; one of two.
    let two = [
        (in_other_trace(random), 2),
        (in_trace(TRACE + 2, random), 2),
    ];
    for reports in [
        &[(in_other_trace(other), 2)][..],
        &[(report(other), 2)],
        &[(in_other_trace(random), 0)],
        &two,
    ] {
        assert!(end(random, reports).0.is_empty(), "{reports:?}");
    }
}

#[test]
fn a_row_gets_the_nearest_log_line_after_its_sending() {
    let log_line = |tokens| {
        changed(log_line(report("x")), |report| {
            report.output_tokens = Some(tokens)
        })
    };
    let mut table = JoinTable::new(8);
    for (tokens, arrived) in [(1, 0), (2, 3), (3, 5)] {
        table.receive(log_line(tokens), at(arrived));
    }
    let ended = |table: &mut JoinTable, rows: Vec<Row>| {
        let joined = table.add(rows, TimingSource::Log, 9);
        joined.map(|joined| joined.matches[0].candidate.report.output_tokens)
    };
    assert_eq!(ended(&mut table, sent_at("x", TRACE, 1)), Some(Some(3)));
    // It has its line: the next line is the next request's.
    assert!(!table.receive(log_line(4), at(6)).0);
    assert_eq!(ended(&mut table, sent_at("x", TRACE, 5)), Some(Some(4)));
    // SGLang logs no request whose client has disconnected.
    let mut left = sent_at("x", TRACE, 7);
    left[0].outcome = Some(Outcome::ClientAbort);
    assert_eq!(ended(&mut table, left), None);
    assert!(matches!(&table.receive(log_line(5), at(8)), (false, out) if out.is_empty()));
}
