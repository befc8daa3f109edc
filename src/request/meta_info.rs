//! SGLang's `meta_info`, of all versions: its members, and its timings. Which members are present tells what they mean.
//!
//! What each version reports, and where it takes the time: docs/dev/GENERATIONS.md.

use crate::clock::{NANOS, Stamp};

use super::field::Field;
use super::scalar::Scalar;
use super::scan::rule::{Rule, members, object, scalar};

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
    /// `e2e_latency`, seconds.
    EndToEnd,
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
    /// `request_scheduled_ts`, epoch seconds.
    RequestScheduled,
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
    ("e2e_latency", number(Member::EndToEnd)),
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
    ("request_scheduled_ts", number(Member::RequestScheduled)),
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

/// The members of one `meta_info`, kept as text until they are needed: an event in the middle of a stream costs copies of a few
/// bytes, and no number is parsed.
#[derive(Clone, Debug, Default)]
pub struct MetaInfo {
    /// Those that are present.
    pub(super) fields: MemberSet,
    numbers: [NumberText; MEMBERS],
    /// `prefill_finished_ts` follows `request_received_ts`: the API server wrote it.
    is_prefill_by_server: bool,
}

/// A set of members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberSet(u32);

/// The text of a number: long enough for any time that Python prints; longer ones are no timings.
#[derive(Clone, Copy, Debug, Default)]
struct NumberText {
    len: u8,
    bytes: [u8; 23],
}

/// A billion seconds, nanoseconds: September 2001 as epoch time.
const BILLION: i64 = 1_000_000_000 * NANOS;

/// The parsed values of a `meta_info`. Timestamps are on the engine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Prompt tokens.
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens served from the cache.
    pub cached_tokens: Option<u32>,
    /// Times the scheduler took the sequence out of the batch again.
    pub num_retractions: Option<u32>,
    /// Data-parallel rank.
    pub dp_rank: Option<u32>,
    /// The request entered its first batch.
    pub forward_entry: Option<Stamp>,
    /// Prefill finished.
    pub prefill_finished: Option<Stamp>,
    /// Time in the waiting queue, nanoseconds. From 0.5.21 the sum over retractions; before then negative after one.
    pub queue_nanos: Option<i64>,
    /// The server received the request.
    pub received: Option<Stamp>,
    /// The first token was made; see [`MemberSet::first_is_output`].
    pub first_token: Option<Stamp>,
    /// The engine's own end.
    pub finished: Option<Stamp>,
    /// The server wrote its first event.
    pub response_sent: Option<Stamp>,
}

impl MetaInfo {
    /// Forgets all, for the next event.
    pub fn clear(&mut self) {
        self.fields = MemberSet::default();
    }

    /// Keeps the text of a [`Member`].
    pub fn keep(&mut self, member: u8, value: Scalar<'_>) {
        let number = self.numbers.get_mut(usize::from(member));
        let (Some(number), Scalar::Bare(bytes)) = (number, value) else {
            return;
        };
        if member == Member::PrefillFinishedTs as u8 {
            self.is_prefill_by_server = self.fields.has(Member::RequestReceived);
        }
        self.fields.0 |= 1 << member;
        number.len = 0;
        if let Some(room) = number.bytes.get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
            number.len = bytes.len() as u8;
        }
    }

    /// Parses them. The queue and prefill times of the sequence's `first` `meta_info`, if given, are taken over: those of
    /// later ones are not used.
    pub fn timings(&self, first: Option<&Timings>) -> Timings {
        let received = self.epoch(Member::RequestReceived);
        let prefill_ts = self.epoch(Member::PrefillFinishedTs);
        let by_scheduler = prefill_ts.filter(|_| !self.is_prefill_by_server);
        let by_server = prefill_ts.filter(|_| self.is_prefill_by_server);
        let latency = || Some(received?.plus_nanos(self.nanos(Member::FirstTokenLatency)?));
        let first_output = latency().or(by_server);
        let retractions = self.count(Member::NumRetractions);
        let entry = first.and_then(|first| first.forward_entry);
        let entry = entry.or_else(|| self.epoch(Member::ForwardEntryTime));
        let entry = entry.or_else(|| self.entry_from_end(received?));
        let prefill = first.and_then(|first| first.prefill_finished);
        let prefill = prefill.or_else(|| self.epoch(Member::PrefillFinishedTime));
        let queue = first.and_then(|first| first.queue_nanos);
        let finished = self.epoch(Member::RequestFinished);
        Timings {
            prompt_tokens: self.count(Member::PromptTokens),
            cached_tokens: self.count(Member::CachedTokens),
            num_retractions: retractions.or_else(|| self.count(Member::TotalRetractions)),
            dp_rank: self.count(Member::DpRank),
            forward_entry: entry.or_else(|| self.epoch(Member::QueueTimeEnd)),
            prefill_finished: prefill.or(by_scheduler),
            queue_nanos: queue
                .or_else(|| self.nanos(Member::QueueTime))
                .or_else(|| self.queue_from_ends()),
            received: received.or_else(|| self.epoch(Member::ServerCreated)),
            first_token: first_output.or_else(|| self.epoch(Member::ServerFirstToken)),
            finished: finished.or_else(|| self.epoch(Member::DecodeFinished)),
            response_sent: self.epoch(Member::ResponseSent),
        }
    }

    /// The entry into the first batch for 0.5.5 to 0.5.9: the end minus the time between them, both taken at once. If it never
    /// entered a batch, that time is the raw counter, which starts with the machine.
    fn entry_from_end(&self, received: Stamp) -> Option<Stamp> {
        let end = self.epoch(Member::DecodeFinished)?;
        let entry = end.plus_nanos(-self.nanos(Member::InferenceTime)?);
        (entry >= received).then_some(entry)
    }

    /// The queue time from its two ends, which are of one clock; `perf_counter` gives nothing else.
    fn queue_from_ends(&self) -> Option<i64> {
        let (start, end) = (Member::QueueTimeStart, Member::QueueTimeEnd);
        match (self.epoch(start), self.epoch(end)) {
            (Some(start), Some(end)) => Some(end.nanos_since(start)),
            _ => self.nanos(end)?.checked_sub(self.nanos(start)?),
        }
    }

    fn count(&self, member: Member) -> Option<u32> {
        u32::try_from(self.scalar(member)?.count()?).ok()
    }

    /// Numbers from 1e9 on are epoch seconds; smaller ones are of another clock, or no timestamp.
    fn epoch(&self, member: Member) -> Option<Stamp> {
        let nanos = self.scalar(member)?.nanos()?;
        (BILLION..6 * BILLION)
            .contains(&nanos)
            .then(|| Stamp::from_nanos(nanos))
    }

    /// A duration of less than 30 years.
    fn nanos(&self, member: Member) -> Option<i64> {
        let nanos = self.scalar(member)?.nanos()?;
        (nanos.saturating_abs() < BILLION).then_some(nanos)
    }

    fn scalar(&self, member: Member) -> Option<Scalar<'_>> {
        let number = self.numbers.get(member as usize);
        let number = number.filter(|_| self.fields.has(member))?;
        let bytes = number.bytes.get(..usize::from(number.len))?;
        (!bytes.is_empty()).then_some(Scalar::Bare(bytes))
    }
}

