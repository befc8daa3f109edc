//! Whether the generator kept up.

use crate::request::columns::ColumnId;
use crate::request::stages::StageSet;
use crate::units::duration;

use super::{ENOUGH, Facts, Finding, MIN_MEAN_S};

/// A generator whose p99 lateness is over this share of the median TTFT distorts the latencies.
const LATE_SHARE: f64 = 0.1;
/// Shorter lateness is within what timers do, seconds.
const MIN_LATE_S: f64 = 0.020;
/// A client that stalls its responses for this share of their time shows in the figures.
const STALL_SHARE: f64 = 0.05;

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
