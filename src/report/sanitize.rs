//! Removes from a run's rows what no figure may use: impossible values, and durations measured with a clock whose offset is known too
//! poorly (decision 24).
//!
//! Whether it is known too poorly depends on its error, on the clock's usual error and on the mean latency, never on the duration itself:
//! leaving out small durations would raise every mean.

use std::collections::BTreeMap;

use crate::request::{ClockOf, ColumnId, Moment, Origin, Relation, Row, Unit, without_impossible};
use crate::table::Table;

/// A clock is known poorly if its error is more than this many times the usual error,
const TIMES_USUAL: i64 = 4;
/// and more than this share of what requests take on average. Clocks may drift over a request: 100 ppm of its time are no reason.
const MIN_SHARE: f64 = 1e-3;
const DRIFT_PARTS: i64 = 10_000;

/// A clock other than the row's own, by its columns: that which names its process (`None` if all rows share it), and its error.
type OtherClock = (ClockOf, Option<ColumnId>, ColumnId);

const CLOCKS: [OtherClock; 3] = [
    (
        ClockOf::Engine,
        Some(ColumnId::host),
        ColumnId::clock_offset_error,
    ),
    (
        ClockOf::Hop,
        Some(ColumnId::worker),
        ColumnId::hop_clock_offset_error,
    ),
    (ClockOf::Front, None, ColumnId::front_clock_offset_error),
];

/// Removes impossible values and durations measured with a poorly known clock.
pub fn sanitize(mut table: Table) -> Table {
    remove_impossible(&mut table);
    remove_poor(&mut table);
    table
}

