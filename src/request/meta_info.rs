//! The timings in SGLang's `meta_info`, of all versions: which fields are present tells what they mean.
//!
//! What each version reports, and where it takes the time: docs/dev/GENERATIONS.md.

use crate::clock::{NANOS, Stamp};

use super::field::Field;
use super::scalar::Scalar;

/// The fields of one `meta_info`, kept as text until they are needed: an event in the middle of a stream costs copies of a few
/// bytes, and no number is parsed.
#[derive(Clone, Debug, Default)]
pub struct MetaInfo {
    /// The fields that are present.
    pub(super) fields: FieldSet,
    numbers: [NumberText; KEPT_FIELDS],
    /// `prefill_finished_ts` follows `request_received_ts`: the API server wrote it.
    is_prefill_by_server: bool,
}

/// A set of `meta_info`'s fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(u32);

/// The text of a number: long enough for any time that Python prints; longer ones are no timings.
#[derive(Clone, Copy, Debug, Default)]
struct NumberText {
    len: u8,
    bytes: [u8; 23],
}

/// The number of fields that are kept; they are consecutive variants of [`Field`].
const KEPT_FIELDS: usize = Field::QueueTimeEnd as usize - Field::PromptTokens as usize + 1;

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
    /// The first token was made; see [`FieldSet::first_is_output`].
    pub first_token: Option<Stamp>,
    /// The engine's own end.
    pub finished: Option<Stamp>,
    /// The server wrote its first event.
    pub response_sent: Option<Stamp>,
}

impl MetaInfo {
    /// Forgets all fields, for the next event.
    pub fn clear(&mut self) {
        self.fields = FieldSet::default();
    }

    /// Keeps the text of a field, if it is one of `meta_info`'s numbers.
    pub fn keep(&mut self, field: Field, value: Scalar<'_>) {
        let (Some(index), Scalar::Bare(bytes)) = (index(field), value) else {
            return;
        };
        if field == Field::PrefillFinishedTs {
            self.is_prefill_by_server = self.fields.has(Field::RequestReceived);
        }
        self.fields.0 |= 1 << index;
        let number = &mut self.numbers[index];
        number.len = 0;
        if let Some(room) = number.bytes.get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
            number.len = bytes.len() as u8;
        }
    }

    /// Whether fields of this name are kept.
    pub fn keeps(field: Field) -> bool {
        index(field).is_some()
    }

    /// Parses the fields. The queue and prefill times of the sequence's `first` `meta_info`, if given, are taken over: those of
    /// later ones are not used.
    pub fn timings(&self, first: Option<&Timings>) -> Timings {
        let received = self.epoch(Field::RequestReceived);
        let prefill_ts = self.epoch(Field::PrefillFinishedTs);
        let by_scheduler = prefill_ts.filter(|_| !self.is_prefill_by_server);
        let by_server = prefill_ts.filter(|_| self.is_prefill_by_server);
        let latency = || Some(received?.plus_nanos(self.nanos(Field::FirstTokenLatency)?));
        let first_output = latency().or(by_server);
        let retractions = self.count(Field::NumRetractions);
        let entry = first.and_then(|first| first.forward_entry);
        let entry = entry.or_else(|| self.epoch(Field::ForwardEntryTime));
        let entry = entry.or_else(|| self.entry_from_end(received?));
        let prefill = first.and_then(|first| first.prefill_finished);
        let prefill = prefill.or_else(|| self.epoch(Field::PrefillFinishedTime));
        let queue = first.and_then(|first| first.queue_nanos);
        let finished = self.epoch(Field::RequestFinished);
        Timings {
            prompt_tokens: self.count(Field::PromptTokens),
            cached_tokens: self.count(Field::CachedTokens),
            num_retractions: retractions.or_else(|| self.count(Field::TotalRetractions)),
            dp_rank: self.count(Field::DpRank),
            forward_entry: entry.or_else(|| self.epoch(Field::QueueTimeEnd)),
            prefill_finished: prefill.or(by_scheduler),
            queue_nanos: queue
                .or_else(|| self.nanos(Field::QueueTime))
                .or_else(|| self.queue_from_ends()),
            received: received.or_else(|| self.epoch(Field::ServerCreated)),
            first_token: first_output.or_else(|| self.epoch(Field::ServerFirstToken)),
            finished: finished.or_else(|| self.epoch(Field::DecodeFinished)),
            response_sent: self.epoch(Field::ResponseSent),
        }
    }

    /// The entry into the first batch for 0.5.5 to 0.5.9: the end minus the time between them, both taken at once. If it never
    /// entered a batch, that time is the raw counter, which starts with the machine.
    fn entry_from_end(&self, received: Stamp) -> Option<Stamp> {
        let end = self.epoch(Field::DecodeFinished)?;
        let entry = end.plus_nanos(-self.nanos(Field::InferenceTime)?);
        (entry >= received).then_some(entry)
    }

    /// The queue time from its two ends, which are of one clock; `perf_counter` gives nothing else.
    fn queue_from_ends(&self) -> Option<i64> {
        let (start, end) = (Field::QueueTimeStart, Field::QueueTimeEnd);
        match (self.epoch(start), self.epoch(end)) {
            (Some(start), Some(end)) => Some(end.nanos_since(start)),
            _ => self.nanos(end)?.checked_sub(self.nanos(start)?),
        }
    }

    fn count(&self, field: Field) -> Option<u32> {
        u32::try_from(self.scalar(field)?.count()?).ok()
    }

    /// Numbers from 1e9 on are epoch seconds; smaller ones are of another clock, or no timestamp.
    fn epoch(&self, field: Field) -> Option<Stamp> {
        let nanos = self.scalar(field)?.nanos()?;
        (BILLION..6 * BILLION)
            .contains(&nanos)
            .then(|| Stamp::from_nanos(nanos))
    }

    /// A duration of less than 30 years.
    fn nanos(&self, field: Field) -> Option<i64> {
        let nanos = self.scalar(field)?.nanos()?;
        (nanos.saturating_abs() < BILLION).then_some(nanos)
    }

    fn scalar(&self, field: Field) -> Option<Scalar<'_>> {
        let index = index(field).filter(|_| self.fields.has(field))?;
        let number = &self.numbers[index];
        let bytes = number.bytes.get(..usize::from(number.len))?;
        (!bytes.is_empty()).then_some(Scalar::Bare(bytes))
    }
}

