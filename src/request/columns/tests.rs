use std::collections::BTreeSet;

use super::Unit::Latency;
use super::*;
use crate::clock::Stamp;
use crate::offset::Offset;
use crate::request::sample::rows;
use crate::request::timeline::Moment::{FirstToken, LastToken, WorkerFirstToken};
use crate::request::timeline::{ENGINE, ENGINE_OF_PAIR, Relation};

/// A row with all moments 1 ms apart, on four clocks `apart` nanoseconds from each other.
fn row_of(side: Side, apart: i64, error_nanos: i64) -> Row {
    let mut row = Row::new(side, Endpoint::Generate, "r".into());
    let timeline = &mut row.timeline;
    for (moment, n) in Moment::ALL.into_iter().zip(1..) {
        timeline.set(moment, Stamp::from_nanos(n * 1_000_000));
    }
    use ClockOf::*;
    for (clock, n) in [Traffic, Front, Hop, Engine].into_iter().zip(1..) {
        let nanos = n * apart;
        timeline.relate(clock, Relation::Apart(Offset { nanos, error_nanos }));
    }
    row
}

#[test]
fn every_duration_between_clocks_has_an_error_bound() {
    let is_duration =
        |column: &&Column| column.unit == Latency || matches!(column.origin, Origin::Period(_));
    for side in [Side::Traffic, Side::Front, Side::Hop] {
        let row = |apart, error| rows(&[row_of(side, apart, error)]).remove(0);
        // A value that changes with the offsets is measured by two clocks.
        let (together, moved) = (row(0, 0), row(77, 0));
        let changed = COLUMNS.iter().filter(is_duration);
        let changed = changed.filter(|column| (column.get)(&together) != (column.get)(&moved));
        let changed: BTreeSet<&str> = changed.map(|column| column.name).collect();
        let within = row(0, 1_000_000_000).within_clock_error.unwrap();
        assert!(!changed.is_empty());
        assert_eq!(changed, within.split(';').collect(), "{side:?}");
        assert_eq!(together.within_clock_error, None);
    }
}

#[test]
fn a_duration_is_within_the_error_of_both_its_clocks() {
    let network = |error| {
        let row = rows(&[row_of(Side::Front, 0, error)]).remove(0);
        let within = row.within_clock_error.unwrap_or_default();
        within.split(';').any(|name| name == "network_time")
    };
    let row = row_of(Side::Front, 0, 0);
    let nanos = row.timeline.nanos(Period::NETWORK).unwrap();
    assert!(nanos > 0);
    // From the hop's clock to the engine's: two errors.
    assert!(network(nanos / 2));
    assert!(!network(nanos / 2 - 1));
}

/// The row of another sequence of the same request: it differs in all that belongs to a sequence.
fn other_sequence(first: &Row) -> Row {
    let mut other = first.clone();
    other.index = 1;
    for column in COLUMNS.iter().filter(|c| c.scope == Scope::Sequence) {
        let value = match column.unit {
            Unit::Text => Value::Text("log".into()),
            Unit::Bool => Value::Bool(true),
            Unit::Count => Value::Count(7),
            Unit::Latency | Unit::Seconds => Value::Nanos(5),
            Unit::Time => continue,
        };
        (column.put)(&mut other, value);
    }
    other.first_event_tokens = Some(1);
    other.internal.stall_nanos = 1;
    let own = [WorkerFirstToken, FirstToken, LastToken];
    for moment in ENGINE.into_iter().chain(ENGINE_OF_PAIR).chain(own) {
        let shift = 100 * (moment as i64 + 1).pow(2);
        let at = first.timeline.raw(moment).unwrap();
        other.timeline.set(moment, at.plus_nanos(shift));
    }
    other
}

#[test]
fn a_column_of_the_request_is_alike_in_all_its_rows_and_no_other() {
    let mut first = row_of(Side::Traffic, 0, 0);
    first.sequences = 2;
    first.outcome = Some(Outcome::Timeout);
    let rows = Row::ended(vec![first.clone(), other_sequence(&first)]);
    assert_eq!(rows.len(), 2);
    for column in &COLUMNS {
        let is_alike = (column.get)(&rows[0]) == (column.get)(&rows[1]);
        match column.scope {
            Scope::Request => assert!(is_alike, "{}", column.name),
            Scope::Sequence if column.unit == Latency => assert!(!is_alike, "{}", column.name),
            Scope::Sequence => {}
        }
    }
}