fn remove_impossible(table: &mut Table) {
    let is_inconsistent = |row| !table.text(ColumnId::inconsistency, row).is_empty();
    let has_one = |first: &usize| table.rows_of(*first).any(is_inconsistent);
    let firsts: Vec<usize> = table.first_rows().filter(has_one).collect();
    for first in firsts {
        let read = without_impossible(&table.request(first)).into_owned();
        for (at, row) in table.rows_of(first).zip(read) {
            // Times of the front and of hops stay: `row` has them on their own clocks, whose offsets are no longer known.
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

/// Removes durations measured with a poorly known clock.
fn remove_poor(table: &mut Table) {
    for (at, clocks) in poor(table) {
        let (row, without) = with_and_without(table, at, &clocks);
        let gone = row.periods().filter(|(of, period)| {
            let error = row.timeline.measured(*period).unwrap_or_default().1;
            error > 0 && (of.get)(&row) != (of.get)(&without)
        });
        let mut gone: Vec<ColumnId> = gone.map(|(of, _)| of.id).collect();
        if gone.is_empty() {
            continue;
        }
        if gone.contains(&ColumnId::ttft) {
            gone.push(ColumnId::ttft_source);
        }
        table.put_row(at, &without, |of| gone.contains(&of.id));
        table.unreliable_clocks.insert(at, clocks);
    }
}

/// Returns a row, and the same without these clocks.
fn with_and_without(table: &Table, at: usize, clocks: &[ClockOf]) -> (Row, Row) {
    let first = table.first_of(at);
    // A request's rows stand one after another, so there is one at `at`.
    let row = table.request(first).swap_remove(at - first);
    let mut without = row.clone();
    for clock in clocks {
        without.timeline.relate(*clock, Relation::Unknown);
        // Without an arrival, durations count from the send, which is on our clock.
        if *clock == ClockOf::Front {
            without.timeline.clear(Moment::Arrival);
        }
    }
    without.derive_anew();
    (row, without)
}

/// Returns the rows with poorly known clocks: their error is far above its median in the same process (of two middle values the lower
/// one), and no small share of the mean latency.
fn poor(table: &Table) -> BTreeMap<usize, Vec<ClockOf>> {
    // A hop's own rows have no total latency.
    let wholes = [ColumnId::total_latency, ColumnId::server_latency];
    let total = |row| wholes.iter().find_map(|of| table.integer(*of, row));
    let totals = (0..table.len()).filter(|row| table.is_ok(*row));
    let totals: Vec<f64> = totals.filter_map(total).map(|nanos| nanos as f64).collect();
    let minor = MIN_SHARE * totals.iter().sum::<f64>() / totals.len().max(1) as f64;
    let mut poor = BTreeMap::<usize, Vec<ClockOf>>::new();
    for (clock, process, column) in CLOCKS {
        let process = |row| process.map_or("", |column| table.text(column, row));
        let is_raw = |row| matches!(table.text(ColumnId::clock_state, row), "" | "raw");
        // Raw times are not on the row's clock.
        let rows = (0..table.len()).filter(|row| clock != ClockOf::Engine || !is_raw(*row));
        let rows = rows.filter_map(|row| Some((row, table.integer(column, row)?)));
        let mut errors = BTreeMap::<&str, Vec<i64>>::new();
        for (row, error) in rows.clone() {
            errors.entry(process(row)).or_default().push(error);
        }
        let median = |mut errors: Vec<i64>| {
            let middle = (errors.len() - 1) / 2;
            *errors.select_nth_unstable(middle).1
        };
        let errors = errors.into_iter();
        let usual: BTreeMap<&str, i64> = errors.map(|(of, errors)| (of, median(errors))).collect();
        for (row, error) in rows {
            let drift = total(row).unwrap_or(0) / DRIFT_PARTS;
            let max = usual[&process(row)].saturating_mul(TIMES_USUAL);
            if error.saturating_sub(drift) > max && error as f64 > minor {
                poor.entry(row).or_default().push(clock);
            }
        }
    }
    poor
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offset::Offset;
    use crate::report::load::tests::*;

    const MS: i64 = 1_000_000;

    /// A request whose delay to the server is so many milliseconds as measured, with the engine's clock known within
    /// `error` ms.
    fn row(n: i64, way: f64, error: f64) -> Row {
        let way = (way * MS as f64) as i64;
        // With such a long delay the sample would have no queue.
        let sample = Sample::starting(n * 10).without(&[Moment::QueueStart]);
        let sample = sample.with(|record| {
            let timeline = &mut record.timeline;
            let offset = timeline.offset(ClockOf::Engine).unwrap();
            let sent = timeline.on_own_clock(Moment::RouterSend).unwrap();
            timeline.set(Moment::ServerCreated, sent.plus_nanos(way + offset.nanos));
            let known = Offset {
                error_nanos: (error * MS as f64) as i64,
                ..offset
            };
            timeline.relate(ClockOf::Engine, Relation::Apart(known));
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

    /// Delays of 1 ms, measured as 0.1 to 1.9 ms by clocks within so many ms.
    fn many(error: f64) -> Vec<Row> {
        let way = |n: i64| 0.1 + 0.2 * (n % 10) as f64;
        (0..200).map(|n| row(n, way(n), error)).collect()
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
    fn a_delay_no_larger_than_its_error_enters_no_mean_and_is_counted() {
        let mut rows = many(1.0);
        // No row is left out because its delay is small.
        let whole = summary(&rows);
        let (count, mean) = network(&whole);
        assert!(count == 200 && (mean - 1.0).abs() < 1e-6, "{count} {mean}");
        // Far larger errors than usual, whatever the delays.
        let large = (300..307).map(|n| row(n, 180.0, 180.0));
        rows.extend(large.chain([row(307, 107.0, 107.0), row(308, 107.1, 107.0)]));
        rows.insert(0, row(309, 5.0, 5.0));
        // Usual errors: of failed requests, and of those to another server.
        let mut slow = (310..360).map(|n| row(n, 180.0, 1.0)).collect::<Vec<_>>();
        for (n, row) in slow.iter_mut().enumerate() {
            match n {
                0..10 => row.outcome = Some(Outcome::Timeout),
                _ => row.host = Some("far:1".to_owned()),
            }
        }
        rows.extend(slow);
        let with = summary(&rows);
        let (count, mean) = network(&with);
        let apart = (mean - 7_400.0 / 240.0).abs();
        assert!(count == 240 && apart < 1e-6, "{count} {mean}");
        let json = with.to_json();
        let expected = [
            ("/left_out_clock_error", 10.0),
            ("/hosts/127.0.0.1:30000/left_out_clock_error", 10.0),
            // A duration of one clock stays.
            ("/latency/total_latency/count", 250.0),
            ("/latency/ttft_observed/count", 250.0),
        ];
        assert_figures(&json, expected);
        assert_eq!(part(&json, "network")["requests"], 240);
    }

    #[test]
    fn a_clock_is_poor_by_its_usual_error() {
        let alike = |count, way, error| -> Vec<Row> {
            (0..count).map(|n| row(300 + n, way, error)).collect()
        };
        // A thousandth of what requests take is minor, however small the usual error.
        let minor = [many(0.05), alike(20, 1.0, 0.45)].concat();
        let major = [many(0.05), alike(20, 1.0, 0.55)].concat();
        for (what, rows, count) in [
            ("a minor error", minor, 220),
            ("a major error", major, 200),
            ("all are alike", alike(5, 40.0, 50.0), 5),
            ("there is but one", alike(1, 107.0, 107.0), 1),
        ] {
            assert_eq!(network(&summary(&rows)).0, count, "{what}");
        }
    }

    /// 80 requests of 0.5 s, then some of 17.7 s during a stall, and the error of the front's clock at those, ms. As clocks drift, it is
    /// larger over a long request; over a stopped process it is as large as the stop was long.
    #[test]
    fn slow_requests_stay_though_their_clock_is_known_worse() {
        for (slow, error, across_clocks) in [
            (1, 0.9, 81),
            (59, 0.9, 139),
            (59, 6.0, 139),
            (59, 1000.0, 80),
            (1, 1000.0, 80),
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
                // Of one clock.
                ("queue_time_in_router", quick_and_slow),
                ("server_latency", across_clocks),
                ("network_time", across_clocks),
            ] {
                let count = &all["latency"][name]["count"];
                assert_eq!(*count, expected, "{name} of {what}");
            }
            assert_eq!(part(&all, "network")["requests"], across_clocks, "{what}");
            let longest = &all["hosts"]["a:1"]["latency"]["total_latency"]["max"];
            let longest = longest.as_f64().unwrap();
            assert!((longest - 17.7).abs() < 0.01, "{longest} of {what}");
        }
    }

    /// A hop's own rows have no total latency.
    #[test]
    fn slow_requests_of_a_hop_stay() {
        let row = |n: i64| {
            let (finish, error) = if n < 80 { (500, 0.05) } else { (17_700, 0.9) };
            let mut row = row(n, 1.0, error);
            row.timeline.clear(Moment::Arrival);
            row.timeline.clear(Moment::Sent);
            row.timeline.set(Moment::Finish, at(n * 10 + finish));
            row.derive_anew();
            row
        };
        let rows: Vec<Row> = (0..81).map(row).collect();
        let all = summary(&rows).to_json();
        assert_eq!(all["latency"]["total_latency"]["count"], 0);
        assert_eq!(all["latency"]["network_time"]["count"], 81);
    }

    #[test]
    fn impossible_values_enter_no_figure_and_are_counted() {
        let rows: Vec<Row> = (0..200).map(|n| Sample::starting(n).open_row()).collect();
        let whole = summary(&rows).to_json();
        let mut with = rows.clone();
        let queue = Sample::starting(900).at(Moment::QueueStart, -60_000);
        let tokens = Sample::starting(901).with(|row| row.actual_output_tokens = Some(1 << 60));
        with.extend([queue.open_row(), tokens.open_row()]);
        let with = summary(&with);
        let json = with.to_json();
        let expected = [
            ("/inconsistent_rows", 2.0),
            ("/left_out_clock_error", 0.0),
            ("/latency/pure_queue_time/count", 201.0),
            ("/latency/tokenize_time/count", 201.0),
            ("/latency/tpot/count", 201.0),
            ("/latency/total_latency/count", 202.0),
            ("/total_output_tokens", 29.0 * 201.0),
        ];
        assert_figures(&json, expected);
        let max = |json: &Value| json["latency"]["pure_queue_time"]["max"].clone();
        assert_eq!(max(&json), max(&whole));
        let unseen = with.all.spent.unseen_notes().join("; ");
        assert_says(&unseen, "it reported impossible times, which are left out");
    }

    /// The source of a TTFT that fell back to what was read changes with it.
    #[test]
    fn the_source_of_a_removed_ttft_is_not_kept() {
        let table = table(&[many(1.0), vec![row(300, 180.0, 1000.0)]].concat());
        let read = sanitize(table.clone());
        let [of_read, of_table] = [&read, &table].map(|of| of.integer(ColumnId::ttft, 200));
        assert_ne!(of_read, of_table);
        let sources = [&table, &read].map(|of| of.text(ColumnId::ttft_source, 200));
        assert_eq!(sources, ["server_first_token", "first_token"]);
    }

    /// Durations of a front or hop whose clock is 90 s off are removed; its times stay on the row's clock.
    #[test]
    fn times_of_a_wrong_clock_stay_on_the_rows_clock() {
        let of_hop = [ColumnId::router_send_time, ColumnId::queue_time_in_router];
        let of_front = [ColumnId::arrival_time, ColumnId::total_latency];
        for (clock, [stamped, measured]) in [(ClockOf::Hop, of_hop), (ClockOf::Front, of_front)] {
            let wrong = Offset {
                nanos: 90_000 * MS,
                error_nanos: 1000,
            };
            let row = Sample::whole().with(|row| {
                row.timeline.relate(clock, Relation::Apart(wrong));
                if clock == ClockOf::Front {
                    row.timeline.hop_shares_front();
                }
            });
            let table = table(&[row.open_row()]);
            let read = sanitize(table.clone());
            assert!(table.number(measured, 0).is_some(), "{clock:?}");
            assert_eq!(read.number(measured, 0), None, "{clock:?}");
            assert_eq!(read.number(stamped, 0), table.number(stamped, 0));
        }
    }
}
