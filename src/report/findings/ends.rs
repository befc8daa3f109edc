//! How requests ended, and what the rows themselves say is wrong.

use crate::report::load::Summary;
use crate::report::reader::Run;
use crate::request::outcome::Outcome;
use crate::request::stages::place;

use super::servers::counted;
use super::{ENOUGH, Finding, Level};

/// From this share on failed requests change what the figures of the others mean: 1 of 100.
const FAILED_SHARE: f64 = 0.01;
/// Rows whose moments contradict each other, from this share on.
const INCONSISTENT_SHARE: f64 = 0.01;
/// Kinds of failures that are named.
const NAMED: usize = 3;

/// Requests that did not go well, and where they were then.
pub fn failures(run: &Run, figures: &Summary) -> Option<Finding> {
    let all = &figures.all;
    let failed = all.counts.failed();
    let requests = all.counts.requests - all.counts.given_up;
    if failed == 0 {
        return None;
    }
    let share = failed as f64 / requests as f64;
    let mut kinds: Vec<_> = all.failures.kinds.iter().collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.requests));
    let named = kinds.iter().take(NAMED).map(|kind| {
        let place = kind
            .last_seen
            .map(|seen| format!(", last seen {}", place(seen)));
        let (count, outcome) = (kind.requests, kind.outcome.name());
        format!("{count} `{outcome}`{}", place.unwrap_or_default())
    });
    let mut named: Vec<String> = named.collect();
    if kinds.len() > NAMED {
        named.push("others".to_owned());
    }
    let is_many = share >= FAILED_SHARE;
    let first = kinds.first().map(|kind| kind.outcome);
    Some(Finding {
        kind: "failures",
        level: if is_many {
            Level::Problem
        } else {
            Level::Limit
        },
        title: format!(
            "{failed} of {requests} requests failed ({:.1} %)",
            share * 100.0
        ),
        what: format!(
            "{}. Latencies below are those of the requests that went well{}",
            named.join("; "),
            if is_many {
                ": the slowest may be among those that failed."
            } else {
                "."
            }
        ),
        advice: if run.faults.is_empty() {
            advice(first).to_owned()
        } else {
            "Servers were disturbed on purpose in this run: the table of faults says which requests that cost.".to_owned()
        },
    })
}

/// What to do about the most frequent outcome.
fn advice(outcome: Option<Outcome>) -> &'static str {
    match outcome {
        Some(Outcome::Rejected) => {
            "A queue was full: add servers, lower the rate, or allow a longer queue."
        }
        Some(Outcome::Timeout) => {
            "The time limit ran out while requests waited: lower the rate, add servers, or raise `--request-timeout-s`."
        }
        Some(Outcome::ClientError) => {
            "The requests themselves were refused: read the column `error`."
        }
        Some(Outcome::ConnectError) => {
            "Nobody listened at the target, or it had no room: is the server or router up?"
        }
        Some(Outcome::UpstreamDied | Outcome::ServerError) => {
            "Read the end of the servers' logs (`logs/` in the folder of an experiment's run) and the column `error`."
        }
        _ => "Read the column `error` of these rows.",
    }
}

/// Requests that the servers took out of their batches again.
pub fn retractions(run: &Run) -> Option<Finding> {
    let table = &run.table;
    let is_retracted = |row: usize| {
        let more = (row + 1..table.len()).take_while(|row| !table.is_first(*row));
        let mut rows = std::iter::once(row).chain(more);
        rows.any(|row| {
            table
                .number("num_retractions", row)
                .is_some_and(|count| count > 0.0)
        })
    };
    let retracted = counted(run).filter(|row| is_retracted(*row)).count();
    if retracted == 0 {
        return None;
    }
    Some(Finding {
        kind: "retractions",
        level: Level::Limit,
        title: "Servers ran out of memory for tokens".to_owned(),
        what: format!(
            "{retracted} requests were taken out of a batch again to make room for others, and waited a second time."
        ),
        advice: "Raise `mem_fraction_static` or `schedule_conservativeness`, lower `max_running_requests`, or add servers."
            .to_owned(),
    })
}

/// Rows whose moments contradict each other.
pub fn inconsistent(figures: &Summary) -> Option<Finding> {
    let counts = &figures.all.counts;
    let (rows, (wrong, _)) = (counts.rows, &counts.inconsistent);
    if rows < ENOUGH || (*wrong as f64) < INCONSISTENT_SHARE * rows as f64 {
        return None;
    }
    Some(Finding {
        kind: "inconsistent",
        level: Level::Note,
        title: "Some moments contradict each other".to_owned(),
        what: format!("{wrong} of {rows} rows have moments out of order; the column `inconsistency` names them."),
        advice: "A clock was set during the run, or a server tells its times wrongly: do not trust stages of these rows."
            .to_owned(),
    })
}
