//! SGLang's `meta_info`, of all versions: its members, and its timings. Which members are present tells what they mean, and
//! which version wrote them.
//!
//! What each version reports, and where it takes the time: docs/dev/GENERATIONS.md.

use crate::clock::{NANOS, Stamp};

use super::scan::rule::{Field, Rule, Scalar, members, object, scalar};
use crate::names::names;

/// A number in `meta_info`, in any order but for the last, which [`MEMBERS`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// `prompt_tokens`.
    PromptTokens,
    /// `cached_tokens`.
    CachedTokens,
    /// `num_retractions`.
    NumRetractions,
    /// `dp_rank`.
    DpRank,
    /// `forward_entry_time`, epoch seconds.
    ForwardEntryTime,
    /// `prefill_finished_time`, epoch seconds.
    PrefillFinishedTime,
    /// `queue_time`, seconds.
    QueueTime,
    /// `request_received_ts`, epoch seconds.
    RequestReceived,
    /// `first_token_latency`, seconds.
    FirstTokenLatency,
    /// `request_finished_ts`, epoch seconds.
    RequestFinished,
    /// `response_sent_to_client_ts` (0.5.5: `response_sent_ts`), epoch seconds.
    ResponseSent,
    /// `storage_prefetch_wait`, seconds.
    StorageWait,
    /// `total_retractions`: `num_retractions` until 0.5.11.
    TotalRetractions,
    /// `inference_time` (0.5.5: `forward_time`), seconds from the first batch to the end.
    InferenceTime,
    /// `prefill_finished_ts`, epoch seconds.
    PrefillFinishedTs,
    /// `decode_finished_ts`, epoch seconds.
    DecodeFinished,
    /// `server_created_time` of a fork, epoch seconds.
    ServerCreated,
    /// `server_first_token_time` of a fork, epoch seconds.
    ServerFirstToken,
    /// `queue_time_start` of a fork, seconds of the epoch or of `perf_counter`.
    QueueTimeStart,
    /// `queue_time_end` of a fork, on the same clock.
    QueueTimeEnd,
}

/// The number of members that are kept.
const MEMBERS: usize = Member::QueueTimeEnd as usize + 1;

const fn number(member: Member) -> Rule {
    scalar(Field::Meta(member as u8))
}

const FINISH_REASON: Rule = object(
    Field::FinishReason,
    &[
        ("type", scalar(Field::FinishType)),
        ("status_code", scalar(Field::FinishStatus)),
        ("message", scalar(Field::FinishMessage)),
    ],
);

/// The members of `meta_info` that are read, and between them those that every event has: keys in the order of this list are
/// found without a search. It is the order of 0.5.23; members of older versions are at the end.
const META_MEMBERS: &[(&str, Rule)] = &[
    ("id", scalar(Field::EngineId)),
    ("finish_reason", FINISH_REASON),
    ("prompt_tokens", number(Member::PromptTokens)),
    ("weight_version", Rule::SKIP),
    ("num_retractions", number(Member::NumRetractions)),
    ("storage_prefetch_wait", number(Member::StorageWait)),
    ("storage_staging_wait", Rule::SKIP),
    ("forward_entry_time", number(Member::ForwardEntryTime)),
    ("prefill_finished_time", number(Member::PrefillFinishedTime)),
    ("queue_time", number(Member::QueueTime)),
    ("reasoning_tokens", Rule::SKIP),
    ("completion_tokens", scalar(Field::CompletionTokens)),
    ("cached_tokens", number(Member::CachedTokens)),
    ("cached_tokens_details", Rule::SKIP),
    ("dp_rank", number(Member::DpRank)),
    ("e2e_latency", Rule::SKIP),
    ("request_received_ts", number(Member::RequestReceived)),
    ("first_token_latency", number(Member::FirstTokenLatency)),
    ("response_sent_to_client_ts", number(Member::ResponseSent)),
    ("request_finished_ts", number(Member::RequestFinished)),
    // Until 0.5.11.
    ("total_retractions", number(Member::TotalRetractions)),
    ("inference_time", number(Member::InferenceTime)),
    // 0.5.5 to 0.5.9.
    ("prefill_finished_ts", number(Member::PrefillFinishedTs)),
    ("decode_finished_ts", number(Member::DecodeFinished)),
    // 0.5.5.
    ("response_sent_ts", number(Member::ResponseSent)),
    ("forward_time", number(Member::InferenceTime)),
    // A fork of about 0.4.9.
    ("server_created_time", number(Member::ServerCreated)),
    ("server_first_token_time", number(Member::ServerFirstToken)),
    ("queue_time_start", number(Member::QueueTimeStart)),
    ("queue_time_end", number(Member::QueueTimeEnd)),
];

