//! The timings in SGLang's `meta_info`, of whatever generation: which there are tells what they mean.
//!
//! What each generation gives, and where it stamps it: docs/dev/GENERATIONS.md.

use crate::clock::{NANOS, Stamp};

use super::field::Field;
use super::scalar::Scalar;

/// The fields of one `meta_info`, kept as they stand until it is known whether they matter: an event in
/// the middle of a stream costs copies of a few bytes and no number is parsed.
#[derive(Clone, Debug, Default)]
pub struct MetaInfo {
    /// Which fields there are.
    pub(super) shape: Shape,
    cells: [Cell; CELLS],
    /// `prefill_finished_ts` stands behind `request_received_ts`, where the API server writes.
    prefill_by_server: bool,
}

/// Which fields a `meta_info` has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape(u32);

/// Long enough for any time that Python prints; what is longer is no timing.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    len: u8,
    bytes: [u8; 23],
}

/// The fields that are kept: they follow each other.
const CELLS: usize = Field::QueueTimeEnd as usize - Field::PromptTokens as usize + 1;

/// A billion seconds, nanoseconds: in 2001.
const BILLION: i64 = 1_000_000_000 * NANOS;

/// What a `meta_info` says, read. Stamps are on the engine's clock.
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
    /// Time in the waiting queue, nanoseconds; from 0.5.21 added up over retractions, before then negative after one.
    pub queue_nanos: Option<i64>,
    /// The server received the request.
    pub received: Option<Stamp>,
    /// Its first token was made; see [`Shape::first_is_output`].
    pub first_token: Option<Stamp>,
    /// The engine's own end.
    pub finished: Option<Stamp>,
    /// The server wrote its first event.
    pub response_sent: Option<Stamp>,
}

impl MetaInfo {
    /// Forgets everything, for the next event.
    pub fn clear(&mut self) {
        self.shape = Shape::default();
    }

    /// Keeps a field's bytes, if it is one of `meta_info`'s numbers.
    pub fn keep(&mut self, field: Field, value: Scalar<'_>) {
        let (Some(place), Scalar::Bare(bytes)) = (place(field), value) else {
            return;
        };
        if field == Field::PrefillFinishedTs {
            self.prefill_by_server = self.shape.has(Field::RequestReceived);
        }
        self.shape.0 |= 1 << place;
        let cell = &mut self.cells[place];
        cell.len = 0;
        if let Some(room) = cell.bytes.get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
            cell.len = bytes.len() as u8;
        }
    }

    /// Whether it keeps fields of this name.
    pub fn keeps(field: Field) -> bool {
        place(field).is_some()
    }

    /// Reads what was kept. What the `first` of the sequence told of its queue and its prefill is not read again: that of a later
    /// one is not looked at.
    pub fn timings(&self, first: Option<&Timings>) -> Timings {
        let received = self.epoch(Field::RequestReceived);
        let prefill_ts = self.epoch(Field::PrefillFinishedTs);
        let by_scheduler = prefill_ts.filter(|_| !self.prefill_by_server);
        let by_server = prefill_ts.filter(|_| self.prefill_by_server);
        let latency = || Some(received?.plus_nanos(self.nanos(Field::FirstTokenLatency)?));
        let first_output = latency().or(by_server);
        let retractions = self.count(Field::NumRetractions);
        let entry = first.and_then(|first| first.forward_entry);
        let entry = entry.or_else(|| self.epoch(Field::ForwardEntryTime));
        let entry = entry.or_else(|| self.counted_back(received?));
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
                .or_else(|| self.stamped_queue()),
            received: received.or_else(|| self.epoch(Field::ServerCreated)),
            first_token: first_output.or_else(|| self.epoch(Field::ServerFirstToken)),
            finished: finished.or_else(|| self.epoch(Field::DecodeFinished)),
            response_sent: self.epoch(Field::ResponseSent),
        }
    }

    /// The entry into the first batch, of 0.5.5 to 0.5.9: the end and the time between them, both taken at once. Of what
    /// never entered one that time is the counter's own, since the machine was started.
    fn counted_back(&self, received: Stamp) -> Option<Stamp> {
        let end = self.epoch(Field::DecodeFinished)?;
        let entry = end.plus_nanos(-self.nanos(Field::InferenceTime)?);
        (entry >= received).then_some(entry)
    }

    /// The time between two stamps of one clock: of `perf_counter` they say nothing else.
    fn stamped_queue(&self) -> Option<i64> {
        let (start, end) = (Field::QueueTimeStart, Field::QueueTimeEnd);
        match (self.epoch(start), self.epoch(end)) {
            (Some(start), Some(end)) => Some(end.nanos_since(start)),
            _ => self.nanos(end)?.checked_sub(self.nanos(start)?),
        }
    }

    fn count(&self, field: Field) -> Option<u32> {
        u32::try_from(self.scalar(field)?.count()?).ok()
    }

    /// Numbers above 1e9 are epoch stamps; smaller ones are another clock's, or no stamp at all.
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
        let place = place(field).filter(|_| self.shape.has(field))?;
        let cell = &self.cells[place];
        let bytes = cell.bytes.get(..usize::from(cell.len))?;
        (!bytes.is_empty()).then_some(Scalar::Bare(bytes))
    }
}

