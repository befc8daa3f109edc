use super::super::column::Unit::Latency;
use super::*;
use crate::clock::Stamp;
use crate::offset::Offset;
use crate::request::sample::rows;
use crate::request::timeline::{ENGINE, ENGINE_OF_PAIR, Relation};

const CLOCKS: [ClockOf; 4] = [
    ClockOf::Traffic,
    ClockOf::Front,
    ClockOf::Hop,
    ClockOf::Engine,
];

/// All moments 1 ms apart, on four clocks that are `apart` from each other by so many nanoseconds.
fn record(side: Side, apart: i64, error_nanos: i64) -> Row {
    let mut row = Row::new(side, Endpoint::Generate, "r".into());
    let timeline = &mut row.timeline;
    for (moment, n) in Moment::ALL.into_iter().zip(1..) {
        timeline.set(moment, Stamp::from_nanos(n * 1_000_000));
    }
    for (clock, n) in CLOCKS.into_iter().zip(1..) {
        let nanos = n * apart;
        timeline.relate(clock, Relation::Apart(Offset { nanos, error_nanos }));
    }
    row
}

#[test]
fn every_duration_across_clocks_is_looked_at() {
    let is_duration =
        |column: &Column| column.unit == Latency || matches!(column.origin, Origin::Period(_));
    for side in [Side::Traffic, Side::Front, Side::Hop] {
        let cells = |apart| -> Vec<String> {
            let row = rows(&[record(side, apart, 0)]).remove(0);
            let latencies = COLUMNS.iter().filter(|c| is_duration(c));
            let cells = latencies.map(|column| format!("{:?}", (column.get)(&row)));
            cells.collect()
        };
        // What changes with the offsets was taken with two clocks.
        let latencies = COLUMNS.iter().filter(|c| is_duration(c));
        let pairs = cells(0).into_iter().zip(cells(77));
        let changed = latencies.zip(pairs).filter(|(_, (a, b))| a != b);
        let mut changed: Vec<&str> = changed.map(|(column, _)| column.name).collect();
        changed.sort_unstable();
        let row = |error| rows(&[record(side, 0, error)]).remove(0);
        let within = row(1_000_000_000).within_clock_error.unwrap();
        let mut within: Vec<&str> = within.split(';').collect();
        within.sort_unstable();
        assert!(!changed.is_empty());
        assert_eq!(changed, within, "{side:?}");
        assert_eq!(row(0).within_clock_error, None);
    }
}

#[test]
fn a_duration_is_within_the_error_of_both_its_clocks() {
    let network = |error| {
        let row = rows(&[record(Side::Front, 0, error)]).remove(0);
        let within = row.within_clock_error.unwrap_or_default();
        within.split(';').any(|name| name == "network_time")
    };
    let record = record(Side::Front, 0, 0);
    let nanos = record.timeline.nanos(Period::NETWORK).unwrap();
    assert!(nanos > 0);
    // From the hop's clock to the engine's.
    assert!(network(nanos / 2));
    assert!(!network(nanos / 2 - 1));
}

/// The row of another sequence of the same request: all that is a sequence's is other.
fn other_sequence(first: &Row) -> Row {
    let mut other = first.clone();
    other.index = 1;
    other.engine_id = Some("other".into());
    other.has_generated_text = Some(true);
    other.actual_prompt_tokens = Some(1);
    other.actual_output_tokens = Some(7);
    other.token_count_source = Some(TokenCountSource::MetaInfo);
    other.first_event_tokens = Some(1);
    other.token_chunks = Some(3);
    other.more.stall_nanos = 1;
    other.cached_tokens = Some(1);
    other.num_retractions = Some(1);
    other.dp_rank = Some(1);
    other.pure_queue_time = Some(5);
    other.timing_source = Some(TimingSource::MetaInfo);
    [other.itl_mean, other.itl_p99, other.itl_max] = [1, 2, 3].map(Some);
    [
        other.chunk_gap_mean,
        other.chunk_gap_p99,
        other.chunk_gap_max,
    ] = [1, 2, 3].map(Some);
    other.output_tokens_from_trace = Some(7);
    other.more.differing = vec![(Moment::QueueEnd, TimingSource::Log)];
    let own = [
        Moment::WorkerFirstToken,
        Moment::FirstToken,
        Moment::LastToken,
    ];
    for moment in ENGINE.into_iter().chain(ENGINE_OF_PAIR).chain(own) {
        let shift = 100 * (moment as i64 + 1).pow(2);
        let at = first.timeline.raw(moment).unwrap();
        other.timeline.set(moment, at.plus_nanos(shift));
    }
    other
}

#[test]
fn a_column_of_the_request_is_alike_in_all_its_rows_and_no_other() {
    let mut first = record(Side::Traffic, 0, 0);
    first.sequences = 2;
    first.outcome = Some(Outcome::Timeout);
    let rows = Row::ended(vec![first.clone(), other_sequence(&first)]);
    let [first, other] = rows.as_slice() else {
        panic!("two rows");
    };
    for column in &COLUMNS {
        let is_alike = (column.get)(first) == (column.get)(other);
        match column.scope {
            Scope::Request => assert!(is_alike, "{}", column.name),
            Scope::Sequence if column.unit == Latency => assert!(!is_alike, "{}", column.name),
            Scope::Sequence => {}
        }
    }
}
