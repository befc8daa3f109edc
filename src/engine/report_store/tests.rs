//! The store stays bounded, and running requests outlive ended ones.

use proptest::prelude::*;

use super::*;
use crate::engine::otlp::{Scheduler, Stage};

const CAPACITY: usize = 40;

impl ReportStore {
    /// Whether there are at most so many spans, and keys of them.
    pub(in crate::engine) fn is_within(&self, capacity: usize) -> bool {
        self.spans_by_trace.len <= capacity && self.traces_by_key.len <= capacity
    }
}

fn kind() -> impl Strategy<Value = SpanKind> {
    prop_oneof![
        4 => (0..60u64).prop_map(root_of),
        2 => Just(scheduler()),
        1 => Just(SpanKind::Stage(Stage::Process)),
        2 => Just(SpanKind::Stage(Stage::Waiting)),
        2 => Just(SpanKind::Stage(Stage::Prefill)),
        1 => Just(SpanKind::Router { request_id: "name".into() }),
    ]
}

fn scheduler() -> SpanKind {
    SpanKind::Scheduler(Scheduler::default())
}

fn root_of(rid: u64) -> SpanKind {
    SpanKind::Root(Box::new(EngineReport {
        rid: Some(rid.to_string()),
        ..EngineReport::of(TimingSource::Trace)
    }))
}

pub(in crate::engine) fn span(trace: u128, id: u64, parent: u64, kind: SpanKind) -> EngineSpan {
    EngineSpan {
        trace,
        id,
        parent,
        start: Stamp::from_nanos(0),
        end: Stamp::from_nanos(1),
        kind,
        retractions: 0,
    }
}

fn at(seconds: i64) -> Stamp {
    Stamp::from_nanos(seconds * NANOS)
}

proptest! {
    #[test]
    fn the_store_never_exceeds_its_capacity(
        // Few traces and ids, so that they collide.
        batches in prop::collection::vec(
            (prop::collection::vec((0..4u128, 1..30u64, 0..30u64, kind()), 1..60), 0..300_i64), 1..30),
        rid in 0..60u32,
    ) {
        let mut store = ReportStore::new(CAPACITY);
        let mut now = 0;
        for (batch, seconds) in batches {
            now += seconds;
            for (trace, id, parent, kind) in batch {
                store.add(span(trace, id, parent, kind), at(now));
            }
            drop(store.forget(at(now)));
            prop_assert!(store.is_within(CAPACITY));
            for candidate in store.by_rid(&rid.to_string()).iter().chain(&store.by_trace(u128::from(rid % 4))) {
                store.remove(candidate);
            }
            prop_assert_eq!(store.by_rid(&rid.to_string()).len(), 0);
        }
        // Stages of requests that may still run are kept longer.
        for hours in 1..4 {
            drop(store.forget(at(now + 3600 * hours)));
        }
        prop_assert!(store.is_within(0));
    }
}

#[test]
fn legs_are_joined_by_their_room() {
    let leg = |id: u64, role, room| {
        let report = EngineReport {
            rid: Some(id.to_string()),
            role: Some(role),
            room,
            ..EngineReport::of(TimingSource::Trace)
        };
        span(1, id, 0, SpanKind::Root(Box::new(report)))
    };
    for (room, expected) in [(None, None), (Some(7), Some("3"))] {
        let mut store = ReportStore::new(1000);
        store.add(leg(1, ServerRole::Decode, room), at(0));
        for (other, id) in [None, Some(7)].into_iter().zip(2..) {
            store.add(leg(id, ServerRole::Prefill, other), at(0));
        }
        let found = store.by_rid("1").remove(0).report.prefill;
        let rid = found.and_then(|prefill| prefill.rid);
        assert_eq!(rid.as_deref(), expected, "{room:?}");
    }
}

#[test]
fn requests_of_a_trace_with_too_many_are_found_by_their_ids_only() {
    let mut store = ReportStore::new(100_000);
    let count = MAX_REQUESTS_OF_TRACE as u64 + 1;
    for id in 1..=count {
        store.add(span(1, id, 0, root_of(id)), at(0));
    }
    assert!(store.by_trace(1).is_empty());
    assert_eq!(store.by_rid("1").len(), 1);
}

#[test]
fn spans_that_are_sent_twice_are_one_request() {
    let mut store = ReportStore::new(100);
    for _ in 0..2 {
        let mut prefill = span(7, 3, 2, SpanKind::Stage(Stage::Prefill));
        prefill.retractions = 1;
        store.add(prefill, at(0));
        store.add(span(7, 2, 1, scheduler()), at(0));
        store.add(span(7, 1, 0, root_of(5)), at(0));
    }
    let found = store.by_rid("5");
    assert_eq!((found.len(), store.spans(7).count()), (1, 3));
    assert_eq!(found[0].report.num_retractions, Some(1));
}

#[test]
fn a_running_request_is_kept_beside_ended_ones_of_its_trace() {
    let mut store = ReportStore::new(100);
    store.add(span(7, 2, 1, scheduler()), at(0));
    store.add(span(7, 1, 0, root_of(1)), at(0));
    store.add(span(7, 5, 4, SpanKind::Stage(Stage::Waiting)), at(1));
    for second in 1..=1700 {
        drop(store.forget(at(second)));
        assert!(store.spans(7).count() > 0, "{second}");
    }
    for second in 1701..=2500 {
        drop(store.forget(at(second)));
    }
    assert_eq!(store.spans(7).count(), 0, "it is dropped in the end");
}

/// The queue spans of a long stream arrive at its beginning, and many others before its end.
#[test]
fn a_running_request_is_kept_while_others_come_and_go() {
    let mut store = ReportStore::new(100);
    store.add(span(7, 3, 2, SpanKind::Stage(Stage::Waiting)), at(0));
    store.add(span(7, 4, 2, SpanKind::Stage(Stage::Prefill)), at(0));
    let mut dropped = 0;
    for second in 1..=1000 {
        let (trace, now) = (100 + second as u128, at(second as i64));
        store.add(span(trace, 1, 0, root_of(second)), now);
        store.add(span(trace, 2, 1, scheduler()), now);
        dropped += store.forget(at(second as i64)).count();
        assert!(store.is_within(100), "{second}");
        assert_eq!(store.spans(7).count(), 2, "{second}");
    }
    assert!((945..=960).contains(&dropped), "{dropped}");
    store.add(span(7, 2, 1, scheduler()), at(1001));
    store.add(span(7, 1, 0, root_of(5000)), at(1001));
    assert!(store.by_rid("5000")[0].is_complete);
}
