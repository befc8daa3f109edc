//! Requests: where they waited (in the generator, in the router, in server queues, for the client) and why, how they failed, and those that
//! were retracted.

use crate::report::load::FailureKind;
use crate::report::why::dominant_group;
use crate::request::{ColumnId, Outcome, Period, StageSet};
use crate::stats::waits::Cause;
use crate::units::{count, duration, percent};

use super::{ENOUGH, Finding, Level, MIN_MEAN_S, QUEUE_SHARE, RunReport, capitalized};

/// The share of failed requests from which the latencies of the others mislead: the slowest requests may be among those that failed.
const FAILED_SHARE: f64 = 0.01;
/// The share of a request's time from which its wait is a finding: in the router, for room in a server, or for few other requests.
const WAIT_SHARE: f64 = 0.1;
/// The share of the waiting from which a second cause is named.
const MUCH: f64 = 0.2;

/// The share of the waiting in servers from which their slots count as full.
const FULL: f64 = 0.5;

/// A generator whose p99 lateness is over this share of the median TTFT distorts the latencies.
const LATE_SHARE: f64 = 0.1;
/// Shorter lateness is within what timers do, seconds.
const MIN_LATE_S: f64 = 0.020;
/// A client that stalls its responses for this share of their time shows in the figures.
const STALL_SHARE: f64 = 0.05;

/// Waiting in server queues: its main cause and other large ones, and what helps against each.
pub fn server_queue(report: &RunReport<'_>, finding: &mut Finding) -> Option<String> {
    let why = &report.why;
    let shares = why.shares();
    // Waiting for the batch under way is a part of serving.
    let main = shares.first().map(|of| of.0);
    let is_room = !matches!(main, None | Some(Cause::Prefill | Cause::Unknown));
    let min_share = if is_room { WAIT_SHARE } else { QUEUE_SHARE };
    let took = report.stage(Period::PURE_QUEUE, min_share)?;
    let mut what = format!("A request waited {took} for a place in a batch.");
    let Some(((main, share), others)) = shares.split_first() else {
        return Some(what);
    };
    let slots = why.slots();
    let (first, share) = (capitalized(&main.described(slots)), percent(*share));
    what += &format!(" {first} for {share} of that time");
    finding.advice = main.advice().to_owned();
    let is_much = |(cause, share): &&(Cause, f64)| *share >= MUCH && *cause != Cause::Unknown;
    for (cause, share) in others.iter().filter(is_much) {
        let share = percent(*share);
        what += &format!(", and {} for {share}", cause.described(slots));
        finding.advice += &format!(" For the {share}: {}", cause.advice());
    }
    Some(what + ".")
}

/// Waiting in the router. A higher limit of the router does not help if the servers have no free slot either.
pub fn router_queue(report: &RunReport<'_>, finding: &mut Finding) -> Option<String> {
    let took = report.stage(Period::QUEUE_IN_ROUTER, WAIT_SHARE)?;
    let what = format!("The router held a request {took} before it sent it on.");
    let waited = report.why.mean().is_some_and(|mean| mean >= MIN_MEAN_S);
    let mut causes = report.why.shares().into_iter().filter(|_| waited);
    let full = causes.find(|(cause, share)| *cause == Cause::Slots && *share >= FULL);
    let Some((_, share)) = full else {
        return Some(what);
    };
    finding.advice = format!(
        "A higher limit of the router would only move this wait into the servers, whose slots are full. {}",
        Cause::Slots.advice()
    );
    Some(format!(
        "{what} Those that it had sent on waited in the servers, {:.0} % of that time while all slots were taken.",
        share * 100.0
    ))
}

/// Few requests that held up the others.
pub fn held_up(report: &RunReport<'_>, _: &mut Finding) -> Option<String> {
    report.stage(Period::PURE_QUEUE, WAIT_SHARE)?;
    dominant_group(&report.why.groups)
}

/// Requests that waited for one of `--max-concurrency` slots. The verdict reports other lateness.
pub fn slots(report: &RunReport<'_>, _: &mut Finding) -> Option<String> {
    report.run.summary_as::<u64>("/config/max_concurrency")?;
    let latencies = &report.summary.all.latencies;
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
pub fn stall(report: &RunReport<'_>, _: &mut Finding) -> Option<String> {
    let spent = &report.summary.all.spent;
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
