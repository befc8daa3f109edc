//! How requests ended, and what the rows themselves say is wrong.

use std::collections::BTreeMap;

use crate::report::reader::Run;
use crate::request::outcome::GIVEN_UP;

use super::{ENOUGH, Finding, Level};

/// From this share on failed requests change what the figures of the others mean: 1 of 100.
const FAILED_SHARE: f64 = 0.01;
/// Rows whose moments contradict each other, from this share on.
const INCONSISTENT_SHARE: f64 = 0.01;
/// Kinds of failures that are named.
const NAMED: usize = 3;

/// Requests that did not go well, and where they were then.
pub fn failures(run: &Run) -> Option<Finding> {
    let table = &run.table;
    let mut kinds: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut requests = 0_u64;
    for row in (0..table.len()).filter(|row| table.is_first(*row)) {
        if table.text("error", row) == GIVEN_UP {
            continue;
        }
        requests += 1;
        if !table.is_ok(row) {
            let kind = (table.text("outcome", row), table.text("ended_in", row));
            *kinds.entry(kind).or_default() += 1;
        }
    }
    let failed: u64 = kinds.values().sum();
    if failed == 0 {
        return None;
    }
    let share = failed as f64 / requests as f64;
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let named = kinds.iter().take(NAMED).map(|((outcome, place), count)| {
        let outcome = match *outcome {
            "" => "failed",
            outcome => outcome,
        };
        match *place {
            "" => format!("{count} `{outcome}`"),
            place => format!("{count} `{outcome}`, last seen in: {place}"),
        }
    });
    let mut named: Vec<String> = named.collect();
    if kinds.len() > NAMED {
        named.push("others".to_owned());
    }
    let is_many = share >= FAILED_SHARE;
    let first = kinds.first().map_or("", |((outcome, _), _)| outcome);
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
fn advice(outcome: &str) -> &'static str {
    match outcome {
        "rejected" => "A queue was full: add servers, lower the rate, or allow a longer queue.",
        "timeout" => {
            "The time limit ran out while requests waited: lower the rate, add servers, or raise `--request-timeout-s`."
        }
        "client_error" => "The server refused the requests themselves: read the column `error`.",
        "connect_error" => {
            "Nobody listened at the target, or it had no room: is the server or router up?"
        }
        "upstream_died" | "server_error" => {
            "Read the end of the servers' logs (`logs/` in the run's folder) and the column `error`."
        }
        _ => "Read the column `error` of these rows in `requests.csv`.",
    }
}

/// Requests that the servers took out of their batches again.
pub fn retractions(run: &Run) -> Option<Finding> {
    let counts = run.table.numbers("num_retractions").iter();
    let retracted = counts.filter(|count| **count > 0.0).count();
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
pub fn inconsistent(run: &Run) -> Option<Finding> {
    let table = &run.table;
    let rows = table.len();
    let wrong = (0..rows).filter(|row| !table.text("inconsistency", *row).is_empty());
    let wrong = wrong.count();
    if (rows as u64) < ENOUGH || (wrong as f64) < INCONSISTENT_SHARE * rows as f64 {
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
