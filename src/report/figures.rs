//! The figures of a run, computed from its rows: by `queuescope report` and for `summary.json` in the same way.

use std::path::Path;

use serde_json::Value;

use crate::clock::Stamp;
use crate::request::ColumnId;

use super::load::{Goal, RunFacts, Summary};
use super::reader::Run;
use super::sanitize::sanitize;
use crate::error::Error;
use crate::table::window::{Window, arrived};
use crate::table::{Table, rows};

/// Computes the figures of a run.
pub fn figures(run: &Run) -> Summary {
    let facts = facts(run);
    let mut summary = Summary::of_table(&run.table, &facts, run.window());
    let recorded = run.summary_as("/started_at_ns").map(Stamp::from_nanos);
    let of_rows = || Some(Stamp::from_seconds(run.zero()?)?.plus_nanos(facts.started.nanos()));
    summary.began = recorded.or_else(of_rows);
    summary
}

/// Computes the figures of a run that has just ended from its file of rows, without the first and last seconds of the run.
///
/// # Errors
/// The rows cannot be read.
pub fn of_file(rows: &Path, facts: &RunFacts, [first, last]: [f64; 2]) -> Result<Summary, Error> {
    let began = Some(facts.started.seconds());
    let (table, _) = rows::read(&[rows.to_owned()], began, rows::SKIPPED_COLUMNS)?;
    let table = sanitize(table);
    // Times of a table count from the beginning of the run.
    let zero = Stamp::from_nanos(0);
    let seconds = facts.ended.since(facts.started);
    let mut of_rows = facts.clone();
    (of_rows.started, of_rows.ended) = (zero, zero.plus_seconds(seconds));
    let window = Window::choose(&arrived(&table), seconds, first, last);
    let mut summary = Summary::of_table(&table, &of_rows, Some(window));
    summary.began = Some(facts.started);
    Ok(summary)
}

/// Reads what is known of a run without its rows from its `summary.json`, as far as there is one.
pub(super) fn facts(run: &Run) -> RunFacts {
    let (began, ended) = ends(&run.table);
    // The run begins with its schedule, not with its first request: times count from then.
    let is_scheduled = run.table.has(ColumnId::scheduled_time);
    let started = Stamp::from_nanos(if is_scheduled { 0 } else { began.unwrap_or(0) });
    let ended = match run.duration() {
        Some(duration) => started.plus_seconds(duration),
        None => ended.map_or(started, Stamp::from_nanos),
    };
    let goals = run.summary_value("/goodput_goals_ms");
    let goals = goals.and_then(Value::as_object).into_iter().flatten();
    let goal = |(name, limit): (&String, &Value)| format!("{name}:{limit}").parse::<Goal>().ok();
    let scheduled = run.scheduled().map(|count| count as usize);
    RunFacts {
        started,
        ended,
        offered_rate: run.summary_as("/offered_rate"),
        scheduled: scheduled.unwrap_or_else(|| run.table.first_rows().count()),
        config: run.summary_value("/config").cloned().unwrap_or_default(),
        goodput: goals.filter_map(goal).collect(),
        machine: run.summary_value("/machine").cloned().unwrap_or_default(),
    }
}

/// When the first request arrived, and when the last one ended; nanoseconds.
fn ends(table: &Table) -> (Option<i64>, Option<i64>) {
    // A hop's rows have no arrival.
    let columns = [ColumnId::arrival_time, ColumnId::router_send_time];
    let began = |row| columns.iter().find_map(|of| table.integer(*of, row));
    let first = (0..table.len()).filter_map(began).min();
    let last = (0..table.len()).filter_map(|row| table.ended(row)).max();
    (first, last.or(first))
}
