//! Whether the generator was up to its work.

use crate::report::duration;
use crate::report::load::{Summary, TimeSpent};
use crate::report::reader::Run;
use crate::report::stages::Spent;

use super::{ENOUGH, Finding, LEAST, Level, told};

/// A generator that is late by more than this share of the median TTFT measures itself: a tenth.
const LATE_SHARE: f64 = 0.1;
/// Lateness of less than this is a timer's, seconds.
const LATE_LEAST: f64 = 0.020;
/// A client that holds up its answers for this share of the time is seen in the figures.
const STALL_SHARE: f64 = 0.05;

/// The run's own verdict, where it is not `VALID`.
pub fn verdict(run: &Run) -> Option<Finding> {
    let grade = told(run, "/verdict/grade")?.as_str()?;
    let (level, title) = match grade {
        "INVALID" => (Level::Problem, "INVALID: do not use these figures"),
        "DEGRADED" => (Level::Limit, "DEGRADED: take these figures with care"),
        _ => return None,
    };
    let reasons = told(run, "/verdict/reasons").and_then(|reasons| reasons.as_array());
    let reasons = reasons
        .into_iter()
        .flatten()
        .filter_map(|reason| reason.as_str());
    let what = reasons.map(sentence).collect::<Vec<_>>().join(" ");
    Some(Finding {
        kind: "verdict",
        level,
        title: title.to_owned(),
        what,
        advice: "Give the generator a machine or cores of its own, or ask for a lower rate."
            .to_owned(),
    })
}

/// A reason as a sentence of its own.
fn sentence(reason: &str) -> String {
    let mut letters = reason.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    let end = if reason.ends_with(['.', '!', '?']) {
        ""
    } else {
        "."
    };
    format!("{}{}{end}", first.unwrap_or_default(), letters.as_str())
}

/// Requests that were sent later than the schedule said; a run that has a verdict has said so itself.
pub fn late(run: &Run, figures: &Summary) -> Option<Finding> {
    let is_limited = told(run, "/config/max_concurrency").is_some_and(|most| most.is_u64());
    let latencies = &figures.all.latencies;
    let lag = latencies
        .get("schedule_lag")
        .filter(|lag| lag.count >= ENOUGH)?
        .p99;
    let ttft = latencies.get("ttft_observed")?.p50;
    if lag < LATE_LEAST || lag < LATE_SHARE * ttft {
        return None;
    }
    let what = format!(
        "1 of 100 requests was sent {} late or later, where the median time to the first token is {}.",
        duration(lag),
        duration(ttft)
    );
    if is_limited {
        return Some(Finding {
            kind: "slots",
            level: Level::Limit,
            title: "The generator's own limit held requests back".to_owned(),
            what,
            advice: "`--max-concurrency` was reached, so the load was less than the schedule asked: raise it, or read the \
                latencies that count from the schedule."
                .to_owned(),
        });
    }
    if told(run, "/verdict").is_some() {
        return None;
    }
    Some(Finding {
        kind: "client_bound",
        level: Level::Problem,
        title: "The generator could not keep its schedule".to_owned(),
        what,
        advice: "Give the generator a machine or cores of its own, or ask for a lower rate."
            .to_owned(),
    })
}

/// A client that did not read its answers in time.
pub fn stall(spent: &TimeSpent) -> Option<Finding> {
    let mut parts = spent.parts.iter();
    let part = parts.find(|part| part.spent == Spent::ClientStall)?;
    let (mean, share) = (spent.mean(part)?, spent.share(part)?);
    if spent.requests < ENOUGH || mean < LEAST || share < STALL_SHARE {
        return None;
    }
    Some(Finding {
        kind: "client_stall",
        level: Level::Limit,
        title: "Clients read slower than the servers write".to_owned(),
        what: format!(
            "Answers stood still for {} of a request's time ({:.0} %) because the client did not read.",
            duration(mean),
            share * 100.0
        ),
        advice: "Look at the client's CPU and network; the servers are not slow here.".to_owned(),
    })
}
