//! Rows as all that is said of a run reads them: without what cannot be, and without what was measured with a clock that is known too
//! poorly for it (decision 24).
//!
//! Whether a clock is too poor depends on its error, on what is usual for it and for the durations of a column, not on how small one
//! came out: leaving out the small ones would make every mean too large.

use std::collections::{BTreeMap, BTreeSet};

use crate::request::column::{Origin, Unit};
use crate::request::columns::{COLUMNS, Column, ColumnId};
use crate::request::impossible;
use crate::request::timeline::{ClockOf, Moment, Period, Relation};
use crate::table::Table;

/// A clock that is known this many times worse than usual is known poorly.
const TIMES_USUAL: i64 = 4;
/// What was taken out: rows and columns.
type Gone = BTreeSet<(usize, &'static str)>;

/// Where its error is this share of what requests take on average, or less, stages are told apart all the same.
const LITTLE: f64 = 0.01;

/// Another clock.
#[derive(Debug)]
struct Other {
    clock: ClockOf,
    /// Whose it is; nothing of one that all rows share.
    whose: Option<ColumnId>,
    error: ColumnId,
    /// What the way to it is measured between: from the first of these that is known.
    sent: &'static [ColumnId],
    reached: ColumnId,
}

const CLOCKS: [Other; 3] = [
    Other {
        clock: ClockOf::Engine,
        whose: Some(ColumnId::host),
        error: ColumnId::clock_offset_error,
        sent: &[
            ColumnId::router_send_time,
            ColumnId::forwarded_time,
            ColumnId::sent_time,
        ],
        reached: ColumnId::server_created_time,
    },
    Other {
        clock: ClockOf::Hop,
        whose: Some(ColumnId::worker),
        error: ColumnId::hop_clock_offset_error,
        sent: &[ColumnId::forwarded_time],
        reached: ColumnId::router_send_time,
    },
    Other {
        clock: ClockOf::Front,
        whose: None,
        error: ColumnId::front_clock_offset_error,
        sent: &[ColumnId::sent_time],
        reached: ColumnId::arrival_time,
    },
];

/// The rows of a run of which figures are taken.
pub fn believed(mut table: Table) -> Table {
    leave_out_impossible(&mut table);
    leave_out_poor(&mut table);
    table
}

/// Takes out what cannot be.
fn leave_out_impossible(table: &mut Table) {
    let firsts: Vec<usize> = table.firsts().collect();
    for first in firsts {
        let rows = table.rows_of(first);
        let is_wrong = |row| !table.text(ColumnId::inconsistency, row).is_empty();
        if !rows.clone().any(is_wrong) {
            continue;
        }
        let read = impossible::believed(&table.request(first)).into_owned();
        for (at, row) in rows.zip(read) {
            // What a front or a hop stamped would come back on its own clock, which is no longer known: that stays as it was.
            let side = row.timeline.side();
            let is_engine =
                |origin| matches!(origin, Origin::Moment(of) if of.clock(side) == ClockOf::Engine);
            table.put_row(at, &row, |column| {
                column.id != ColumnId::inconsistency
                    && (column.unit != Unit::Time || is_engine(column.origin))
            });
        }
    }
}

/// Takes out the durations that were measured with a clock that is known too poorly for them: within more than their column's mean at
/// their server.
fn leave_out_poor(table: &mut Table) {
    let poor = poor(table);
    let mut gone = Gone::new();
    let mut before = None;
    // Again without what was taken out: a large artefact lifts the mean above the error of a small one.
    while !poor.is_empty() && before != Some(gone.len()) {
        before = Some(gone.len());
        let means: Vec<Vec<f64>> = COLUMNS.iter().map(|column| means(table, column)).collect();
        for (&at, clocks) in &poor {
            leave_out(table, at, clocks, &means, &mut gone);
        }
    }
}

/// Takes out what was measured too poorly with these clocks of a row, and is not `gone` yet.
fn leave_out(
    table: &mut Table,
    at: usize,
    clocks: &[ClockOf],
    means: &[Vec<f64>],
    gone: &mut Gone,
) {
    let first = (0..=at).rfind(|row| table.is_first(*row)).unwrap_or(at);
    let Some(row) = table.request(first).into_iter().nth(at - first) else {
        return;
    };
    let mut without = row.clone();
    for clock in clocks {
        without.timeline.relate(*clock, Relation::Unknown);
        // What counts from the arrival counts from the send, which is on our clock.
        if *clock == ClockOf::Front {
            without.timeline.clear(Moment::Arrival);
        }
    }
    without.derive_anew();
    let host = table.code(ColumnId::host, at);
    let mean = |column| means[column as usize].get(host).copied().unwrap_or(0.0);
    let is_spoiled = |(column, period): &(&Column, Period)| {
        let (_, error) = row.timeline.measured(*period).unwrap_or_default();
        let is_other = (column.get)(&row) != (column.get)(&without);
        is_other && error as f64 > mean(column.id)
    };
    let before = gone.len();
    let spoiled = row.periods().filter(is_spoiled);
    gone.extend(spoiled.map(|(column, _)| (at, column.name)));
    if gone.len() == before {
        return;
    }
    table.put_row(at, &without, |column| gone.contains(&(at, column.name)));
    let error = |clock| row.timeline.offset(clock).map_or(0, |of| of.error_nanos);
    let little = LITTLE * mean(ColumnId::total_latency);
    let clocks = clocks.iter().copied();
    let much = clocks.filter(|clock| error(*clock) as f64 > little);
    table.left_out.insert(at, much.collect());
}

/// Rows with the clocks that are known far worse there than usual, which is the median (the lower of two middle ones) by whose it is,
/// unless the measured way to one is over twice that error.
fn poor(table: &Table) -> BTreeMap<usize, Vec<ClockOf>> {
    let mut poor = BTreeMap::<usize, Vec<ClockOf>>::new();
    for other in CLOCKS.iter().filter(|other| table.has(other.error)) {
        let whose = |row| other.whose.map_or(0, |whose| table.code(whose, row));
        let rows = (0..table.len()).filter_map(|row| Some((row, other.error(table, row)?)));
        let mut errors = vec![Vec::new(); other.whose.map_or(1, |whose| table.codes(whose))];
        for (row, error) in rows.clone() {
            errors[whose(row)].push(error);
        }
        let middle = |mut errors: Vec<i64>| {
            let middle = errors.len().checked_sub(1)? / 2;
            Some(*errors.select_nth_unstable(middle).1)
        };
        let usual: Vec<Option<i64>> = errors.into_iter().map(middle).collect();
        for (row, error) in rows {
            let most = usual[whose(row)].map(|usual| usual.saturating_mul(TIMES_USUAL));
            let is_worth = || {
                let sent = other.sent.iter().find_map(|sent| table.whole(*sent, row));
                let way = table.whole(other.reached, row).zip(sent);
                way.is_some_and(|(reached, sent)| reached - sent > error.saturating_mul(2))
            };
            if most.is_some_and(|most| error > most) && !is_worth() {
                poor.entry(row).or_default().push(other.clock);
            }
        }
    }
    poor
}

/// The mean of a column's durations of requests that ended well, nanoseconds, by their host; of none, 0.
fn means(table: &Table, column: &Column) -> Vec<f64> {
    let mut hosts = vec![(0.0, 0.0); table.codes(ColumnId::host)];
    let is_duration = column.unit == Unit::Latency || matches!(column.origin, Origin::Period(_));
    if !is_duration || !table.has(column.id) {
        return Vec::new();
    }
    for row in (0..table.len()).filter(|row| table.is_ok(*row)) {
        if let Some(nanos) = table.whole(column.id, row) {
            let (count, sum) = &mut hosts[table.code(ColumnId::host, row)];
            (*count, *sum) = (*count + 1.0, *sum + nanos as f64);
        }
    }
    let mean = |(count, sum)| if count > 0.0 { sum / count } else { 0.0 };
    hosts.into_iter().map(mean).collect()
}

impl Other {
    /// Its error, where it was put on the clock of the row.
    fn error(&self, table: &Table, row: usize) -> Option<i64> {
        let error = table.whole(self.error, row)?;
        let is_raw = || matches!(table.text(ColumnId::clock_state, row), "" | "raw");
        (self.clock != ClockOf::Engine || !is_raw()).then_some(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offset::Offset;
    use crate::report::load::tests::{assert_says, run};
    use crate::report::load::{RunFacts, Summary};
    use crate::report::sample::{Sample, at};
    use crate::request::outcome::Outcome;
    use crate::request::row::Row;
    use serde_json::{Value, json};

    const MS: i64 = 1_000_000;

    /// A request whose way to the server took so many milliseconds as measured, the engine's clock being known within
    /// `error` ms.
    fn row(n: i64, way: f64, error: f64) -> Row {
        let way = (way * MS as f64) as i64;
        // Of a way so long the sample's queue would not be told.
        let sample = Sample::starting(n * 10).without(&[Moment::QueueStart]);
        let sample = sample.with(|record| {
            let timeline = &mut record.timeline;
            let Relation::Apart(offset) = timeline.relation(ClockOf::Engine) else {
                panic!("the sample's engine is apart");
            };
            let sent = timeline.on_own_clock(Moment::RouterSend).unwrap();
            timeline.set(Moment::ServerCreated, sent.plus_nanos(way + offset.nanos));
            let error_nanos = (error * MS as f64) as i64;
            timeline.relate(
                ClockOf::Engine,
                Relation::Apart(Offset {
                    error_nanos,
                    ..offset
                }),
            );
        });
        sample.open_row()
    }

    fn summary(rows: &[Row]) -> Summary {
        let run = RunFacts {
            ended: at(5000),
            scheduled: rows.len(),
            ..run()
        };
        Summary::of_records(rows, &run)
    }

    /// Ways from 0.1 to 1.9 ms, as clocks within 1 ms show 1 ms.
    fn many() -> Vec<Row> {
        let way = |n: i64| 0.1 + 0.2 * (n % 10) as f64;
        (0..200).map(|n| row(n, way(n), 1.0)).collect()
    }

    fn network(summary: &Summary) -> (u64, f64) {
        let json = summary.to_json();
        let figure = |name: &str| json["latency"]["network_time"][name].clone();
        let mean = figure("mean").as_f64().unwrap();
        (figure("count").as_u64().unwrap(), mean * 1e3)
    }

    /// A part of the time of all requests.
    fn part<'a>(summary: &'a Value, stage: &str) -> &'a Value {
        let mut parts = summary["time_spent"]["parts"].as_array().unwrap().iter();
        parts.find(|part| part["stage"] == stage).unwrap()
    }

    #[test]
    fn a_row_of_107_within_107_enters_no_mean_and_is_counted() {
        let mut rows = many();
        // No row is left out for being small.
        let whole = summary(&rows);
        let (count, mean) = network(&whole);
        assert!(count == 200 && (mean - 1.0).abs() < 1e-6, "{count} {mean}");
        assert!(!whole.to_text().contains("left out"));
        // Within its error, and above it by a hair; and a small one below the mean that large ones make.
        let large = (300..307).map(|n| row(n, 180.0, 180.0));
        rows.extend(large.chain([row(307, 107.0, 107.0), row(308, 107.1, 107.0)]));
        rows.insert(0, row(309, 5.0, 5.0));
        // As do ways of requests that fail, and those to another server, which stay.
        let mut slow = (310..360).map(|n| row(n, 180.0, 1.0)).collect::<Vec<_>>();
        let (failed, far) = slow.split_at_mut(10);
        failed
            .iter_mut()
            .for_each(|row| row.outcome = Some(Outcome::Timeout));
        far.iter_mut()
            .for_each(|row| row.host = Some("far:1".to_owned()));
        rows.extend(slow);
        let with = summary(&rows);
        let (count, mean) = network(&with);
        assert!(
            count == 240 && (mean - 7_400.0 / 240.0).abs() < 1e-6,
            "{count} {mean}"
        );
        let json = with.to_json();
        for (pointer, expected) in [
            ("/left_out_clock_error", 10),
            ("/hosts/127.0.0.1:30000/left_out_clock_error", 10),
            // One clock's stays.
            ("/latency/total_latency/count", 250),
            ("/latency/ttft_observed/count", 250),
        ] {
            assert_eq!(json.pointer(pointer), Some(&json!(expected)), "{pointer}");
        }
        assert_eq!(part(&json, "network")["requests"], 240);
        let said = "note: 10 requests are left out of what was measured with two clocks";
        assert_says(&with.to_text(), said);
    }

    #[test]
    fn a_clock_is_poor_beside_what_is_usual_and_what_it_is_for() {
        let alike = |count, way, error| (0..count).map(|n| row(300 + n, way, error)).collect();
        for (what, rows, count) in [
            (
                "a long way that its error does not reach",
                [many(), alike(20, 107.0, 11.0)].concat(),
                220,
            ),
            ("all are alike", alike(5, 40.0, 50.0), 5),
            ("there is but one", alike(1, 107.0, 107.0), 1),
        ] {
            assert_eq!(network(&summary(&rows)).0, count, "{what}");
        }
    }

    /// 80 requests of 0.5 s, then some of 17.7 s through a stall, and how well the front's clock is known at those, ms. Clocks drift: over
    /// a long request it is known worse, and where one was stopped as badly as the stop was long.
    #[test]
    fn slow_requests_stay_where_their_clock_is_known_worse_than_that_of_quick_ones() {
        for (slow, error, [of_server, of_network, of_stage]) in [
            (59, 0.9, [139; 3]),
            (59, 6.0, [139, 80, 139]),
            (59, 1000.0, [139, 80, 80]),
            (1, 1000.0, [80; 3]),
        ] {
            let row = |n: i64| {
                let (finish, error) = if n < 80 { (500, 0.05) } else { (17_700, error) };
                let sample = Sample::starting(n * 10).at(Moment::Finish, n * 10 + finish);
                let sample = sample.at(Moment::FirstToken, n * 10 + finish - 290);
                let sample = sample.host(["a:1", "b:1"][n as usize % 2]);
                sample.front_within(error).open_row()
            };
            let rows: Vec<Row> = (0..80 + slow).map(row).collect();
            let all = summary(&rows).to_json();
            let what = format!("{slow} within {error} ms");
            let quick_and_slow = 80 + slow as u64;
            for (name, expected) in [
                ("total_latency", quick_and_slow),
                ("ttft", quick_and_slow),
                ("ttft_observed", quick_and_slow),
                // One clock's.
                ("queue_time_in_router", quick_and_slow),
                ("server_latency", of_server),
                ("network_time", of_network),
            ] {
                let count = &all["latency"][name]["count"];
                assert_eq!(*count, expected, "{name} of {what}");
            }
            assert_eq!(part(&all, "network")["requests"], of_stage, "{what}");
            let longest = &all["hosts"]["a:1"]["latency"]["total_latency"]["max"];
            let longest = longest.as_f64().unwrap();
            assert!((longest - 17.7).abs() < 0.01, "{longest} of {what}");
        }
    }

    #[test]
    fn what_cannot_be_enters_no_figure_and_is_counted() {
        let rows: Vec<Row> = (0..200).map(|n| Sample::starting(n).open_row()).collect();
        let whole = summary(&rows).to_json();
        let mut with = rows.clone();
        let queue = Sample::starting(900).at(Moment::QueueStart, -60_000);
        let tokens = Sample::starting(901).with(|row| row.actual_output_tokens = Some(1 << 60));
        with.extend([queue.open_row(), tokens.open_row()]);
        let with = summary(&with);
        let json = with.to_json();
        assert_eq!(
            (&json["inconsistent_rows"], &json["left_out_clock_error"]),
            (&json!(2), &json!(0))
        );
        for (name, more) in [
            ("pure_queue_time", 1),
            ("tokenize_time", 1),
            ("tpot", 1),
            ("total_latency", 2),
        ] {
            let count = |json: &serde_json::Value| json["latency"][name]["count"].as_u64().unwrap();
            assert_eq!(count(&json), count(&whole) + more, "{name}");
        }
        assert_eq!(
            json["latency"]["pure_queue_time"]["max"],
            whole["latency"]["pure_queue_time"]["max"]
        );
        assert_eq!(json["total_output_tokens"], json!(29 * 201));
        let unseen = with.all.spent.unseen_notes().join("; ");
        assert_says(&unseen, "it reported impossible times, which are left out");
    }

    /// Of a front or a hop that is 90 s off, no duration is believed; what it stamped does not come back on its own clock.
    #[test]
    fn times_of_a_clock_that_is_wrong_stay_on_that_of_the_row() {
        for (clock, stamped, measured) in [
            (
                ClockOf::Hop,
                ColumnId::router_send_time,
                ColumnId::queue_time_in_router,
            ),
            (
                ClockOf::Front,
                ColumnId::arrival_time,
                ColumnId::total_latency,
            ),
        ] {
            let wrong = Offset {
                nanos: 90_000 * MS,
                error_nanos: 1000,
            };
            let sample = Sample::whole();
            let row = sample.with(|row| {
                row.timeline.relate(clock, Relation::Apart(wrong));
                if clock == ClockOf::Front {
                    row.timeline.hop_shares_front();
                }
            });
            let mut table = Table::default();
            table.push_row(&row.row());
            let read = believed(table.clone());
            assert!(table.number(measured, 0).is_some(), "{clock:?}");
            assert_eq!(read.number(measured, 0), None, "{clock:?}");
            assert_eq!(read.number(stamped, 0), table.number(stamped, 0));
        }
    }
}
