//! The SGLang versions that may have written a `meta_info`, recognized by its fields.
//!
//! Responses do not name the version, and forks carry any number.

use super::meta_info::{Member, MemberSet};
use super::names::names;

names! {
    versions, of_versions:
    /// Versions that report the same moments, in the order of releases. The docs show the comment of each: what it reports and what
    /// it cannot.
    pub enum Generation {
        /// it reports no time of the server, whatever flags are set
        Before0_5_5 = "before 0.5.5",
        /// it reports receipt and first token; of the queue both ends, or only how long it was; not the end of prefill
        Fork = "a fork of about 0.4.9 with `server_created_time`",
        /// it reports receipt, queue and end, and a stream's first token (0.5.5: with metrics on); not the end of prefill
        From0_5_5 = "0.5.5 or 0.5.6",
        /// it reports receipt, queue, end of prefill (which stands for the first token) and end
        From0_5_7 = "0.5.7 to 0.5.20",
        /// it reports receipt, queue, end of prefill, first token and end
        From0_5_21 = "0.5.21 or later",
        /// it decodes what another server prefilled: it reports receipt, when the KV cache had come, the wait for a slot of its batch, first
        /// token and end; the prefill server reports prefill
        Decode0_5_21 = "0.5.21 or later, a decode server",
        /// it reports no time of the server
        MetricsOff = "0.5.6 or later without `--enable-metrics`",
    }
}

impl Generation {
    /// Returns the versions that write these fields: those of a sequence's first and last `meta_info`. `prefill_by_scheduler`:
    /// the scheduler wrote `prefill_finished_ts`.
    pub fn of(fields: MemberSet, prefill_by_scheduler: bool) -> Generation {
        let has = |field| fields.has(field);
        let has_prefilled = has(Member::StorageWait) || has(Member::PrefillFinishedTime);
        match () {
            () if has(Member::ServerCreated) => Generation::Fork,
            () if has(Member::RequestFinished) => match has(Member::FirstTokenLatency) {
                true if has_prefilled => Generation::From0_5_21,
                true => Generation::Decode0_5_21,
                false => Generation::From0_5_7,
            },
            () if has(Member::DecodeFinished) => match prefill_by_scheduler {
                true => Generation::From0_5_7,
                false => Generation::From0_5_5,
            },
            () if has(Member::ResponseSent) => Generation::MetricsOff,
            () => Generation::Before0_5_5,
        }
    }
}
