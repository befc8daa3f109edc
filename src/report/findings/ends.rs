//! How requests ended, what the rows themselves say is wrong, and what nobody saw.

use crate::report::load::{Summary, TimeSpent};
use crate::report::reader::Run;
use crate::request::outcome::Outcome;
use crate::request::stages::place;
use crate::request::unseen::Unseen;

use super::servers::counted;
use super::{ENOUGH, Finding, Level, told, upper};

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
    // Most frequent first.
    let kinds = &all.failures.kinds;
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
    let end = match is_many {
        true => ": the slowest may be among those that failed.",
        false => ".",
    };
    let what = format!(
        "{}. Latencies below are those of the requests that went well{end}",
        named.join("; ")
    );
    let advice = match run.faults.is_empty() {
        true => advice(first),
        false => {
            "Servers were disturbed on purpose in this run: the table of faults says which requests that cost."
        }
    };
    let mut found = Finding {
        title: format!(
            "{failed} of {requests} requests failed ({:.1} %)",
            share * 100.0
        ),
        advice: advice.to_owned(),
        ..Finding::new("failures", what)
    };
    if !is_many {
        found.level = Level::Limit;
    }
    Some(found)
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
    let what = format!(
        "{retracted} requests were taken out of a batch again to make room for others, and waited a second time."
    );
    Some(Finding::new("retractions", what))
}

/// Rows whose moments contradict each other.
pub fn inconsistent(figures: &Summary) -> Option<Finding> {
    let counts = &figures.all.counts;
    let (rows, (wrong, _)) = (counts.rows, &counts.inconsistent);
    if rows < ENOUGH || (*wrong as f64) < INCONSISTENT_SHARE * rows as f64 {
        return None;
    }
    let what = format!(
        "{wrong} of {rows} rows have moments out of order; the column `inconsistency` names them."
    );
    Some(Finding::new("inconsistent", what))
}

/// What of the requests was not seen, and what to switch on to see it.
pub fn unseen(run: &Run, spent: &TimeSpent) -> Option<Finding> {
    // The run itself knew more of its answers than its rows tell.
    let by_summary = told(run, "/time_spent/unseen").and_then(|unseen| unseen.as_object());
    let notes: Vec<String> = match by_summary {
        Some(unseen) => {
            let known = unseen.iter().filter_map(|(name, requests)| {
                Some(spent.unseen_note(Unseen::named(name)?, requests.as_u64()?))
            });
            known.collect()
        }
        None => spent.unseen_notes(),
    };
    if notes.is_empty() || spent.requests < ENOUGH {
        return None;
    }
    let what = format!(
        "{}. Stages that could not be told apart are shown as one, hatched.",
        upper(&notes.join("; "))
    );
    Some(Finding::new("unseen", what))
}
