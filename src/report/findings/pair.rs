//! What holds requests up that one server prefills and another decodes. Who waits for decode's memory waits for whoever has it: its
//! answer may be under way, or it may itself wait for prefill, for the transfer or for a slot.

use super::{Finding, Seen};
use crate::request::timeline::Period;

/// What can be too narrow: the wait that shows it, what those with decode's memory are at meanwhile, title and advice.
const NARROW: [(Period, &[Period], &str, &str); 4] = [
    (
        Period::DECODE_MEMORY,
        &[Period::DECODE],
        "Decode is full: prefill waits for its memory",
        "Give decode servers more memory for the KV cache (`mem_fraction_static`), let more requests run if these are as many as \
         their `max_running_requests`, or add decode servers: more prefill servers do not help.",
    ),
    (
        Period::PREFILL_QUEUE,
        &[Period::PREFILL_QUEUE, Period::PREFILL],
        "Prefill is too slow: requests wait in its queue",
        "Add prefill servers, send requests that begin alike to the same one (`cache_aware`), or shorten prompts: more decode \
         servers do not help.",
    ),
    (
        Period::KV_TRANSFER,
        &[Period::KV_TRANSFER],
        "The link is too slow: requests wait for their KV cache",
        "Look at the network between prefill and decode, and compare `kv_send_time`, what prefill itself needed to send: a \
         faster link or transfer backend, a smaller `kv_cache_dtype`, or shorter prompts.",
    ),
    (
        Period::DECODE_SLOT,
        &[Period::DECODE_SLOT],
        "Decode's batch is full: requests wait for a slot",
        "Raise decode's `max_running_requests` while the time per output token allows it, or add decode servers: more prefill \
         servers do not help.",
    ),
];

/// What requests of pairs waited for most, where those waits are `share` of their time or more.
pub fn narrow(of: &Seen<'_>, found: Finding, share: f64) -> Option<Finding> {
    let nanos = |period: &Period| of.alone(*period).map_or(0, |part| part.nanos);
    let longest = NARROW.iter().max_by_key(|(wait, ..)| nanos(wait))?;
    let (wait, mut narrow) = (longest.0, longest);
    let took = of.stage(wait, share)?;
    let mut what = match wait {
        Period::DECODE_MEMORY => format!("A request waited {took} until decode had memory for it"),
        Period::PREFILL_QUEUE => format!("A request waited {took} in prefill's queue"),
        Period::KV_TRANSFER => format!("A request waited {took} for its KV cache"),
        _ => format!("A request waited {took} for a slot of decode's batch"),
    };
    if wait == Period::DECODE_MEMORY {
        let held = |(_, at, ..): &(_, &[Period], _, _)| at.iter().map(nanos).sum::<i128>();
        narrow = NARROW.iter().max_by_key(|one| held(one))?;
        let all: i128 = NARROW.iter().map(held).sum();
        let at = match narrow.0 {
            Period::DECODE_MEMORY => "decoding",
            Period::PREFILL_QUEUE => "in prefill or its queue",
            Period::KV_TRANSFER => "in the transfer of their KV cache",
            _ => "waiting for a slot",
        };
        let part = held(narrow) as f64 / all.max(1) as f64 * 100.0;
        what +=
            &format!("; those that had it were {at} for {part:.0} % of the time that they had it");
    }
    let (.., title, advice) = narrow;
    Some(Finding {
        title: (*title).to_owned(),
        advice: (*advice).to_owned(),
        ..found.saying(format!("{what}."))
    })
}
