//! Removes from a run's rows what no figure may use: impossible values, and durations measured with a clock whose offset is known too
//! poorly (decision 24).
//!
//! Whether it is known too poorly depends on its error, on the clock's usual error and on the mean of the column, never on the duration
//! itself: leaving out small durations would raise every mean.

use std::collections::BTreeMap;

use crate::request::column::{Origin, Unit};
use crate::request::columns::{COLUMNS, Column, ColumnId};
use crate::request::impossible;
use crate::request::row::Row;
use crate::request::timeline::{ClockOf, Moment, Relation};
use crate::table::Table;

/// A clock is known poorly if its error is more than this many times the usual error.
const TIMES_USUAL: i64 = 4;

/// Stages are still distinguished if the clock's error is at most this share of the mean total latency.
const MINOR: f64 = 0.01;

/// A clock other than the row's own, by its columns.
#[derive(Debug)]
struct OtherClock {
    clock: ClockOf,
    /// The column that names its process; `None` if all rows share it.
    process: Option<ColumnId>,
    error: ColumnId,
    /// Where the measured delay to it starts: the first of these that is known.
    sent: &'static [ColumnId],
    /// Where that delay ends.
    received: ColumnId,
}

/// A row whose clocks are known poorly.
struct Suspect {
    at: usize,
    /// These clocks and their errors, nanoseconds.
    clocks: Vec<(ClockOf, i64)>,
    /// The durations that depend on them and their errors, nanoseconds.
    durations: Vec<(ColumnId, i64)>,
}

