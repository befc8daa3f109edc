//! What a run says of its waiting in server queues: what was full, and which requests caused it.

use crate::report::why::{Why, lopsided, words};
use crate::stats::waits::Cause;

use super::{Finding, LEAST, Seen, upper};

/// From this share of the waiting on a cause is named beside the main one: a fifth.
const MUCH: f64 = 0.2;

/// From this share of the waiting in servers on it is for their slots: a half.
const FULL: f64 = 0.5;

/// What tells when each request waited and ran.
const UNTIMED: &str = "Start the servers with `--enable-metrics`; the times of streamed chat and completions, and of requests that were given \
                       up, come by traces (`--enable-trace`, and `--engine-traces` of the proxy).";

/// What most of the waiting was for, and what else much of it, and what helps against each.
pub fn causes(of: &Seen<'_>, found: Finding, took: &str) -> Finding {
    let why = of.why;
    let waited = format!("A request waited {took} for a place in a batch.");
    let shares = why.shares();
    let Some(((main, share), others)) = shares.split_first() else {
        return found.saying(waited);
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
        // Those that a fault on purpose broke no switch would tell of.
        if of.run.faults.is_empty() {
            advice = format!("{UNTIMED} {advice}");
        }
    }
    Finding {
        advice,
        ..found.saying(what)
    }
}

/// What helps against a wait in the router while the servers have no slot free either.
pub fn behind_router(of: &Seen<'_>, found: Finding) -> Finding {
    let waited = of.why.mean().is_some_and(|mean| mean >= LEAST);
    let mut causes = of.why.shares().into_iter().filter(|_| waited);
    let full = causes.find(|(cause, share)| *cause == Cause::Slots && *share >= FULL);
    let Some((_, share)) = full else {
        return found;
    };
    let advice = match of.has("server_queue") {
        true => "What helps against the server queue helps here too.",
        false => Cause::Slots.advice(),
    };
    Finding {
        what: format!(
            "{} Those that it had sent on waited in the servers, {:.0} % of that time while all slots were taken.",
            found.what,
            share * 100.0
        ),
        advice: format!(
            "A higher limit of the router would only move this wait into the servers, whose slots are full. {advice}"
        ),
        ..found
    }
}

/// Few requests that held up the others.
pub fn by_few(why: &Why, found: Finding) -> Option<Finding> {
    let (by, said) = lopsided(&why.groups)?;
    let advice = match by {
        "prompt" => {
            "Give them servers of their own, or cut their prefill into smaller pieces (`chunked_prefill_size`)."
        }
        "output" => "Give them servers of their own, or limit how long answers may get.",
        _ => &found.advice,
    };
    Some(Finding {
        advice: advice.to_owned(),
        ..found.saying(said)
    })
}
