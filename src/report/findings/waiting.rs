//! What a run says of its waiting in server queues: what was full, and which requests caused it.

use crate::report::why::{Why, lopsided, words};
use crate::stats::waits::Cause;

use super::{Finding, upper};

/// From this share of the waiting on a cause is named beside the main one: a fifth.
const MUCH: f64 = 0.2;

/// What tells when each request waited and ran.
const UNTIMED: &str = "Start the servers with `--enable-metrics`; the times of streamed chat and completions, and of requests that were given \
                       up, come by traces (`--enable-trace`, and `--engine-traces` of the proxy).";

/// What most of the waiting was for, and what else much of it, and what helps against each.
pub fn causes(why: &Why, found: Finding, took: &str) -> Finding {
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
        advice = format!("{UNTIMED} {advice}");
    }
    Finding {
        advice,
        ..found.saying(what)
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
