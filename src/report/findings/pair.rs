//! What holds requests up that one server prefills and another decodes. Who waits for decode's memory waits for whoever has it: its
//! answer may be under way, or it may itself wait for prefill, for the transfer or for a slot.

use super::{Finding, Seen};
use crate::request::timeline::Period;
use crate::stats::waits::Cause;

/// What can be too narrow.
struct Narrow {
    /// The wait that shows it, and what is waited for.
    wait: (Period, &'static str),
    /// Where those that have decode's memory are meanwhile, and in words.
    at: (&'static [Period], &'static str),
    title: &'static str,
    cause: Cause,
}

const MEMORY: Narrow = Narrow {
    wait: (Period::DECODE_MEMORY, "until decode had memory for it"),
    at: (&[Period::DECODE], "decoding"),
    title: "Decode is full: prefill waits for its memory",
    cause: Cause::DecodeMemory,
};
const PREFILL: Narrow = Narrow {
    wait: (Period::PREFILL_QUEUE, "in prefill's queue"),
    at: (
        &[Period::PREFILL_QUEUE, Period::PREFILL],
        "in prefill or its queue",
    ),
    title: "Prefill is too slow: requests wait in its queue",
    cause: Cause::PrefillQueue,
};
const LINK: Narrow = Narrow {
    wait: (Period::KV_TRANSFER, "for its KV cache"),
    at: (&[Period::KV_TRANSFER], "in the transfer of their KV cache"),
    title: "The link is too slow: requests wait for their KV cache",
    cause: Cause::Transfer,
};
const SLOTS: Narrow = Narrow {
    wait: (Period::DECODE_SLOT, "for a slot of decode's batch"),
    at: (&[Period::DECODE_SLOT], "waiting for a slot"),
    title: "Decode's batch is full: requests wait for a slot",
    cause: Cause::DecodeSlots,
};

/// What requests of pairs waited for most, where the four waits are `share` of their time or more.
pub fn narrow(of: &Seen<'_>, found: Finding, share: f64) -> Option<Finding> {
    let all = [MEMORY, PREFILL, LINK, SLOTS];
    let nanos = |period: &Period| of.alone(*period).map_or(0, |part| part.nanos);
    let longest = all.iter().max_by_key(|one| nanos(&one.wait.0))?;
    let share_of = |one: &Narrow| of.spent.share(of.alone(one.wait.0)?);
    let shares = all.iter().filter_map(share_of);
    let took = (shares.sum::<f64>() >= share).then(|| of.stage(longest.wait.0, 0.0))??;
    let mut what = format!("A request waited {took} {}", longest.wait.1);
    let mut narrow = longest;
    if longest.wait.0 == Period::DECODE_MEMORY {
        let held = |one: &Narrow| one.at.0.iter().map(nanos).sum::<i128>();
        narrow = all.iter().max_by_key(|one| held(one))?;
        let part = held(narrow) as f64 / all.iter().map(held).sum::<i128>().max(1) as f64;
        let (at, part) = (narrow.at.1, part * 100.0);
        what +=
            &format!("; those that had it were {at} for {part:.0} % of the time that they had it");
    }
    Some(Finding {
        title: narrow.title.to_owned(),
        advice: narrow.cause.advice().to_owned(),
        ..found.saying(format!("{what}."))
    })
}

#[cfg(test)]
mod tests;