impl MemberSet {
    /// Whether it has the member.
    pub fn has(self, member: Member) -> bool {
        self.0 >> member as u32 & 1 == 1
    }

    /// Whether the first token's time is that of the API server's first output. For a reply the scheduler may have held back 50
    /// tokens by then, or all.
    pub fn first_is_output(self) -> bool {
        !self.has(Member::ServerFirstToken)
    }

    /// The members of both sets.
    #[must_use]
    pub fn union(self, other: MemberSet) -> MemberSet {
        MemberSet(self.0 | other.0)
    }
}

impl Timings {
    /// The ends of the wait in the queue, if this is the `meta_info` of a sequence's first event (or of a reply) and `last` that
    /// of its last. `None` after a retraction: `queue_time` has gone on since while the entry into the first batch stayed, so the
    /// two no longer belong together.
    pub fn queue(&self, last: Option<&Timings>) -> Option<(Stamp, Stamp)> {
        if self.num_retractions > Some(0) {
            return None;
        }
        let end = self.forward_entry.or_else(|| last?.forward_entry)?;
        let nanos = self.queue_nanos.or_else(|| last?.queue_nanos)?;
        Some((end.plus_nanos(-nanos), end))
    }

    /// The time in the waiting queue if its ends are unknown, nanoseconds. Values of 0 or less are no times: before 0.5.21 a
    /// retraction or an abort in the queue leaves a negative one, later the abort leaves 0.
    pub fn queue_total(&self, last: Option<&Timings>) -> Option<i64> {
        let nanos = self.queue_nanos.or_else(|| last?.queue_nanos);
        nanos.filter(|nanos| *nanos > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timings(members: &[(Member, &str)]) -> Timings {
        let mut meta = MetaInfo::default();
        for (member, value) in members {
            meta.keep(*member as u8, Scalar::Bare(value.as_bytes()));
        }
        meta.timings(None)
    }

    #[test]
    fn a_queue_time_needs_parts_of_one_clock_and_one_wait() {
        let retracted = |name, time| {
            let entry = (Member::ForwardEntryTime, "1795168579.5");
            timings(&[entry, (Member::QueueTime, time), (name, "1")])
        };
        for name in [Member::NumRetractions, Member::TotalRetractions] {
            let parted = retracted(name, "0.25");
            assert_eq!(parted.queue(None), None);
            assert_eq!(parted.queue_total(None), Some(250_000_000));
        }
        // The raw counter, as it never entered a batch: the machine has run for an hour.
        let aborted = timings(&[
            (Member::QueueTime, "-3600.0"),
            (Member::RequestReceived, "1795168579.5"),
            (Member::DecodeFinished, "1795168580.0"),
            (Member::InferenceTime, "3600.5"),
        ]);
        assert_eq!(aborted.forward_entry, None);
        let end = (Member::QueueTimeEnd, "1795168579.5");
        let two_clocks = timings(&[(Member::QueueTimeStart, "5321.25"), end]);
        // Before 0.5.21: the first entry, less a later entry into the queue.
        let negative = retracted(Member::NumRetractions, "-0.25");
        for none in [aborted, two_clocks, negative] {
            assert_eq!((none.queue(None), none.queue_total(None)), (None, None));
        }
    }

    #[test]
    fn a_perf_counter_is_no_epoch_stamp_and_null_is_nothing() {
        // Longer than any number that Python prints.
        let long = "1795168579.5000000000000000000000000000000";
        let timings = timings(&[
            (Member::ForwardEntryTime, "5321.25"),
            (Member::RequestReceived, "0.0"),
            (Member::DpRank, "null"),
            (Member::RequestFinished, long),
        ]);
        let stamps = [timings.forward_entry, timings.received, timings.finished];
        assert_eq!((stamps, timings.dp_rank), ([None; 3], None));
    }
}
