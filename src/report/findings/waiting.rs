//! Waiting in server queues: its causes, and the requests that caused it.

use crate::report::why::{Why, lopsided, words};
use crate::stats::waits::Cause;

use super::{Evidence, Finding, MIN_MEAN_S, upper};

/// The share of the waiting from which a second cause is named.
const MUCH: f64 = 0.2;

/// The share of the waiting in servers from which their slots count as full.
const FULL: f64 = 0.5;

/// How to have servers report when each request waited and ran.
const TIMING_ADVICE: &str = "Start the servers with `--enable-metrics`; the times of streamed chat and completions, and of requests that were given \
                       up, come by traces (`--enable-trace`, and `--engine-traces` of the proxy).";

/// Names the main cause of the waiting and other large ones, and what helps against each.
pub fn causes(evidence: &Evidence<'_>, finding: Finding, took: &str) -> Finding {
    let why = evidence.why;
    let waited = format!("A request waited {took} for a place in a batch.");
    let shares = why.shares();
    let Some(((main, share), others)) = shares.split_first() else {
        return finding.with_text(waited);
    };
    let slots = why.slots();
    let percent = |share: &f64| format!("{:.0} %", share * 100.0);
    let (first, share) = (upper(&words(*main, slots)), percent(share));
    let mut what = format!("{waited} {first} for {share} of that time");
    let mut advice = main.advice().to_owned();
    let is_much = |(cause, share): &&(Cause, f64)| *share >= MUCH && *cause != Cause::Unknown;
    for (cause, share) in others.iter().filter(is_much) {
        let share = percent(share);
        what += &format!(", and {} for {share}", words(*cause, slots));
        advice += &format!(" For the {share}: {}", cause.advice());
    }
    what += ".";
    let unknown = shares.iter().find(|of| of.0 == Cause::Unknown);
    if why.untimed > 0 && unknown.is_some_and(|of| of.1 >= MUCH) {
        what += &format!(
            " Who had the server is not known while requests were there of which it told no times ({} in the rows).",
            why.untimed
        );
        // No switch shows the times of requests that a fault on purpose broke.
        if evidence.run.faults.is_empty() {
            advice = format!("{TIMING_ADVICE} {advice}");
        }
    }
    Finding {
        advice,
        ..finding.with_text(what)
    }
}

/// Changes the advice on a wait in the router if the servers have no free slot either.
pub fn behind_router(evidence: &Evidence<'_>, finding: Finding) -> Finding {
    let waited = evidence.why.mean().is_some_and(|mean| mean >= MIN_MEAN_S);
    let mut causes = evidence.why.shares().into_iter().filter(|_| waited);
    let full = causes.find(|(cause, share)| *cause == Cause::Slots && *share >= FULL);
    let Some((_, share)) = full else {
        return finding;
    };
    let advice = match evidence.has("server_queue") {
        true => "What helps against the server queue helps here too.",
        false => Cause::Slots.advice(),
    };
    Finding {
        what: format!(
            "{} Those that it had sent on waited in the servers, {:.0} % of that time while all slots were taken.",
            finding.what,
            share * 100.0
        ),
        advice: format!(
            "A higher limit of the router would only move this wait into the servers, whose slots are full. {advice}"
        ),
        ..finding
    }
}

/// Few requests that held up the others.
pub fn by_few(why: &Why, finding: Finding) -> Option<Finding> {
    let (by, text) = lopsided(&why.groups)?;
    let advice = match by {
        "prompt" => {
            "Give them servers of their own, or cut their prefill into smaller pieces (`chunked_prefill_size`)."
        }
        "output" => "Give them servers of their own, or limit how long answers may get.",
        _ => &finding.advice,
    };
    Some(Finding {
        advice: advice.to_owned(),
        ..finding.with_text(text)
    })
}
