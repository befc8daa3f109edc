//! Failed and retracted requests.

use crate::report::load::FailureKind;
use crate::report::runs::RunReport;
use crate::request::columns::ColumnId;
use crate::request::outcome::Outcome;
use crate::units::count;

use super::{Finding, Level};

/// The share of failed requests from which the latencies of the others mislead: the slowest requests may be among those that failed.
const FAILED_SHARE: f64 = 0.01;

/// Failed requests, and where they were last seen.
pub fn failures(report: &RunReport<'_>, finding: &mut Finding) -> Option<String> {
    let all = &report.summary.all;
    let failed = all.counts.failed();
    let requests = all.counts.requests - all.counts.given_up;
    if failed == 0 {
        return None;
    }
    let share = failed as f64 / requests as f64;
    let mut end = ": the slowest may be among those that failed.";
    if share < FAILED_SHARE {
        (finding.level, end) = (Level::Limit, ".");
    }
    let percent = share * 100.0;
    finding.title = format!("{failed} of {requests} requests failed ({percent:.1} %)");
    let first = all.failures.first();
    let advice = match report.run.faults.is_empty() {
        true => first.and_then(|kind| advice(kind.outcome)),
        false => Some("This run had faults on purpose: the table of faults shows what they cost."),
    };
    if let Some(advice) = advice {
        finding.advice = advice.to_owned();
    }
    let text = FailureKind::list(&all.failures);
    Some(match all.counts.ok() {
        0 => format!("{text}."),
        _ => format!("{text}. The latencies are those of the requests that went well{end}"),
    })
}

/// What to do about the most frequent kind of failure, if its outcome suggests it.
fn advice(outcome: Outcome) -> Option<&'static str> {
    Some(match outcome {
        Outcome::Rejected | Outcome::Timeout => {
            "More was sent than is served in time: add servers, lower the rate, or allow a longer queue (the column `error` says \
             whose) or time (`--request-timeout-s`)."
        }
        Outcome::ClientError => "The requests themselves were refused: read the column `error`.",
        Outcome::ConnectError => {
            "Nothing listened at the target, or it accepted no more connections: is the server or router up?"
        }
        Outcome::UpstreamDied | Outcome::ServerError => {
            "Read the end of the servers' logs (`logs/` in the folder of an experiment's run) and the column `error`."
        }
        _ => return None,
    })
}

/// Requests that servers took out of a batch again (retracted).
pub fn retractions(report: &RunReport<'_>, _: &mut Finding) -> Option<String> {
    let table = &report.run.table;
    let times = |row| table.number(ColumnId::num_retractions, row).unwrap_or(0.0);
    let is_retracted = |row: &usize| table.rows_of(*row).any(|row| times(row) > 0.0);
    let retracted = report.run.counted().filter(is_retracted).count();
    (retracted > 0).then(|| {
        let requests = count(retracted, "request");
        format!("To make room for others, {requests} left a batch again and waited a second time.")
    })
}
