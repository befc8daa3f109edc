//! What the table of rows that wait promises.

use proptest::prelude::*;

use super::*;
use crate::offset::Offset;
use crate::request::attempt::{Attempt, SpanId};
use crate::request::observer::{End, Observer};
use crate::request::outcome::Outcome;
use crate::request::timeline::{ClockOf, Moment, Relation, Side};

const TRACE: u128 = 0xab_u128 << 64 | 7;

fn at(ms: i64) -> Stamp {
    Stamp::from_nanos(ms * 1_000_000)
}

/// A request of one row for each of these ids.
fn rows(id: &str, rids: &[Option<&str>]) -> Vec<Record> {
    let mut observer = Observer::new(Side::Front, Endpoint::Chat, id.into());
    let facts = observer.facts_mut();
    facts.trace_id = Some(format!("{TRACE:032x}"));
    facts.span = SpanId::new(5);
    let row = observer.finish(End::Complete, at(1)).into_records(None);
    let row = row.into_iter().next().unwrap();
    let rows = rids.iter().map(|rid| {
        let mut row = row.clone();
        row.sequence.engine_id = rid.map(str::to_owned);
        row
    });
    rows.collect()
}

fn told(rid: &str) -> Told {
    Told {
        rid: Some(rid.into()),
        trace: Some(TRACE),
        output_tokens: Some(3),
        ..Told::of(TimingSource::Trace)
    }
}

fn nothing(_: Ask<'_>) -> Vec<Told> {
    Vec::new()
}

/// What a request that goes out was told: row, id, and whether by the row's own.
fn matches(joined: &Joined) -> Vec<(usize, &str, bool)> {
    let told = joined.told.iter();
    told.map(|told| {
        (
            told.row,
            told.told.rid.as_deref().unwrap_or(""),
            told.is_sure,
        )
    })
    .collect()
}

/// A request whose client left before any id came, when its time is over.
fn without_id(tolds: &[Told]) -> Vec<Joined> {
    let mut table = Table::new(8);
    for told in tolds {
        assert_eq!(table.told(told.clone(), at(0)).0, Came::Early);
    }
    let waits = table.ended(rows("q", &[None]), TimingSource::Trace, at(9));
    assert!(waits.unwrap().is_none());
    table.due(at(9), &mut nothing)
}

#[test]
fn a_request_goes_out_when_all_of_its_sequences_were_told_of() {
    let mut table = Table::new(8);
    let two = rows("a", &[Some("x"), Some("y")]);
    assert_eq!(table.told(told("y"), at(0)).0, Came::Early);
    assert!(
        table
            .ended(two, TimingSource::Trace, at(9))
            .unwrap()
            .is_none()
    );
    // A log line is taken, but not waited for.
    let line = Told {
        source: TimingSource::Log,
        ..told("x")
    };
    assert!(table.told(line, at(1)).1.is_none());
    let (came, joined) = table.told(told("x"), at(1));
    assert_eq!(came, Came::Joined);
    let joined = joined.unwrap();
    assert_eq!(
        matches(&joined),
        [(1, "y", true), (0, "x", true), (0, "x", true)]
    );
    assert_eq!((table.waiting(), table.next_deadline()), (0, None));
}

#[test]
fn at_its_deadline_it_goes_out_with_what_there_is() {
    let mut table = Table::new(8);
    let two = rows("a", &[Some("x"), Some("y")]);
    assert!(
        table
            .ended(two, TimingSource::Trace, at(9))
            .unwrap()
            .is_none()
    );
    assert!(table.due(at(8), &mut nothing).is_empty());
    let mut asked = Vec::new();
    let out = table.due(at(9), &mut |ask| {
        asked.push(format!("{ask:?}"));
        (ask == Ask::Rid("x"))
            .then(|| told("x"))
            .into_iter()
            .collect()
    });
    let trace = format!("Trace({TRACE})");
    assert_eq!(asked, [&*trace, "Rid(\"x\")", "Rid(\"y\")"]);
    assert_eq!(matches(&out[0]), [(0, "x", true)]);
    assert_eq!(table.told(told("y"), at(10)).0, Came::Late);
    assert_eq!(table.told(told("x"), at(10)).0, Came::Again);
}

