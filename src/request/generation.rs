//! The SGLang version that wrote a `meta_info`, recognized by its fields.
//!
//! Responses do not name the version, and forks carry any number.

use super::meta_info::{Member, MemberSet};
use super::names::names;

names! {
    versions, of_versions:
    /// Versions that write the same fields, in the order of releases. The docs show the comment of each: what it reports and what
    /// it cannot.
    pub enum Generation {
        /// it reports no time of the server, whatever flags are set
        Before0_4_6 = "0.4.0, or another before 0.4.6",
        /// it reports no time of the server, whatever flags are set
        From0_4_6 = "0.4.6 to 0.5.4.post3",
        /// it reports receipt and first token; of the queue both ends, or only how long it was; not the end of prefill
        Fork = "a fork of about 0.4.9 with `server_created_time`",
        /// it reports receipt, queue and end, and with metrics on a stream's first token; not the end of prefill
        V0_5_5 = "0.5.5",
        /// it reports receipt, queue and end, and a stream's first token; not the end of prefill
        V0_5_6 = "0.5.6",
        /// it reports receipt, queue, end of prefill (which stands for the first token) and end
        From0_5_7 = "0.5.7 to 0.5.9",
        /// it reports receipt, queue, end of prefill (which stands for the first token) and end
        From0_5_10 = "0.5.10 or 0.5.11",
        /// it reports receipt, queue, end of prefill (which stands for the first token) and end
        From0_5_12 = "0.5.12 to 0.5.20",
        /// it reports receipt, queue, end of prefill, first token and end
        V0_5_21 = "0.5.21",
        /// it reports receipt, queue, end of prefill, first token and end
        From0_5_22 = "0.5.22 or later",
        /// it decodes what another server prefilled: it reports receipt, when the KV cache had come, the wait for a slot of its batch, first
        /// token and end; the prefill server reports prefill
        Decode0_5_21 = "0.5.21 or later, a decode server",
        /// it reports no time of the server without `--enable-metrics`
        From0_5_6MetricsOff = "0.5.6 to 0.5.9",
        /// it reports no time of the server without `--enable-metrics`
        From0_5_10MetricsOff = "0.5.10 or 0.5.11",
        /// it reports no time of the server without `--enable-metrics`
        From0_5_12MetricsOff = "0.5.12 or later",
    }
}

impl Generation {
    /// Returns the versions that write these fields: those of a sequence's first and last `meta_info`. `prefill_by_scheduler`:
    /// the scheduler wrote `prefill_finished_ts`.
    pub fn of(fields: MemberSet, prefill_by_scheduler: bool) -> Generation {
        let has = |field| fields.has(field);
        if has(Member::ServerCreated) {
            Generation::Fork
        } else if has(Member::RequestFinished) {
            match () {
                () if has(Member::StorageWait) => Generation::From0_5_22,
                () if has(Member::FirstTokenLatency) && has(Member::PrefillFinishedTime) => {
                    Generation::V0_5_21
                }
                () if has(Member::FirstTokenLatency) => Generation::Decode0_5_21,
                () if has(Member::InferenceTime) => Generation::From0_5_10,
                () => Generation::From0_5_12,
            }
        } else if has(Member::DecodeFinished) {
            match () {
                () if has(Member::RequestScheduled) => Generation::V0_5_5,
                () if prefill_by_scheduler => Generation::From0_5_7,
                () => Generation::V0_5_6,
            }
        } else if has(Member::ResponseSent) {
            match () {
                () if has(Member::NumRetractions) => Generation::From0_5_12MetricsOff,
                () if has(Member::DpRank) => Generation::From0_5_10MetricsOff,
                () => Generation::From0_5_6MetricsOff,
            }
        } else if has(Member::EndToEnd) {
            Generation::From0_4_6
        } else {
            Generation::Before0_4_6
        }
    }

    /// Whether the server runs with `--enable-metrics`; `None` if that changes none of the fields that are read.
    pub const fn metrics_on(self) -> Option<bool> {
        match self {
            Generation::Before0_4_6
            | Generation::From0_4_6
            | Generation::Fork
            | Generation::V0_5_5 => None,
            Generation::From0_5_6MetricsOff
            | Generation::From0_5_10MetricsOff
            | Generation::From0_5_12MetricsOff => Some(false),
            _ => Some(true),
        }
    }

    /// Whether no option makes it report its moments in responses.
    pub const fn is_too_old(self) -> bool {
        matches!(self, Generation::Before0_4_6 | Generation::From0_4_6)
    }
}
