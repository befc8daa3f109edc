//! What a run says of its waiting in server queues: what was full, and which requests caused it.

use crate::report::why::{Why, lopsided, words};

use super::{Finding, upper};

/// What most of the waiting was for, and what helps against that.
pub fn cause(why: &Why, found: Finding, took: &str) -> Finding {
    let waited = format!("A request waited {took} for a place in a batch.");
    let Some((cause, share)) = why.main() else {
        return found.saying(waited);
    };
    let slots = why.servers.first().and_then(|server| server.slots());
    let what = words(cause, slots.map(|(slots, _)| slots));
    let share = share * 100.0;
    Finding {
        what: format!("{waited} {} for {share:.0} % of that time.", upper(&what)),
        advice: cause.advice().to_owned(),
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