#[test]
fn a_row_without_an_id_takes_the_one_request_of_its_trace() {
    assert_eq!(matches(&without_id(&[told("x")])[0]), [(0, "x", false)]);
    // Those that never ran do not count.
    let phantom = Told {
        output_tokens: Some(0),
        ..told("p")
    };
    let out = without_id(&[phantom.clone(), told("x"), phantom]);
    assert_eq!(matches(&out[0]), [(0, "x", false)]);
    // Two that ran: nobody knows which.
    assert_eq!(matches(&without_id(&[told("x"), told("y")])[0]), []);
    // But for the one below our own span.
    let below = Told {
        parent: Some(5),
        ..told("y")
    };
    assert_eq!(
        matches(&without_id(&[told("x"), below])[0]),
        [(0, "y", false)]
    );
    // A server's own 64 bits of a trace.
    let own = Told {
        trace: Some(7),
        ..told("x")
    };
    assert_eq!(matches(&without_id(&[own])[0]), []);
    // A router that began a trace of its own names our request.
    let by_router = Told {
        trace: Some(9 << 64),
        request_id: Some("q".into()),
        ..told("x")
    };
    assert_eq!(matches(&without_id(&[by_router])[0]), [(0, "x", false)]);
}

#[test]
fn a_row_with_an_id_takes_nothing_under_another() {
    let mut table = Table::new(8);
    table.told(told("first-attempt"), at(0));
    let row = rows("a", &[Some("second")]);
    assert!(
        table
            .ended(row, TimingSource::Trace, at(9))
            .unwrap()
            .is_none()
    );
    assert_eq!(matches(&table.due(at(9), &mut nothing)[0]), []);
}

#[test]
fn stages_whose_root_is_lost_are_of_the_one_request_of_a_trace() {
    let stages = Told {
        rid: None,
        ..told("")
    };
    for (came_with, wanted) in [(None, 1), (SpanId::new(6), 0)] {
        let mut table = Table::new(8);
        let mut row = rows("a", &[Some("x")]);
        row[0].facts.parent_span = came_with;
        assert!(
            table
                .ended(row, TimingSource::Trace, at(9))
                .unwrap()
                .is_none()
        );
        let mut parts = |ask: Ask<'_>| match ask {
            Ask::Rid(_) => Vec::new(),
            Ask::Trace(trace) => vec![Told {
                trace: Some(trace),
                ..stages.clone()
            }],
        };
        let out = table.due(at(9), &mut parts);
        // A client's own trace may hold other requests, of which more is to come.
        assert_eq!(matches(&out[0]).len(), wanted);
    }
}

#[test]
fn what_is_told_again_with_a_name_takes_the_place_of_the_first() {
    let mut table = Table::new(8);
    let named = Told {
        request_id: Some("q".into()),
        ..told("x")
    };
    table.told(told("x"), at(0));
    table.told(named, at(0));
    assert_eq!(table.early.len().0, 1);
}

#[test]
fn what_is_told_of_nobody_is_forgotten_by_age_and_by_number() {
    let mut table = Table::new(3);
    for rid in ["a", "b", "c", "d"] {
        table.told(told(rid), at(0));
    }
    assert_eq!(table.forget(at(299_999)), 1);
    let one = |table: &mut Table, rid| {
        let rows = rows("q", &[Some(rid)]);
        table
            .ended(rows, TimingSource::Trace, at(9))
            .unwrap()
            .is_some()
    };
    assert!(one(&mut table, "b") && !one(&mut table, "a"));
    assert_eq!(table.forget(at(300_001)), 2);
    assert!(!one(&mut table, "c"));
    assert_eq!(table.early.len().1, 0);
}

#[test]
fn without_room_a_request_comes_back_at_once() {
    let mut table = Table::new(1);
    let row = || rows("q", &[Some("x")]);
    assert!(
        table
            .ended(row(), TimingSource::Trace, at(9))
            .unwrap()
            .is_none()
    );
    assert_eq!(
        table
            .ended(row(), TimingSource::Trace, at(9))
            .unwrap_err()
            .len(),
        1
    );
}

#[test]
fn behind_a_hop_the_servers_spans_lie_below_the_hops() {
    let mut row = rows("q", &[None]);
    row[0].facts.parent_span = SpanId::new(6);
    let hop = SpanId::new(77).unwrap();
    let attempt = Attempt::new(hop, "w".into(), "h".into(), at(0));
    row[0].facts.trace.attempts.push(attempt);
    let mut table = Table::new(8);
    table.told(told("other"), at(0));
    let own = Told {
        parent: Some(77),
        ..told("x")
    };
    table.told(own, at(0));
    waits(&mut table, row, 9);
    let out = table.due(at(9), &mut nothing);
    assert_eq!(matches(&out[0]), [(0, "x", false)]);
}

