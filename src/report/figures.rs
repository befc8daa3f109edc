//! The figures of a run, taken of its rows: those that `summary.json` has, by the same functions.

use std::path::Path;

use serde_json::Value;

use crate::clock::Stamp;
use crate::request::columns::ColumnId;

use super::believed::believed;
use super::load::{Goal, RunFacts, Summary};
use super::reader::Run;
use crate::table::window::{Window, arrived};
use crate::table::{Error, Table, rows};

/// The figures of a run.
pub fn figures(run: &Run) -> Summary {
    Summary::of_table(&run.table, &facts(run), run.window())
}

/// The figures of a run that has just ended, of its file of rows, without its first and last seconds.
///
/// # Errors
/// The rows cannot be read.
pub fn of_file(rows: &Path, facts: &RunFacts, [first, last]: [f64; 2]) -> Result<Summary, Error> {
    let began = Some(facts.started.seconds());
    let (table, _) = rows::read(&[rows.to_owned()], began, &rows::UNSAID)?;
    let table = believed(table);
    // Times of a table count from the beginning of the run.
    let zero = Stamp::from_nanos(0);
    let seconds = facts.ended.since(facts.started);
    let mut of_rows = facts.clone();
    (of_rows.started, of_rows.ended) = (zero, zero.plus_seconds(seconds));
    let window = Window::choose(&arrived(&table), seconds, first, last);
    let mut summary = Summary::of_table(&table, &of_rows, Some(window));
    summary.began = facts.started;
    Ok(summary)
}

/// What is known of a run beside its rows: of `summary.json`, as far as it has been written.
fn facts(run: &Run) -> RunFacts {
    let (began, ended) = ends(&run.table);
    // The run begins with its schedule, not with its first request.
    let is_scheduled = run.table.has(ColumnId::scheduled_time);
    let started = Stamp::from_nanos(if is_scheduled { 0 } else { began.unwrap_or(0) });
    // That of a window is not the run's.
    let is_whole = run.window().is_none_or(|window| window.is_all());
    let duration: Option<f64> = run.read_of("/duration");
    let ended = match duration.filter(|_| is_whole) {
        Some(duration) => started.plus_seconds(duration),
        None => ended.map_or(started, Stamp::from_nanos),
    };
    let goals = run.told("/goodput_goals_ms").and_then(Value::as_object);
    let goals = goals.into_iter().flatten();
    let goal = |(name, most): (&String, &Value)| format!("{name}:{most}").parse::<Goal>().ok();
    let scheduled = run.scheduled().map(|count| count as usize);
    RunFacts {
        started,
        ended,
        offered_rate: run.read_of("/offered_rate"),
        scheduled: scheduled.unwrap_or_else(|| run.table.firsts().count()),
        config: run.told("/config").cloned().unwrap_or_default(),
        goodput: goals.filter_map(goal).collect(),
        machine: Value::Null,
    }
}

