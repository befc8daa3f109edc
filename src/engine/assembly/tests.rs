//! Whatever comes, what is held is bounded.

use proptest::prelude::*;

use super::*;
use crate::engine::span::Scheduler;

const MOST: usize = 40;

fn part() -> impl Strategy<Value = Part> {
    let root = (0..60u32).prop_map(|rid| {
        Part::Root(Box::new(Root {
            rid: Some(rid.to_string().into()),
            ..Root::default()
        }))
    });
    prop_oneof![
        4 => root,
        2 => Just(Part::Scheduler(Scheduler::default())),
        1 => Just(Part::Process),
        2 => Just(Part::Waiting),
        2 => Just(Part::Prefill { retractions: 0 }),
        1 => Just(Part::Router { request_id: "name".into() }),
    ]
}

/// Of few traces and ids, so that they meet.
fn span() -> impl Strategy<Value = EngineSpan> {
    let ids = (0..4u128, 1..30u64, 0..30u64);
    (ids, part()).prop_map(|((trace, id, parent), part)| EngineSpan {
        trace,
        id,
        parent,
        start: Stamp::from_nanos(0),
        end: Stamp::from_nanos(1),
        part,
    })
}

fn root(id: u64, rid: u64) -> EngineSpan {
    EngineSpan {
        trace: 1,
        id,
        parent: 0,
        start: Stamp::from_nanos(0),
        end: Stamp::from_nanos(1),
        part: Part::Root(Box::new(Root {
            rid: Some(rid.to_string().into()),
            ..Root::default()
        })),
    }
}

fn assert_bounded(assembly: &Assembly) {
    let len = assembly.len();
    assert!(len <= assembly.most, "{len} spans");
    let requests = assembly.requests.len();
    let rids = assembly.rids.len();
    assert!(rids <= requests, "{rids} ids of {requests} requests");
    let mut listed = (0, 0);
    for trace in assembly.traces.values() {
        assert!(trace.requests.len() + trace.shares.len() > 0);
        listed.0 += trace.requests.len();
        listed.1 += trace.shares.len();
    }
    assert_eq!(listed, (requests, assembly.shares.len()));
    let order = assembly.ended.len() + assembly.running.len();
    assert!(order <= 2 * len + SPARE, "{order} entries of {len} spans");
    let ranks = assembly
        .requests
        .values()
        .map(|request| request.shares.len());
    assert!(ranks.max().unwrap_or(0) <= RANKS);
}

proptest! {
    #[test]
    fn no_table_grows_beyond_what_it_holds(
        batches in prop::collection::vec((prop::collection::vec(span(), 1..60), 0..3_i64), 1..30),
        asked in 0..60u32,
    ) {
        let mut assembly = Assembly::new(MOST);
        let mut now = Stamp::from_nanos(0);
        for (spans, seconds) in batches {
            now = now.plus_nanos(seconds * NANOS);
            assembly.add(spans, now);
            assert_bounded(&assembly);
            assembly.take_rid(&asked.to_string());
            assembly.take_trace(u128::from(asked % 4));
        }
        assembly.add(Vec::new(), now);
        assert_bounded(&assembly);
        assembly.expire(Stamp::from_nanos(i64::MAX));
        assert!(assembly.is_empty());
        let left = assembly.rids.len() + assembly.traces.len();
        prop_assert_eq!(left + assembly.ended.len() + assembly.running.len(), 0);
    }
}

#[test]
fn of_roots_under_one_id_the_first_counts() {
    let mut assembly = Assembly::new(1000);
    let now = Stamp::from_nanos(0);
    assembly.add((0..5000).map(|rid| root(7, rid)).collect(), now);
    assert_eq!((assembly.len(), assembly.rids.len()), (1, 1));
    assert_eq!(assembly.take_rid("4999"), None);
    assert!(assembly.take_rid("0").is_some());
    assert_eq!((assembly.len(), assembly.rids.len()), (0, 0));
}

#[test]
fn a_trace_of_very_many_is_found_by_ids_alone() {
    let mut assembly = Assembly::new(100_000);
    let now = Stamp::from_nanos(0);
    let many = ALIKE as u64 + 1;
    assembly.add((1..=many).map(|id| root(id, id)).collect(), now);
    assert_eq!(assembly.take_trace(1), []);
    assert!(assembly.take_rid("17").is_some());
    assert_eq!(assembly.take_trace(1).len(), ALIKE);
    let scheduler = |id| EngineSpan {
        parent: 7,
        part: Part::Scheduler(Scheduler::default()),
        ..root(id, 0)
    };
    assembly.add((1..=2 * RANKS as u64).map(scheduler).collect(), now);
    assert_bounded(&assembly);
    assert_eq!(assembly.shares.len(), RANKS);
}
