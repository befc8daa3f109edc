//! Whatever comes, what is held is bounded.

use proptest::prelude::*;

use super::*;
use crate::engine::span::{Scheduler, Stage};
use crate::request::sequence::TimingSource;

const MOST: usize = 40;

impl Spans {
    /// Spans and lines that are held, and what they are found by.
    pub(in crate::engine) fn held(&self) -> usize {
        self.all.len
    }
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        4 => (0..60u64).prop_map(root_of),
        2 => Just(scheduler()),
        1 => Just(Part::Stage(Stage::Process)),
        2 => Just(Part::Stage(Stage::Waiting)),
        2 => Just(Part::Stage(Stage::Prefill)),
        1 => Just(Part::Router { request_id: "name".into() }),
    ]
}

fn scheduler() -> Part {
    Part::Scheduler(Scheduler::default())
}

fn root_of(rid: u64) -> Part {
    Part::Root(Box::new(Told {
        rid: Some(rid.to_string()),
        ..Told::of(TimingSource::Trace)
    }))
}

fn span(trace: u128, id: u64, parent: u64, part: Part) -> EngineSpan {
    EngineSpan {
        trace,
        id,
        parent,
        start: Stamp::from_nanos(0),
        end: Stamp::from_nanos(1),
        part,
        retractions: 0,
    }
}

fn at(seconds: i64) -> Stamp {
    Stamp::from_nanos(seconds * NANOS)
}

proptest! {
    #[test]
    fn no_table_grows_beyond_what_it_holds(
        // Of few traces and ids, so that they meet.
        batches in prop::collection::vec(
            (prop::collection::vec((0..4u128, 1..30u64, 0..30u64, part()), 1..60), 0..300_i64), 1..30),
        asked in 0..60u32,
    ) {
        let mut spans = Spans::new(MOST);
        let mut now = 0;
        for (batch, seconds) in batches {
            now += seconds;
            for (trace, id, parent, part) in batch {
                spans.add(span(trace, id, parent, part), at(now));
            }
            spans.forget(at(now));
            prop_assert!(spans.held() <= MOST);
            for report in spans.by_rid(&asked.to_string()).iter().chain(&spans.by_trace(u128::from(asked % 4))) {
                spans.take(report);
            }
            prop_assert_eq!(spans.by_rid(&asked.to_string()).len(), 0);
        }
        // Stages of what may still run are looked at again.
        for hours in 1..4 {
            spans.forget(at(now + 3600 * hours));
        }
        prop_assert!(spans.held() == 0);
    }
}

#[test]
fn legs_without_a_room_are_joined_by_the_trace_if_that_has_one_of_each() {
    let leg = |id: u64, role, room| {
        let told = Told {
            rid: Some(id.to_string()),
            role: Some(role),
            room,
            ..Told::of(TimingSource::Trace)
        };
        span(1, id, 0, Part::Root(Box::new(told)))
    };
    let (prefill, decode) = (ServerRole::Prefill, ServerRole::Decode);
    for (room, others, expected) in [
        (None, &[None][..], Some("2")),
        (None, &[None, None], None),
        (None, &[Some(7)], None),
        (Some(7), &[None, Some(7)], Some("3")),
    ] {
        let mut spans = Spans::new(1000);
        spans.add(leg(1, decode, room), at(0));
        for (other, id) in others.iter().zip(2..) {
            spans.add(leg(id, prefill, *other), at(0));
        }
        let found = spans.by_rid("1").remove(0).told.prefill;
        let rid = found.and_then(|told| told.rid);
        assert_eq!(rid.as_deref(), expected, "{room:?} {others:?}");
    }
}

#[test]
fn of_roots_under_one_id_the_first_counts() {
    let mut spans = Spans::new(1000);
    for rid in 0..5000 {
        spans.add(span(1, 7, 0, root_of(rid)), at(0));
    }
    assert!(spans.by_rid("4999").is_empty());
    let [first] = &spans.by_rid("0")[..] else {
        panic!("one");
    };
    spans.take(first);
    assert!(spans.held() == 0);
}

#[test]
fn a_trace_of_very_many_is_found_by_ids_alone() {
    let mut spans = Spans::new(100_000);
    let many = ALIKE as u64 + 1;
    for id in 1..=many {
        spans.add(span(1, id, 0, root_of(id)), at(0));
    }
    assert!(spans.by_trace(1).is_empty());
    spans.take(&spans.by_rid("17")[0].clone());
    assert_eq!(spans.by_trace(1).len(), ALIKE);
}

/// What prefills has told all long before what decodes ends, and a trace may have many requests.
#[test]
fn what_still_runs_is_kept_beside_what_is_over_in_its_trace() {
    let mut spans = Spans::new(100);
    spans.add(span(7, 2, 1, scheduler()), at(0));
    spans.add(span(7, 1, 0, root_of(1)), at(0));
    spans.add(span(7, 5, 4, Part::Stage(Stage::Waiting)), at(1));
    for second in 1..=1700 {
        spans.forget(at(second));
        assert!(spans.spans(7).count() > 0, "{second}");
    }
    for second in 1701..=2500 {
        spans.forget(at(second));
    }
    assert_eq!(spans.spans(7).count(), 0, "at some time it is over");
}

/// A long stream tells at its begin that it has waited, and much else comes until its end.
#[test]
fn what_still_runs_is_kept_while_others_come_and_go() {
    let mut spans = Spans::new(100);
    spans.add(span(7, 3, 2, Part::Stage(Stage::Waiting)), at(0));
    spans.add(span(7, 4, 2, Part::Stage(Stage::Prefill)), at(0));
    let mut forgotten = 0;
    for second in 1..=1000 {
        let (trace, now) = (100 + second as u128, at(second as i64));
        spans.add(span(trace, 1, 0, root_of(second)), now);
        spans.add(span(trace, 2, 1, scheduler()), now);
        forgotten += spans.forget(at(second as i64));
        assert!(spans.held() <= 100, "{}", spans.held());
        assert_eq!(spans.spans(7).count(), 2, "{second}");
    }
    assert!((960..=970).contains(&forgotten), "{forgotten}");
    spans.add(span(7, 2, 1, scheduler()), at(1001));
    let report = spans.add(span(7, 1, 0, root_of(5000)), at(1001)).unwrap();
    assert!(report.is_whole, "{report:?}");
}