/// When the first request arrived, and when the last was over.
fn ends(table: &Table) -> (Option<i64>, Option<i64>) {
    let known = |column| (0..table.len()).filter_map(move |row| table.whole(column, row));
    // A hop's rows have no arrival.
    let first = known(ColumnId::arrival_time).min();
    let first = first.or_else(|| known(ColumnId::router_send_time).min());
    let over = known(ColumnId::end_time)
        .max()
        .or_else(|| known(ColumnId::finish_time).max());
    (first, over.or(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offset::Offset;
    use crate::report::sample::{Sample, at};
    use crate::request::csv;
    use crate::request::outcome::Outcome;
    use crate::request::row::Row;
    use crate::request::timeline::{ClockOf, Moment, Relation};

    /// Forty requests on two servers: some failed in several ways, one was retried, one has a poorly known clock, one has
    /// two sequences.
    fn records() -> Vec<Row> {
        let mut records = Vec::new();
        for n in 0..40_i64 {
            let host = ["127.0.0.1:30000", "127.0.0.1:30001"][n as usize % 2];
            let sample = Sample::starting(n * 37).host(host);
            let sample = sample.at(Moment::Finish, n * 37 + 500 + n * 3);
            let sample = sample.at(Moment::QueueEnd, n * 37 + 100 + n % 7);
            let sample = match n % 10 {
                3 => sample
                    .without(&[Moment::Finish, Moment::ServerFinish, Moment::LastToken])
                    .at(Moment::End, n * 37 + 450)
                    .ended(Outcome::UpstreamDied, "cut"),
                5 => sample
                    .without(&[Moment::Finish, Moment::FirstToken, Moment::LastToken])
                    .at(Moment::End, n * 37 + 90)
                    .ended(Outcome::Timeout, "late, \"very\""),
                7 => sample.with(|record| {
                    let offset = Offset {
                        nanos: 7_000_000_000,
                        error_nanos: 50_000_000,
                    };
                    record
                        .timeline
                        .relate(ClockOf::Engine, Relation::Apart(offset));
                }),
                8 => sample.with(|record| record.attempts = Some(2)),
                _ => sample,
            };
            let mut record = sample.open_row();
            if n % 10 == 9 {
                record.sequences = 2;
                record.more.n = 2;
                records.push(record.clone());
                record.index = 1;
            }
            records.push(record);
        }
        records
    }

    fn run_of(records: &[Row], base: csv::TimeBase) -> Run {
        let mut rows = Vec::new();
        csv::header(&mut rows);
        for row in crate::request::sample::rows(records) {
            csv::row(&row, base, &mut rows);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("requests.csv");
        std::fs::write(&path, rows).unwrap();
        Run {
            table: believed(Table::read(&path).unwrap()),
            ..Run::default()
        }
    }

    /// With nine digits of each number: a time that counts from the epoch is a little off.
    fn rounded(value: &mut Value) {
        match value {
            Value::Object(members) => members.values_mut().for_each(rounded),
            Value::Array(items) => items.iter_mut().for_each(rounded),
            Value::Number(number) => *value = format!("{:.9}", number.as_f64().unwrap()).into(),
            _ => {}
        }
    }

    #[test]
    fn figures_of_a_window_are_those_of_its_requests_in_its_time() {
        let records = records();
        let facts = RunFacts {
            started: at(0),
            ended: at(2500),
            offered_rate: None,
            scheduled: 40,
            config: Value::Null,
            goodput: Vec::new(),
            machine: serde_json::Value::Null,
        };
        // It begins with the arrival of a request, as one that is found does, and ends far before the last.
        let begun = records[8].timeline.raw(Moment::Sent);
        let from_s = begun.unwrap().since(at(0));
        let window = Window {
            from_s,
            to_s: from_s + 0.9,
            left_out_first: 8,
            left_out_last: 7,
            ..Window::default()
        };
        let table = believed(crate::report::load::tests::table(&records));
        let mut expected = Summary::of_table(&table, &facts, Some(window)).to_json();
        assert_eq!(expected["rows"], 28);
        assert_eq!(expected["started_at_ns"], at(0).nanos(), "the run's own");
        assert!((expected["duration"].as_f64().unwrap() - 0.9).abs() < 1e-9);
        let base = csv::TimeBase::Since(at(0));
        let mut run = run_of(&records, base);
        run.summary = expected.clone();
        let counted = (0..run.table.len()).filter(|row| run.is_counted()(*row));
        assert_eq!(counted.count(), 28);
        let mut found = figures(&run).to_json();
        for name in ["started_at", "started_at_ns", "machine"] {
            (expected[name], found[name]) = (Value::Null, Value::Null);
        }
        rounded(&mut expected);
        rounded(&mut found);
        assert_eq!(expected, found);
    }

    #[test]
    fn the_order_of_rows_changes_nothing() {
        let one = |n: i64| {
            let sample = Sample::starting(n * 37).with(|record| {
                record.req_id = Some(format!("r-{n}"));
            });
            let sample = sample.at(Moment::Finish, n * 37 + 500 + n * n * 7919 % 997);
            sample.open_row()
        };
        let records: Vec<Row> = (0..300).map(one).collect();
        let mut by_end = records.clone();
        by_end.sort_by_key(|record| record.timeline.raw(Moment::Finish));
        assert_ne!(by_end[7].req_id, records[7].req_id);
        let figures = |records: &[Row]| figures(&run_of(records, csv::TimeBase::Epoch)).to_json();
        assert_eq!(figures(&by_end)["latency"], figures(&records)["latency"]);
    }
}
