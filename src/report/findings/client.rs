//! Whether the generator kept up.

use crate::report::verdict::{Cause, Grade};
use crate::request::columns::ColumnId;
use crate::request::stages::StageSet;
use crate::units::duration;

use super::{ENOUGH, Facts, Finding, Level, MIN_MEAN_S, capitalized};

/// A generator whose p99 lateness is over this share of the median TTFT distorts the latencies.
const LATE_SHARE: f64 = 0.1;
/// Shorter lateness is within what timers do, seconds.
const MIN_LATE_S: f64 = 0.020;
/// A client that stalls its responses for this share of their time shows in the figures.
const STALL_SHARE: f64 = 0.05;

/// The run's own verdict, unless it is `VALID`.
pub fn verdict(facts: &Facts<'_>, finding: &mut Finding) -> Option<String> {
    let verdict = facts.run.verdict()?;
    let reasons = verdict.reasons.iter();
    let reasons: Vec<String> = reasons.map(|reason| capitalized(reason) + ".").collect();
    // The reason for late sends says what helps. Failed requests and a stop are not the generator's doing. Files of older versions have
    // reasons only.
    let is_generators = |cause: &Cause| !matches!(cause, Cause::Failed | Cause::Stopped);
    let is_failed = |reason: &String| reason.contains(" failed: ");
    let causes = &verdict.causes;
    let is_its_doing = causes.iter().any(is_generators)
        || causes.is_empty() && !verdict.reasons.iter().all(is_failed);
    if !is_its_doing || causes.contains(&Cause::LateSends) {
        finding.advice.clear();
    }
    if verdict.grade == Grade::Degraded {
        finding.level = Level::Limit;
        finding.title = "DEGRADED: take these figures with care".to_owned();
    }
    (verdict.grade != Grade::Valid).then(|| reasons.join(" "))
}

/// Requests that waited for one of `--max-concurrency` slots. The verdict reports other lateness.
pub fn slots(facts: &Facts<'_>, _: &mut Finding) -> Option<String> {
    facts
        .run
        .summary_value("/config/max_concurrency")?
        .as_u64()?;
    let latencies = &facts.figures.all.latencies;
    let lag = latencies.get(ColumnId::schedule_lag);
    let lag = lag.filter(|lag| lag.count >= ENOUGH)?.p99;
    let ttft = latencies.get(ColumnId::ttft_observed)?.p50;
    (lag >= MIN_LATE_S && lag >= LATE_SHARE * ttft).then(|| {
        format!(
            "1 of 100 requests was sent {} late or later, where the median time to the first token is {}.",
            duration(lag),
            duration(ttft)
        )
    })
}

/// A client that did not read its responses in time.
pub fn stall(facts: &Facts<'_>, _: &mut Finding) -> Option<String> {
    let spent = facts.spent;
    let mut parts = spent.parts.iter();
    let part = parts.find(|part| part.spent == StageSet::CLIENT_STALL)?;
    let (mean, share) = (spent.mean(part)?, spent.share(part)?);
    let is_long = spent.requests >= ENOUGH && mean >= MIN_MEAN_S && share >= STALL_SHARE;
    is_long.then(|| {
        format!(
            "Answers stood still for {} of a request's time ({:.0} %) because the client did not read.",
            duration(mean),
            share * 100.0
        )
    })
}
