//! Whether the generator was up to its work.

use crate::report::duration;
use crate::report::load::{Summary, TimeSpent};
use crate::report::reader::Run;
use crate::report::verdict::Grade;
use crate::request::stages::Spent;

use super::{ENOUGH, Finding, LEAST, Level, told, upper};

/// A generator that is late by more than this share of the median TTFT measures itself: a tenth.
const LATE_SHARE: f64 = 0.1;
/// Lateness of less than this is a timer's, seconds.
const LATE_LEAST: f64 = 0.020;
/// A client that holds up its answers for this share of the time is seen in the figures.
const STALL_SHARE: f64 = 0.05;

/// The run's own verdict, where it is not `VALID`.
pub fn verdict(run: &Run) -> Option<Finding> {
    let verdict = run.verdict()?;
    let end = |reason: &str| match reason.ends_with(['.', '!', '?']) {
        true => "",
        false => ".",
    };
    let reasons = verdict.reasons.iter();
    let reasons = reasons.map(|reason| upper(reason) + end(reason));
    let found = Finding::new("verdict", reasons.collect::<Vec<_>>().join(" "));
    match verdict.grade {
        Grade::Valid => None,
        Grade::Invalid => Some(found),
        Grade::Degraded => Some(Finding {
            level: Level::Limit,
            title: "DEGRADED: take these figures with care".to_owned(),
            ..found
        }),
    }
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
    match is_limited {
        true => Some(Finding::new("slots", what)),
        false if told(run, "/verdict").is_some() => None,
        false => Some(Finding::new("client_bound", what)),
    }
}

/// A client that did not read its answers in time.
pub fn stall(spent: &TimeSpent) -> Option<Finding> {
    let mut parts = spent.parts.iter();
    let part = parts.find(|part| part.spent == Spent::ClientStall)?;
    let (mean, share) = (spent.mean(part)?, spent.share(part)?);
    if spent.requests < ENOUGH || mean < LEAST || share < STALL_SHARE {
        return None;
    }
    let what = format!(
        "Answers stood still for {} of a request's time ({:.0} %) because the client did not read.",
        duration(mean),
        share * 100.0
    );
    Some(Finding::new("client_stall", what))
}