const CLOCKS: [OtherClock; 3] = [
    OtherClock {
        clock: ClockOf::Engine,
        process: Some(ColumnId::host),
        error: ColumnId::clock_offset_error,
        sent: &[
            ColumnId::router_send_time,
            ColumnId::forwarded_time,
            ColumnId::sent_time,
        ],
        received: ColumnId::server_created_time,
    },
    OtherClock {
        clock: ClockOf::Hop,
        process: Some(ColumnId::worker),
        error: ColumnId::hop_clock_offset_error,
        sent: &[ColumnId::forwarded_time],
        received: ColumnId::router_send_time,
    },
    OtherClock {
        clock: ClockOf::Front,
        process: None,
        error: ColumnId::front_clock_offset_error,
        sent: &[ColumnId::sent_time],
        received: ColumnId::arrival_time,
    },
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
        let read = impossible::without_impossible(&table.request(first)).into_owned();
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

/// Removes durations measured with a poorly known clock whose error is larger than the column's mean at the same server.
fn remove_poor(table: &mut Table) {
    let suspect = |(row, clocks)| Suspect::of(table, row, clocks);
    let mut suspects: Vec<Suspect> = poor(table).into_iter().filter_map(suspect).collect();
    let mut is_changed = !suspects.is_empty();
    // Until nothing changes: a large artefact raises the mean above the error of a small one.
    while is_changed {
        let means: Vec<Vec<f64>> = COLUMNS.iter().map(|column| means(table, column)).collect();
        is_changed = false;
        for suspect in &mut suspects {
            is_changed |= suspect.remove_from(table, &means);
        }
    }
}

impl Suspect {
    /// `None` if nothing that was measured depends on the clocks.
    fn of(table: &Table, at: usize, clocks: Vec<(ClockOf, i64)>) -> Option<Suspect> {
        let (row, without) = with_and_without(table, at, &clocks);
        let durations = row.periods();
        let durations = durations.filter(|(of, _)| (of.get)(&row) != (of.get)(&without));
        let error = |period| row.timeline.measured(period).unwrap_or_default().1;
        let durations: Vec<_> = durations
            .map(|(of, period)| (of.id, error(period)))
            .collect();
        (!durations.is_empty()).then_some(Suspect {
            at,
            clocks,
            durations,
        })
    }

    /// Removes the durations whose error is larger than their column's mean. Returns whether there were any.
    fn remove_from(&mut self, table: &mut Table, means: &[Vec<f64>]) -> bool {
        let host = table.code(ColumnId::host, self.at);
        let mean = |of: ColumnId| means[of as usize].get(host).copied().unwrap_or(0.0);
        let is_poor = |(of, error): &mut (ColumnId, i64)| *error as f64 > mean(*of);
        let poor = self.durations.extract_if(.., is_poor);
        let mut poor: Vec<ColumnId> = poor.map(|(of, _)| of).collect();
        if poor.is_empty() {
            return false;
        }
        let is_ttft = poor.contains(&ColumnId::ttft);
        poor.extend(is_ttft.then_some(ColumnId::ttft_source));
        // Made anew: kept for all suspects, rows would take more memory than the table.
        let (_, without) = with_and_without(table, self.at, &self.clocks);
        table.put_row(self.at, &without, |of| poor.contains(&of.id));
        let is_major = |error: i64| error as f64 > MINOR * mean(ColumnId::total_latency);
        let major = self.clocks.iter().filter(|(_, error)| is_major(*error));
        let major = major.map(|(clock, _)| *clock);
        table.unreliable_clocks.insert(self.at, major.collect());
        true
    }
}

/// Returns a row, and the same without these clocks.
fn with_and_without(table: &Table, at: usize, clocks: &[(ClockOf, i64)]) -> (Row, Row) {
    let first = (0..=at).rfind(|row| table.is_first(*row)).unwrap_or(at);
    // A request's rows stand one after another, so there is one at `at`.
    let row = table.request(first).into_iter().nth(at - first);
    let row = row.unwrap_or_default();
    let mut without = row.clone();
    for (clock, _) in clocks {
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
/// one), and the measured delay to them is not over twice the error.
fn poor(table: &Table) -> BTreeMap<usize, Vec<(ClockOf, i64)>> {
    let mut poor = BTreeMap::<usize, Vec<(ClockOf, i64)>>::new();
    for other in CLOCKS.iter().filter(|other| table.has(other.error)) {
        let process = |row| other.process.map_or(0, |column| table.code(column, row));
        let rows = (0..table.len()).filter_map(|row| Some((row, other.error(table, row)?)));
        let mut errors =
            vec![Vec::new(); other.process.map_or(1, |column| table.code_count(column))];
        for (row, error) in rows.clone() {
            errors[process(row)].push(error);
        }
        let median = |mut errors: Vec<i64>| {
            let middle = errors.len().checked_sub(1)? / 2;
            Some(*errors.select_nth_unstable(middle).1)
        };
        let usual: Vec<Option<i64>> = errors.into_iter().map(median).collect();
        for (row, error) in rows {
            let max = usual[process(row)].map(|usual| usual.saturating_mul(TIMES_USUAL));
            let is_exceeded = || {
                let sent = other.sent.iter().find_map(|sent| table.integer(*sent, row));
                let ends = table.integer(other.received, row).zip(sent);
                ends.is_some_and(|(received, sent)| received - sent > error.saturating_mul(2))
            };
            if max.is_some_and(|max| error > max) && !is_exceeded() {
                poor.entry(row).or_default().push((other.clock, error));
            }
        }
    }
    poor
}

/// Returns the mean of a column's durations of successful requests by host, nanoseconds; 0 if there are none.
fn means(table: &Table, column: &Column) -> Vec<f64> {
    let mut hosts = vec![(0.0, 0.0); table.code_count(ColumnId::host)];
    let is_duration = column.unit == Unit::Latency || matches!(column.origin, Origin::Period(_));
    if !is_duration || !table.has(column.id) {
        return Vec::new();
    }
    for row in (0..table.len()).filter(|row| table.is_ok(*row)) {
        if let Some(nanos) = table.integer(column.id, row) {
            let (count, sum) = &mut hosts[table.code(ColumnId::host, row)];
            (*count, *sum) = (*count + 1.0, *sum + nanos as f64);
        }
    }
    let mean = |(count, sum)| if count > 0.0 { sum / count } else { 0.0 };
    hosts.into_iter().map(mean).collect()
}

impl OtherClock {
    /// Its error in a row; `None` if its times are not on the row's clock.
    fn error(&self, table: &Table, row: usize) -> Option<i64> {
        let error = table.integer(self.error, row)?;
        let is_raw = || matches!(table.text(ColumnId::clock_state, row), "" | "raw");
        (self.clock != ClockOf::Engine || !is_raw()).then_some(error)
    }
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
            let Relation::Apart(offset) = timeline.relation(ClockOf::Engine) else {
                panic!("the sample's engine is apart");
            };
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

    /// Delays of 1 ms, measured as 0.1 to 1.9 ms by clocks within 1 ms.
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
    fn a_delay_no_larger_than_its_error_enters_no_mean_and_is_counted() {
        let mut rows = many();
        // No row is left out because its delay is small.
        let whole = summary(&rows);
        let (count, mean) = network(&whole);
        assert!(count == 200 && (mean - 1.0).abs() < 1e-6, "{count} {mean}");
        assert!(!whole.to_text().contains("left out"));
        // One at its error, one slightly above it, and a small one below the mean that large ones raise.
        let large = (300..307).map(|n| row(n, 180.0, 180.0));
        rows.extend(large.chain([row(307, 107.0, 107.0), row(308, 107.1, 107.0)]));
        rows.insert(0, row(309, 5.0, 5.0));
        // Delays of failed requests raise it too; those to another server stay.
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
        let expected = "note: 10 requests are left out of what was measured with two clocks";
        assert_says(&with.to_text(), expected);
    }

    #[test]
    fn a_clock_is_poor_by_its_usual_error_and_the_measured_delay() {
        let alike = |count, way, error| (0..count).map(|n| row(300 + n, way, error)).collect();
        let long = [many(), alike(20, 107.0, 11.0)].concat();
        for (what, rows, count) in [
            ("a long way that its error does not reach", long, 220),
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
                // Of one clock.
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
        let table = table(&[many(), vec![row(300, 180.0, 1000.0)]].concat());
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