#[test]
fn below_a_hop_every_row_of_a_request_is_told_of_at_once() {
    // Ids of a client's own making, and a router that begins traces of its own.
    let mut two = rows("q", &[Some("x_0"), Some("x_1")]);
    let hop = SpanId::new(77).unwrap();
    let attempt = Attempt::new(hop, "w".into(), "h".into(), at(0));
    two[0].facts.trace.attempts.push(attempt);
    let below = |rid| Told {
        parent: Some(77),
        ..elsewhere(rid)
    };
    let mut table = Table::new(8);
    waits(&mut table, two, 9);
    assert_eq!(table.told(below("x_0"), at(1)).0, Came::Joined);
    let (came, joined) = table.told(below("x_1"), at(1));
    assert_eq!(came, Came::Joined);
    let joined = joined.unwrap();
    assert_eq!(matches(&joined), [(0, "x_0", true), (1, "x_1", true)]);
}

/// Another request's spans under the same id: another trace.
fn elsewhere(rid: &str) -> Told {
    Told {
        trace: Some(TRACE + 1),
        ..told(rid)
    }
}

/// A request of one row with this id that was sent at this moment.
fn sent(rid: &str, trace: u128, ms: i64) -> Vec<Record> {
    let mut row = rows("q", &[Some(rid)]);
    row[0].timeline.set(Moment::Forwarded, at(ms));
    row[0].facts.trace_id = Some(format!("{trace:032x}"));
    row
}

fn waits(table: &mut Table, rows: Vec<Record>, until: i64) {
    let joined = table.ended(rows, TimingSource::Trace, at(until));
    assert!(joined.unwrap().is_none());
}

#[test]
fn of_an_id_that_is_used_again_each_takes_what_is_of_its_trace() {
    let mut table = Table::new(8);
    // Another client's, before and after.
    table.told(elsewhere("x"), at(0));
    waits(&mut table, sent("x", TRACE, 1), 9);
    assert_eq!(table.told(elsewhere("x"), at(2)).0, Came::Early);
    let (_, joined) = table.told(told("x"), at(3));
    let joined = joined.unwrap();
    assert_eq!(joined.told[0].told.trace, Some(TRACE));
    assert_eq!(matches(&joined), [(0, "x", true)]);
    // Its own once more is nobody else's, that of a later request is.
    assert_eq!(table.told(told("x"), at(4)).0, Came::Again);
    let later = Told {
        trace: Some(TRACE + 2),
        ..told("x")
    };
    assert_eq!(table.told(later, at(5)).0, Came::Early);
    let later = sent("x", TRACE + 2, 4);
    let joined = table.ended(later, TimingSource::Trace, at(9)).unwrap();
    assert_eq!(joined.unwrap().told[0].told.trace, Some(TRACE + 2));
}

#[test]
fn what_comes_late_is_not_the_next_ones() {
    let mut table = Table::new(8);
    waits(&mut table, sent("x", TRACE, 0), 1);
    assert_eq!(table.due(at(1), &mut nothing).len(), 1);
    waits(&mut table, sent("x", TRACE + 1, 2), 9);
    assert_eq!(table.told(told("x"), at(3)).0, Came::Late);
    assert_eq!(table.told(elsewhere("x"), at(4)).0, Came::Joined);
}

#[test]
fn two_that_wait_under_one_id_get_each_its_own() {
    let mut table = Table::new(8);
    waits(&mut table, sent("x", TRACE, 0), 9);
    waits(&mut table, sent("x", TRACE + 1, 1), 9);
    for (told, trace) in [(told("x"), TRACE), (elsewhere("x"), TRACE + 1)] {
        let joined = table.told(told, at(2)).1.unwrap();
        assert_eq!(trace_of(&joined.rows[0]), Some(trace));
    }
}

#[test]
fn in_another_trace_it_is_taken_at_the_end_if_it_is_alone() {
    const RANDOM: &str = "162c0ee15e8440c09a363c8d738bcd77";
    let end = |rid: &str, tolds: &[(Told, i64)], row: Vec<Record>| {
        let mut table = Table::new(8);
        for (told, came) in tolds {
            assert_eq!(table.told(told.clone(), at(*came)).0, Came::Early);
        }
        waits(&mut table, row, 9);
        let out = table.due(at(9), &mut nothing);
        let own = out[0].told.iter().map(|told| told.is_sure);
        (
            own.collect::<Vec<_>>(),
            table.told(elsewhere(rid), at(10)).0,
        )
    };
    let one = |rid| [(elsewhere(rid), 2)];
    // An id that a client may have made bounds no clock.
    let row = |rid| sent(rid, TRACE, 1);
    assert_eq!(end("x", &one("x"), row("x")), (vec![false], Came::Again));
    let random = end(RANDOM, &one(RANDOM), row(RANDOM));
    assert_eq!(random, (vec![true], Came::Again));
    assert_eq!(end("x", &[], row("x")), (vec![], Came::Early));
    assert_eq!(end(RANDOM, &[], row(RANDOM)), (vec![], Came::Late));
    // What came before it was sent; two of them; what was received too early.
    assert!(end("x", &[(elsewhere("x"), 0)], row("x")).0.is_empty());
    let other = Told {
        trace: Some(TRACE + 2),
        ..told("x")
    };
    let two = [(elsewhere("x"), 2), (other, 2)];
    assert!(end("x", &two, row("x")).0.is_empty());
    for (received, taken) in [(-400, 0), (-50, 1)] {
        let mut row = row("x");
        let offset = Offset {
            nanos: 0,
            error_nanos: 100_000_000,
        };
        row[0]
            .timeline
            .relate(ClockOf::Engine, Relation::Apart(offset));
        let told = Told {
            received: Some(at(received)),
            ..elsewhere("x")
        };
        assert_eq!(end("x", &[(told, 2)], row).0.len(), taken);
    }
}