impl FieldSet {
    /// Whether it has the field.
    pub fn has(self, field: Field) -> bool {
        index(field).is_some_and(|index| self.0 >> index & 1 == 1)
    }

    /// Whether the first token's time is that of the API server's first output. For a reply the scheduler may have held back 50
    /// tokens by then, or all.
    pub fn first_is_output(self) -> bool {
        !self.has(Field::ServerFirstToken)
    }

    /// The fields of both sets.
    #[must_use]
    pub fn union(self, other: FieldSet) -> FieldSet {
        FieldSet(self.0 | other.0)
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

/// The index of a field's text, and of its bit in [`FieldSet`].
fn index(field: Field) -> Option<usize> {
    let index = (field as usize).checked_sub(Field::PromptTokens as usize);
    index.filter(|index| *index < KEPT_FIELDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timings(fields: &[(Field, &str)]) -> Timings {
        let mut meta = MetaInfo::default();
        for (field, value) in fields {
            meta.keep(*field, Scalar::Bare(value.as_bytes()));
        }
        meta.timings(None)
    }

    #[test]
    fn a_queue_time_needs_parts_of_one_clock_and_one_wait() {
        let retracted = |name, time| {
            let entry = (Field::ForwardEntryTime, "1795168579.5");
            timings(&[entry, (Field::QueueTime, time), (name, "1")])
        };
        for name in [Field::NumRetractions, Field::TotalRetractions] {
            let parted = retracted(name, "0.25");
            assert_eq!(parted.queue(None), None);
            assert_eq!(parted.queue_total(None), Some(250_000_000));
        }
        // The raw counter, as it never entered a batch: the machine has run for an hour.
        let aborted = timings(&[
            (Field::QueueTime, "-3600.0"),
            (Field::RequestReceived, "1795168579.5"),
            (Field::DecodeFinished, "1795168580.0"),
            (Field::InferenceTime, "3600.5"),
        ]);
        assert_eq!(aborted.forward_entry, None);
        let two_clocks = timings(&[
            (Field::QueueTimeStart, "5321.25"),
            (Field::QueueTimeEnd, "1795168579.5"),
        ]);
        // Before 0.5.21: the first entry, less a later entry into the queue.
        let negative = retracted(Field::NumRetractions, "-0.25");
        for none in [aborted, two_clocks, negative] {
            assert_eq!((none.queue(None), none.queue_total(None)), (None, None));
        }
    }

    #[test]
    fn a_perf_counter_is_no_epoch_stamp_and_null_is_nothing() {
        // Longer than any number that Python prints.
        let long = "1795168579.5000000000000000000000000000000";
        let timings = timings(&[
            (Field::ForwardEntryTime, "5321.25"),
            (Field::RequestReceived, "0.0"),
            (Field::DpRank, "null"),
            (Field::RequestFinished, long),
        ]);
        let stamps = [timings.forward_entry, timings.received, timings.finished];
        assert_eq!((stamps, timings.dp_rank), ([None; 3], None));
    }
}