/// `meta_info`, wherever it stands.
pub const META_INFO: Rule = object(Field::MetaInfo, META_MEMBERS);

/// A line of the request log (`--export-metrics-to-file`): the same members at the top, besides the request, which is skipped.
pub static LOG_LINE: Rule = members(META_MEMBERS);

/// The members of one `meta_info`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetaInfo {
    /// Those that are present.
    pub(super) fields: MemberSet,
    /// Those that are numbers.
    known: MemberSet,
    /// These numbers times a billion, by member: of times in seconds, nanoseconds.
    numbers: [i64; MEMBERS],
    /// `prefill_finished_ts` follows `request_received_ts`: the API server wrote it.
    is_prefill_by_server: bool,
}

/// A set of members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberSet(u32);

names! {
    versions, of_versions:
    /// The SGLang versions that may have written a `meta_info`, recognized by its fields, as responses do not name the version, and
    /// forks carry any number: versions that report the same moments, in the order of releases. The docs show the comment of each: what it reports and what
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

/// A billion seconds, nanoseconds: September 2001 as epoch time.
const BILLION: i64 = 1_000_000_000 * NANOS;
/// A second, nanoseconds.
const SECOND: u64 = NANOS.unsigned_abs();

impl MetaInfo {
    /// Forgets all, for the next event.
    pub fn clear(&mut self) {
        (self.fields, self.known) = Default::default();
    }

    /// Keeps the number of a [`Member`].
    pub fn keep(&mut self, member: u8, value: Scalar<'_>) {
        let number = self.numbers.get_mut(usize::from(member));
        let (Some(number), Scalar::Bare(_)) = (number, value) else {
            return;
        };
        if member == Member::PrefillFinishedTs as u8 {
            self.is_prefill_by_server = self.fields.has(Member::RequestReceived);
        }
        self.fields.0 |= 1 << member;
        if let Some(nanos) = value.nanos() {
            *number = nanos;
            self.known.0 |= 1 << member;
        }
    }

    /// Returns when the server received the request.
    pub fn received(&self) -> Option<Stamp> {
        let received = self.epoch(Member::RequestReceived);
        received.or_else(|| self.epoch(Member::ServerCreated))
    }

    /// Returns when the request entered its first batch.
    pub fn forward_entry(&self) -> Option<Stamp> {
        let entry = self.epoch(Member::ForwardEntryTime);
        let entry = entry.or_else(|| self.entry_from_end());
        entry.or_else(|| self.epoch(Member::QueueTimeEnd))
    }

    /// Returns when prefill finished.
    pub fn prefill_finished(&self) -> Option<Stamp> {
        let by_scheduler = || self.epoch(Member::PrefillFinishedTs);
        let finished = self.epoch(Member::PrefillFinishedTime);
        finished.or_else(|| by_scheduler().filter(|_| !self.is_prefill_by_server))
    }

    /// Returns the time in the waiting queue, nanoseconds. From 0.5.21 the sum over retractions; before then negative after one.
    pub fn queue_nanos(&self) -> Option<i64> {
        let nanos = self.nanos(Member::QueueTime);
        nanos.or_else(|| self.queue_from_ends())
    }

    /// Returns when the first token was made. By all but the fork, it is when the API server had the first output: of a reply the
    /// scheduler may have held back 50 tokens by then, or all.
    pub fn first_token(&self) -> Option<Stamp> {
        let received = self.epoch(Member::RequestReceived);
        let latency = received.zip(self.nanos(Member::FirstTokenLatency));
        let by_server = || self.epoch(Member::PrefillFinishedTs);
        latency
            .map(|(received, latency)| received.plus_nanos(latency))
            .or_else(|| by_server().filter(|_| self.is_prefill_by_server))
            .or_else(|| self.epoch(Member::ServerFirstToken))
    }

    /// Returns the engine's own end.
    pub fn finished(&self) -> Option<Stamp> {
        let finished = self.epoch(Member::RequestFinished);
        finished.or_else(|| self.epoch(Member::DecodeFinished))
    }

    /// Returns how often the scheduler took the sequence out of the batch again.
    pub fn num_retractions(&self) -> Option<u64> {
        let retractions = self.count(Member::NumRetractions);
        retractions.or_else(|| self.count(Member::TotalRetractions))
    }

    /// The entry into the first batch for 0.5.5 to 0.5.9: the end minus the time between them, both taken at once. If it never
    /// entered a batch, that time is the raw counter, which starts with the machine.
    fn entry_from_end(&self) -> Option<Stamp> {
        let end = self.epoch(Member::DecodeFinished)?;
        let entry = end.plus_nanos(-self.nanos(Member::InferenceTime)?);
        (entry >= self.epoch(Member::RequestReceived)?).then_some(entry)
    }

    /// The queue time from its two ends, which are of one clock; `perf_counter` gives nothing else.
    fn queue_from_ends(&self) -> Option<i64> {
        let (start, end) = (Member::QueueTimeStart, Member::QueueTimeEnd);
        match (self.epoch(start), self.epoch(end)) {
            (Some(start), Some(end)) => Some(end.nanos_since(start)),
            _ => self.nanos(end)?.checked_sub(self.nanos(start)?),
        }
    }

    /// Returns a number of tokens and the like.
    pub fn count(&self, member: Member) -> Option<u64> {
        let count = u64::try_from(self.number(member)?).ok()?;
        count.is_multiple_of(SECOND).then_some(count / SECOND)
    }

    /// Returns a moment. Numbers from 1e9 on are epoch seconds; smaller ones are of another clock, or no timestamp.
    pub fn epoch(&self, member: Member) -> Option<Stamp> {
        let nanos = self.number(member)?;
        let is_epoch = (BILLION..6 * BILLION).contains(&nanos);
        is_epoch.then(|| Stamp::from_nanos(nanos))
    }

    /// A duration of less than 30 years.
    fn nanos(&self, member: Member) -> Option<i64> {
        let nanos = self.number(member)?;
        (nanos.saturating_abs() < BILLION).then_some(nanos)
    }

    fn number(&self, member: Member) -> Option<i64> {
        let is_known = self.known.has(member);
        is_known.then_some(self.numbers[member as usize])
    }
}

impl MemberSet {
    /// Whether it has the member.
    pub fn has(self, member: Member) -> bool {
        self.0 >> member as u32 & 1 == 1
    }

    /// Whether the server that reported these did the prefill.
    pub fn has_prefilled(self) -> bool {
        let prefill = [
            Member::PrefillFinishedTime,
            Member::PrefillFinishedTs,
            Member::StorageWait,
            Member::InferenceTime,
        ];
        prefill.into_iter().any(|member| self.has(member))
    }

    /// The members of both sets.
    #[must_use]
    pub fn union(self, other: MemberSet) -> MemberSet {
        MemberSet(self.0 | other.0)
    }
}

impl Generation {
    /// Returns the versions that write these fields: those of a sequence's first and last `meta_info`. `prefill_by_scheduler`:
    /// the scheduler wrote `prefill_finished_ts`.
    pub fn of(fields: MemberSet, prefill_by_scheduler: bool) -> Generation {
        let has = |field| fields.has(field);
        match () {
            () if has(Member::ServerCreated) => Generation::Fork,
            () if has(Member::RequestFinished) => match has(Member::FirstTokenLatency) {
                true if fields.has_prefilled() => Generation::From0_5_21,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::engine_report::EngineReport;
    use crate::request::sequence::TimingSource;

    fn meta(members: &[(Member, &str)]) -> MetaInfo {
        let mut meta = MetaInfo::default();
        for (member, value) in members {
            meta.keep(*member as u8, Scalar::Bare(value.as_bytes()));
        }
        meta
    }

    /// The end of the wait in the queue, and its length, nanoseconds.
    fn queue(members: &[(Member, &str)]) -> (Option<Stamp>, Option<i64>) {
        let report = EngineReport::of_meta_info(TimingSource::MetaInfo, &meta(members), None);
        (report.queue_end, report.queue_nanos)
    }

    #[test]
    fn a_queue_time_needs_parts_of_one_clock() {
        // The raw counter, as it never entered a batch: the machine has run for an hour.
        let aborted = queue(&[
            (Member::QueueTime, "-3600.0"),
            (Member::RequestReceived, "1795168579.5"),
            (Member::DecodeFinished, "1795168580.0"),
            (Member::InferenceTime, "3600.5"),
        ]);
        let end = (Member::QueueTimeEnd, "1795168579.5");
        let two_clocks = queue(&[(Member::QueueTimeStart, "5321.25"), end]);
        assert_eq!([aborted, two_clocks], [(None, None); 2]);
    }

    #[test]
    fn a_perf_counter_is_no_epoch_stamp_and_a_fraction_no_count() {
        let meta = meta(&[
            (Member::ForwardEntryTime, "5321.25"),
            (Member::RequestReceived, "0.0"),
            (Member::PromptTokens, "1.5"),
        ]);
        assert_eq!([meta.forward_entry(), meta.received()], [None; 2]);
        assert_eq!(meta.count(Member::PromptTokens), None);
    }
}
