//! The bottleneck of pairs of prefill and decode servers.
//!
//! A request that waits for memory of the decode server waits for those that hold it. They may be decoding, or wait themselves: for
//! prefill, for the transfer or for a slot.

use super::{Finding, QUEUE_SHARE, RunReport};
use crate::request::Period;
use crate::stats::waits::Cause;

/// What can limit a pair.
struct Bottleneck {
    /// The wait that shows it, and its text.
    wait: (Period, &'static str),
    /// The stages that it prolongs for requests that hold memory of the decode server, and their text.
    stages: (&'static [Period], &'static str),
    title: &'static str,
    cause: Cause,
}

const ALL: [Bottleneck; 4] = [
    Bottleneck {
        wait: (Period::DECODE_MEMORY, "until decode had memory for it"),
        stages: (&[Period::DECODE], "decoding"),
        title: "Decode is full: prefill waits for its memory",
        cause: Cause::DecodeMemory,
    },
    Bottleneck {
        wait: (Period::PREFILL_QUEUE, "in prefill's queue"),
        stages: (
            &[Period::PREFILL_QUEUE, Period::PREFILL],
            "in prefill or its queue",
        ),
        title: "Prefill is too slow: requests wait in its queue",
        cause: Cause::PrefillQueue,
    },
    Bottleneck {
        wait: (Period::KV_TRANSFER, "for its KV cache"),
        stages: (&[Period::KV_TRANSFER], "in the transfer of their KV cache"),
        title: "The link is too slow: requests wait for their KV cache",
        cause: Cause::Transfer,
    },
    Bottleneck {
        wait: (Period::DECODE_SLOT, "for a slot of decode's batch"),
        stages: (&[Period::DECODE_SLOT], "waiting for a slot"),
        title: "Decode's batch is full: requests wait for a slot",
        cause: Cause::DecodeSlots,
    },
];

/// Names what requests of pairs waited for most, if the four waits are a large part of their time.
pub fn bottleneck(report: &RunReport<'_>, finding: &mut Finding) -> Option<String> {
    let nanos = |period: &Period| report.part(*period).map_or(0, |part| part.nanos);
    let longest = ALL.iter().max_by_key(|one| nanos(&one.wait.0))?;
    let share_of = |one: &Bottleneck| report.summary.all.spent.share(report.part(one.wait.0)?);
    let shares = ALL.iter().filter_map(share_of);
    let took =
        (shares.sum::<f64>() >= QUEUE_SHARE).then(|| report.stage(longest.wait.0, 0.0))??;
    let mut what = format!("A request waited {took} {}", longest.wait.1);
    let mut bottleneck = longest;
    if longest.wait.0 == Period::DECODE_MEMORY {
        let held = |one: &Bottleneck| one.stages.0.iter().map(nanos).sum::<i128>();
        bottleneck = ALL.iter().max_by_key(|one| held(one))?;
        let part = held(bottleneck) as f64 / ALL.iter().map(held).sum::<i128>().max(1) as f64;
        let (at, part) = (bottleneck.stages.1, part * 100.0);
        what +=
            &format!("; those that had it were {at} for {part:.0} % of the time that they had it");
    }
    finding.title = bottleneck.title.to_owned();
    finding.advice = bottleneck.cause.advice().to_owned();
    Some(format!("{what}."))
}

#[cfg(test)]
mod tests;