impl Shape {
    /// Whether it has that field.
    pub fn has(self, field: Field) -> bool {
        place(field).is_some_and(|place| self.0 >> place & 1 == 1)
    }

    /// Whether the first token's time is that of the API server's first output. Of a reply the scheduler may have held
    /// back 50 tokens by then, or all.
    pub fn first_is_output(self) -> bool {
        !self.has(Field::ServerFirstToken)
    }

    /// The fields of both.
    #[must_use]
    pub fn and(self, other: Shape) -> Shape {
        Shape(self.0 | other.0)
    }
}

impl Timings {
    /// The moments of the waiting queue, if this is the `meta_info` of a sequence's first event (or of a
    /// reply that never streamed) and `last` that of its last. Once a sequence has been retracted, `queue_time` has gone
    /// on while the entry into the first batch stood still: the two no longer belong together.
    pub fn queue(&self, last: Option<&Timings>) -> Option<(Stamp, Stamp)> {
        if self.num_retractions > Some(0) {
            return None;
        }
        let end = self.forward_entry.or_else(|| last?.forward_entry)?;
        let nanos = self.queue_nanos.or_else(|| last?.queue_nanos)?;
        Some((end.plus_nanos(-nanos), end))
    }

    /// The time in the waiting queue where its moments are unknown, nanoseconds. What is not above 0 is no time: before
    /// 0.5.21 a retraction or an abort in the queue leaves a negative one, later the abort leaves 0.
    pub fn queue_total(&self, last: Option<&Timings>) -> Option<i64> {
        let nanos = self.queue_nanos.or_else(|| last?.queue_nanos);
        nanos.filter(|nanos| *nanos > 0)
    }

    /// Whether anything here says when something happened in the engine.
    pub fn has_moments(&self) -> bool {
        self.forward_entry.is_some() || self.received.is_some() || self.prefill_finished.is_some()
    }
}

/// Where a field is kept, and its bit.
fn place(field: Field) -> Option<usize> {
    let place = (field as usize).checked_sub(Field::PromptTokens as usize);
    place.filter(|place| *place < CELLS)
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
    fn a_time_in_the_queue_is_told_only_where_its_parts_are_of_one_clock_and_one_wait() {
        let retracted = |name, time| {
            let entry = (Field::ForwardEntryTime, "1795168579.5");
            timings(&[entry, (Field::QueueTime, time), (name, "1")])
        };
        for name in [Field::NumRetractions, Field::TotalRetractions] {
            let parted = retracted(name, "0.25");
            assert_eq!(parted.queue(None), None);
            assert_eq!(parted.queue_total(None), Some(250_000_000));
        }
        // The counter's own reading of what never entered a batch: the machine runs for an hour.
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
        // As before 0.5.21: the first entry, less a later entry into the queue.
        let negative = retracted(Field::NumRetractions, "-0.25");
        for none in [aborted, two_clocks, negative] {
            assert_eq!((none.queue(None), none.queue_total(None)), (None, None));
        }
    }

    #[test]
    fn a_perf_counter_is_no_epoch_stamp_and_null_is_nothing() {
        // The last is longer than any number Python prints.
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
