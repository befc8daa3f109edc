//! What a run says of its waiting in server queues: what was full, and which requests caused it.

use crate::report::why::{Why, lopsided, words};
use crate::stats::waits::Cause;

use super::{Finding, upper};

/// What most of the waiting was for, and what helps against that.
pub fn cause(why: &Why, found: Finding, took: &str) -> Finding {
    let waited = format!("A request waited {took} for a place in a batch.");
    let Some((cause, share)) = why.main() else {
        return found.saying(waited);
    };
    let slots = why.servers.first().and_then(|server| server.slots());
    let what = words(cause, slots.map(|(slots, _)| slots));
    let advice = match cause {
        Cause::Slots => {
            "Raise `max_running_requests` while the time per output token allows it, or add servers."
        }
        Cause::Memory => {
            "Give the KV cache more memory (`mem_fraction_static`, a smaller `kv_cache_dtype`), ask for shorter contexts and \
             answers, or add servers: more slots do not help."
        }
        Cause::Prefill => {
            "Send requests that begin alike to the same server (`cache_aware`), shorten prompts, or add servers; a smaller \
             `chunked_prefill_size` lets others in between: more slots do not help."
        }
        Cause::NotSeen => {
            "Find out who else sends requests to these servers, and send those through the same proxy: only what is seen \
             can be blamed."
        }
        Cause::Down => "Look at why a server was down; others took over what it had.",
        _ => {
            "Look at `token_usage` over time: near 1, the KV cache is full (raise `mem_fraction_static`); else raise \
             `max_running_requests` if as many ran, or add servers."
        }
    };
    let share = share * 100.0;
    Finding {
        what: format!("{waited} {} for {share:.0} % of that time.", upper(&what)),
        advice: advice.to_owned(),
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
