//! Whether the generator was up to its work.

use crate::report::verdict::Grade;
use crate::request::columns::ColumnId;
use crate::request::stages::Spent;
use crate::units::duration;

use super::{ENOUGH, Finding, LEAST, Level, Seen, upper};

/// A generator that is late by more than this share of the median TTFT measures itself: a tenth.
const LATE_SHARE: f64 = 0.1;
/// Lateness of less than this is a timer's, seconds.
const LATE_LEAST: f64 = 0.020;
/// A client that holds up its answers for this share of the time is seen in the figures.
const STALL_SHARE: f64 = 0.05;
/// Reasons of a verdict that a better generator would not change.
const NOT_ITS: [&str; 2] = ["latencies are those of the others", "the run was stopped"];

/// The run's own verdict, where it is not `VALID`.
pub fn verdict(of: &Seen<'_>, found: Finding) -> Option<Finding> {
    let verdict = of.run.verdict()?;
    let end = |reason: &str| match reason.ends_with(['.', '!', '?']) {
        true => "",
        false => ".",
    };
    let reasons = verdict.reasons.iter();
    let reasons: Vec<String> = reasons.map(|reason| upper(reason) + end(reason)).collect();
    let mut found = found.saying(reasons.join(" "));
    // Some say themselves what helps; failed requests and a stop are not the generator's doing.
    let is_its = |reason: &String| !NOT_ITS.iter().any(|words| reason.contains(words));
    if found.what.contains("lower the rate") || !verdict.reasons.iter().any(is_its) {
        found.advice.clear();
    }
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

/// Requests that waited for one of `--max-concurrency` slots. Of other lateness the verdict tells.
pub fn slots(of: &Seen<'_>, found: Finding) -> Option<Finding> {
    of.run.told("/config/max_concurrency")?.as_u64()?;
    let latencies = &of.figures.all.latencies;
    let lag = latencies.get(ColumnId::schedule_lag);
    let lag = lag.filter(|lag| lag.count >= ENOUGH)?.p99;
    let ttft = latencies.get(ColumnId::ttft_observed)?.p50;
    (lag >= LATE_LEAST && lag >= LATE_SHARE * ttft).then(|| {
        found.saying(format!(
            "1 of 100 requests was sent {} late or later, where the median time to the first token is {}.",
            duration(lag),
            duration(ttft)
        ))
    })
}

/// A client that did not read its answers in time.
pub fn stall(of: &Seen<'_>, found: Finding) -> Option<Finding> {
    let spent = of.spent;
    let mut parts = spent.parts.iter();
    let part = parts.find(|part| part.spent == Spent::CLIENT_STALL)?;
    let (mean, share) = (spent.mean(part)?, spent.share(part)?);
    let is_long = spent.requests >= ENOUGH && mean >= LEAST && share >= STALL_SHARE;
    is_long.then(|| {
        found.saying(format!(
            "Answers stood still for {} of a request's time ({:.0} %) because the client did not read.",
            duration(mean),
            share * 100.0
        ))
    })
}