#[test]
fn of_a_log_the_newest_line_since_the_sending_is_the_rows() {
    let line = |tokens| Told {
        trace: None,
        output_tokens: Some(tokens),
        ..Told {
            source: TimingSource::Log,
            ..told("x")
        }
    };
    let mut table = Table::new(8);
    for (tokens, came) in [(1, 0), (2, 3), (3, 4)] {
        table.told(line(tokens), at(came));
    }
    let ended = |table: &mut Table, sent: Vec<Record>| {
        let joined = table.ended(sent, TimingSource::Log, at(9)).unwrap();
        joined.map(|joined| joined.told[0].told.output_tokens)
    };
    assert_eq!(ended(&mut table, sent("x", TRACE, 1)), Some(Some(3)));
    // It has its line: the next is of the next.
    assert_eq!(table.told(line(4), at(6)).0, Came::Early);
    assert_eq!(ended(&mut table, sent("x", TRACE, 5)), Some(Some(4)));
    // SGLang logs none whose client has left.
    let mut left = sent("x", TRACE, 7);
    left[0].facts.outcome = Outcome::ClientAbort;
    assert_eq!(ended(&mut table, left), None);
    assert_eq!(table.told(line(5), at(8)).0, Came::Early);
}

#[derive(Clone, Debug)]
enum Step {
    Ended(u8, u8, u8),
    Told(u8, bool),
    Due(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..12u8, 0..12u8, 0..50u8).prop_map(|(a, b, wait)| Step::Ended(a, b, wait)),
        (0..12u8, any::<bool>()).prop_map(|(rid, log)| Step::Told(rid, log)),
        (0..50u8).prop_map(Step::Due),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn every_request_comes_out_once_whatever_the_order(steps in steps()) {
        let mut table = Table::new(5);
        let (mut now, mut went_in) = (0, 0);
        let mut out: Vec<String> = Vec::new();
        let name = |joined: &Joined| joined.rows[0].facts.req_id.clone();
        for step in steps {
            match step {
                Step::Ended(a, b, wait) => {
                    let (a, b) = (a.to_string(), b.to_string());
                    // An id of 11 is none, and ids may be there twice.
                    let rids = [a, b].map(|rid| Some(rid).filter(|rid| rid != "11"));
                    let rids: Vec<_> = rids.iter().map(Option::as_deref).collect();
                    let rows = rows(&went_in.to_string(), &rids);
                    went_in += 1;
                    match table.ended(rows, TimingSource::Trace, at(now + i64::from(wait))) {
                        Ok(joined) => out.extend(joined.iter().map(name)),
                        Err(rows) => out.push(rows[0].facts.req_id.clone()),
                    }
                }
                Step::Told(rid, is_log) => {
                    let source = if is_log { TimingSource::Log } else { TimingSource::Trace };
                    let told = Told { source, ..told(&rid.to_string()) };
                    out.extend(table.told(told, at(now)).1.iter().map(name));
                }
                Step::Due(later) => {
                    now += i64::from(later);
                    out.extend(table.due(at(now), &mut nothing).iter().map(name));
                }
            }
            prop_assert!(table.waiting() <= 5 && table.early.len().0 <= 5);
        }
        out.extend(table.due(at(now + 1000), &mut nothing).iter().map(name));
        prop_assert_eq!((table.waiting(), table.by_rid.len()), (0, 0));
        out.sort_by_key(|id| id.parse::<u32>().unwrap());
        let all: Vec<String> = (0..went_in).map(|id: u32| id.to_string()).collect();
        prop_assert_eq!(out, all);
    }
}
