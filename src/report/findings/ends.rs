//! How requests ended, and what nobody saw.

use crate::report::load::{Counts, Kind};
use crate::request::columns::ColumnId;
use crate::request::outcome::Outcome;
use crate::request::stages::Spent;

use super::{ENOUGH, Finding, Level, Seen};

/// From this share on failed requests change what the figures of the others mean: 1 of 100.
const FAILED_SHARE: f64 = 0.01;
/// How requests to a server end that is not there, or no longer.
const NO_CONNECTION: [Outcome; 3] = [
    Outcome::UpstreamDied,
    Outcome::ConnectError,
    Outcome::ProxyError,
];
/// In errors of routers that have no server to send to.
const NO_SERVER: &str = "No available ";

/// Requests that did not go well, and where they were then.
pub fn failures(of: &Seen<'_>, found: Finding) -> Option<Finding> {
    let all = &of.figures.all;
    let (failed, requests) = (
        all.counts.failed(),
        all.counts.requests - all.counts.given_up,
    );
    if failed == 0 {
        return None;
    }
    let share = failed as f64 / requests as f64;
    let (level, end) = match share >= FAILED_SHARE {
        true => (found.level, ": the slowest may be among those that failed."),
        false => (Level::Limit, "."),
    };
    let what = format!(
        "{}. The latencies are those of the requests that went well{end}",
        all.failures.words()
    );
    let percent = share * 100.0;
    let first = all.failures.kinds.first();
    let is_said = |kind: &&Kind| of.has("server_failed") && NO_CONNECTION.contains(&kind.outcome);
    let advice = match of.run.faults.is_empty() {
        true if first.filter(is_said).is_some() => Some("See the server that failed."),
        true => first.and_then(|kind| advice(kind, &all.counts)),
        false => Some("This run had faults on purpose: the table of faults shows what they cost."),
    };
    Some(Finding {
        level,
        title: format!("{failed} of {requests} requests failed ({percent:.1} %)"),
        advice: advice.map_or(found.advice, str::to_owned),
        what,
        ..found
    })
}

/// What to do about the most frequent kind, where its outcome says it.
fn advice(kind: &Kind, counts: &Counts) -> Option<&'static str> {
    // As sglang-router and smg say it.
    let errors = counts.errors.iter();
    let without_server = errors.filter(|(error, _)| error.contains(NO_SERVER));
    let without_server: u64 = without_server.map(|(_, count)| count).sum();
    Some(match kind.outcome {
        Outcome::Rejected if without_server * 2 > kind.requests => {
            "The router took no server for alive: look at the servers' `/health` and logs. A router uses a server that it gave up again \
             once a later check of it succeeds."
        }
        Outcome::Rejected if kind.last_seen == Some(Spent::PROXY) => {
            "The proxy itself held them back, as many as its `max_concurrent_requests` being under way, and refused them after \
             `queue_timeout_s`: raise one of these, add servers, or lower the rate."
        }
        Outcome::Rejected => {
            "A queue was full: add servers, lower the rate, or allow a longer queue."
        }
        Outcome::Timeout => {
            "The time limit ran out while requests waited: lower the rate, add servers, or raise `--request-timeout-s`."
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

/// Requests that the servers took out of their batches again.
pub fn retractions(of: &Seen<'_>, found: Finding) -> Option<Finding> {
    let table = &of.run.table;
    let count = |row| table.number(ColumnId::num_retractions, row).unwrap_or(0.0);
    let is_retracted = |row: &usize| table.rows_of(*row).any(|row| count(row) > 0.0);
    let retracted = of.run.counted().filter(is_retracted).count();
    (retracted > 0).then(|| {
        found.saying(format!(
            "{} taken out of a batch again to make room for others, and waited a second time.",
            match retracted {
                1 => "1 request was".to_owned(),
                many => format!("{many} requests were"),
            }
        ))
    })
}

/// What of the requests was not seen, and what to switch on to see it.
pub fn unseen(of: &Seen<'_>, found: Finding) -> Option<Finding> {
    let spent = of.spent;
    let notes = spent.unseen_notes();
    (!notes.is_empty() && spent.requests >= ENOUGH).then(|| {
        found.saying(format!(
            "{}. Stages that could not be measured separately are shown as one, hatched.",
            notes.join(". ")
        ))
    })
}

/// Nothing else is found, of so few requests.
pub fn too_few(of: &Seen<'_>, found: Finding) -> Option<Finding> {
    let (known, well) = (of.spent.requests, of.figures.all.counts.ok());
    let advice = match of.figures.all.flow.is_scheduled && known == well {
        true => found.advice,
        false => String::new(),
    };
    let untimed = match known == well {
        true => String::new(),
        false => format!(", {known} of them with an arrival and an end"),
    };
    of.found.is_empty().then(|| Finding {
        what: format!("{well} requests went well{untimed}; findings need at least {ENOUGH}."),
        advice,
        ..found
    })
}
