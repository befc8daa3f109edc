//! SGLang's own shapes: `/generate` events and replies, and the timings in `meta_info`.
//!
//! What each field means and which event to believe: sglang-facts.md, section 1. The fields are those of
//! 0.5.21 to 0.5.23; another generation's fields are a row in `META_MEMBERS` and a line in
//! `MetaInfo::timings`.

use crate::clock::Stamp;

use super::field::Field;
use super::scalar::Scalar;
use super::scan::{Members, Rule};

const FINISH_REASON: Rule = Rule {
    container: Some(Field::FinishReason),
    members: Members::of(&[
        ("type", Rule::scalar(Field::FinishType)),
        ("status_code", Rule::scalar(Field::FinishStatus)),
        ("message", Rule::scalar(Field::FinishMessage)),
    ]),
    ..Rule::SKIP
};

/// The members of `meta_info` that are read, and between them those that every event has: keys that come
/// in the order of this list cost no search.
const META_MEMBERS: &[(&str, Rule)] = &[
    ("id", Rule::scalar(Field::EngineId)),
    ("finish_reason", FINISH_REASON),
    ("prompt_tokens", Rule::scalar(Field::PromptTokens)),
    ("weight_version", Rule::SKIP),
    ("num_retractions", Rule::scalar(Field::NumRetractions)),
    ("storage_prefetch_wait", Rule::SKIP),
    ("storage_staging_wait", Rule::SKIP),
    ("forward_entry_time", Rule::scalar(Field::ForwardEntryTime)),
    (
        "prefill_finished_time",
        Rule::scalar(Field::PrefillFinishedTime),
    ),
    ("queue_time", Rule::scalar(Field::QueueTime)),
    ("reasoning_tokens", Rule::SKIP),
    ("completion_tokens", Rule::scalar(Field::CompletionTokens)),
    ("cached_tokens", Rule::scalar(Field::CachedTokens)),
    ("cached_tokens_details", Rule::SKIP),
    ("dp_rank", Rule::scalar(Field::DpRank)),
    ("request_received_ts", Rule::scalar(Field::RequestReceived)),
    (
        "first_token_latency",
        Rule::scalar(Field::FirstTokenLatency),
    ),
    (
        "response_sent_to_client_ts",
        Rule::scalar(Field::ResponseSent),
    ),
    ("request_finished_ts", Rule::scalar(Field::RequestFinished)),
];

/// `meta_info` itself, wherever it stands.
pub const META_INFO: Rule = Rule {
    container: Some(Field::MetaInfo),
    members: Members::of(META_MEMBERS),
    ..Rule::SKIP
};

/// A line of the request log (`--export-metrics-to-file`): the same members on their own, and besides them the request,
/// which is skipped.
pub static LOG_LINE: Rule = Rule {
    members: Members::of(META_MEMBERS),
    ..Rule::SKIP
};

/// An `error` member: an object with a message, or the message itself.
pub const ERROR: Rule = Rule {
    scalar: Some(Field::ErrorMessage),
    container: Some(Field::Error),
    members: Members::of(&[
        ("message", Rule::scalar(Field::ErrorMessage)),
        ("code", Rule::scalar(Field::ErrorCode)),
    ]),
    ..Rule::SKIP
};

/// The members of a sequence's object, and of an error that stands in its place.
const ITEM_MEMBERS: &[(&str, Rule)] = &[
    ("text", Rule::text(Field::Text)),
    ("output_ids", Rule::SKIP),
    ("meta_info", META_INFO),
    ("index", Rule::scalar(Field::Index)),
    ("error", ERROR),
    ("object", Rule::scalar(Field::ObjectKind)),
    ("message", Rule::scalar(Field::ErrorMessage)),
    ("code", Rule::scalar(Field::ErrorCode)),
    ("detail", Rule::scalar(Field::ErrorMessage)),
];

/// One event of a `/generate` stream.
pub static EVENT: Rule = Rule {
    container: Some(Field::Item),
    members: Members::of(ITEM_MEMBERS),
    ..Rule::SKIP
};

/// A whole `/generate` reply: one sequence, or the list of a batch or of n > 1.
pub static REPLY: Rule = Rule {
    container: Some(Field::Item),
    members: Members::of(ITEM_MEMBERS),
    elements: Some(&EVENT),
    ..Rule::SKIP
};

/// The fields of one `meta_info`, kept as they stand until it is known whether they matter: an event in
/// the middle of a stream costs copies of a few bytes and no number is parsed.
#[derive(Clone, Debug)]
pub struct MetaInfo {
    cells: [Cell; CELLS],
}

/// Long enough for any number that Python prints; what is longer is no timing.
#[derive(Clone, Copy, Debug)]
struct Cell {
    len: u8,
    bytes: [u8; 31],
}

const CELLS: usize = 11;

/// What a `meta_info` says, read. Stamps are on the engine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Prompt tokens served from the cache.
    pub cached_tokens: Option<u64>,
    /// Times the scheduler took the sequence out of the batch again.
    pub num_retractions: Option<u64>,
    /// Data-parallel rank.
    pub dp_rank: Option<u64>,
    /// The request entered its first batch.
    pub forward_entry: Option<Stamp>,
    /// Prefill finished.
    pub prefill_finished: Option<Stamp>,
    /// Time in the waiting queue, nanoseconds, added up over retractions.
    pub queue_nanos: Option<i64>,
    /// The server received the request.
    pub received: Option<Stamp>,
    /// From its receipt to its first token, nanoseconds.
    pub first_token_nanos: Option<i64>,
    /// The engine's own end.
    pub finished: Option<Stamp>,
    /// The server wrote its first event.
    pub response_sent: Option<Stamp>,
}

impl Default for MetaInfo {
    fn default() -> MetaInfo {
        MetaInfo {
            cells: [Cell {
                len: 0,
                bytes: [0; 31],
            }; CELLS],
        }
    }
}

impl MetaInfo {
    /// Forgets everything, for the next event.
    pub fn clear(&mut self) {
        self.cells.iter_mut().for_each(|cell| cell.len = 0);
    }

    /// Keeps a field's bytes, if it is one of `meta_info`'s numbers.
    pub fn keep(&mut self, field: Field, value: Scalar<'_>) {
        let cell = cell(field).and_then(|cell| self.cells.get_mut(cell));
        if let (Some(cell), Scalar::Bare(bytes)) = (cell, value) {
            cell.len = 0;
            if let Some(room) = cell.bytes.get_mut(..bytes.len()) {
                room.copy_from_slice(bytes);
                cell.len = bytes.len() as u8;
            }
        }
    }

    /// Whether it keeps fields of this name.
    pub fn keeps(field: Field) -> bool {
        cell(field).is_some()
    }

    /// Reads what was kept.
    pub fn timings(&self) -> Timings {
        let seconds = |field| self.scalar(field).and_then(|s| s.number()).and_then(nanos);
        let epoch = |field| self.scalar(field).and_then(|s| s.number()).and_then(epoch);
        let count = |field| self.scalar(field).and_then(|s| s.count());
        Timings {
            prompt_tokens: count(Field::PromptTokens),
            cached_tokens: count(Field::CachedTokens),
            num_retractions: count(Field::NumRetractions),
            dp_rank: count(Field::DpRank),
            forward_entry: epoch(Field::ForwardEntryTime),
            prefill_finished: epoch(Field::PrefillFinishedTime),
            queue_nanos: seconds(Field::QueueTime),
            received: epoch(Field::RequestReceived),
            first_token_nanos: seconds(Field::FirstTokenLatency),
            finished: epoch(Field::RequestFinished),
            response_sent: epoch(Field::ResponseSent),
        }
    }

    fn scalar(&self, field: Field) -> Option<Scalar<'_>> {
        let cell = self.cells.get(cell(field)?)?;
        Some(Scalar::Bare(
            cell.bytes
                .get(..usize::from(cell.len))
                .filter(|b| !b.is_empty())?,
        ))
    }
}

impl Timings {
    /// The moments of the waiting queue, if this is the `meta_info` of a sequence's first event (or of a
    /// reply that never streamed). Once a sequence has been retracted, `queue_time` has gone on adding
    /// while `forward_entry_time` stood still: the two no longer belong together.
    pub fn queue(&self) -> Option<(Stamp, Stamp)> {
        if self.num_retractions.unwrap_or(0) > 0 {
            return None;
        }
        let end = self.forward_entry?;
        Some((end.plus_nanos(-self.queue_nanos?), end))
    }

    /// Whether anything here says when something happened in the engine.
    pub fn has_moments(&self) -> bool {
        self.forward_entry.is_some() || self.received.is_some() || self.prefill_finished.is_some()
    }
}

fn cell(field: Field) -> Option<usize> {
    Some(match field {
        Field::PromptTokens => 0,
        Field::CachedTokens => 1,
        Field::NumRetractions => 2,
        Field::DpRank => 3,
        Field::ForwardEntryTime => 4,
        Field::PrefillFinishedTime => 5,
        Field::QueueTime => 6,
        Field::RequestReceived => 7,
        Field::FirstTokenLatency => 8,
        Field::RequestFinished => 9,
        Field::ResponseSent => 10,
        _ => return None,
    })
}

/// Numbers above 1e9 are epoch stamps; smaller ones are another clock's, or no stamp at all.
fn epoch(seconds: f64) -> Option<Stamp> {
    (seconds > 1.0e9)
        .then(|| Stamp::from_seconds(seconds))
        .flatten()
}

/// A duration of less than 30 years.
fn nanos(seconds: f64) -> Option<i64> {
    (seconds.abs() < 1.0e9).then(|| (seconds * crate::clock::NANOS as f64).round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timings(fields: &[(Field, &str)]) -> Timings {
        let mut meta = MetaInfo::default();
        for (field, value) in fields {
            meta.keep(*field, Scalar::Bare(value.as_bytes()));
        }
        meta.timings()
    }

    #[test]
    fn the_queue_pair_is_the_first_batch_and_what_came_before_it() {
        let fields = [
            (Field::ForwardEntryTime, "1795168579.5"),
            (Field::QueueTime, "0.25"),
        ];
        let (start, end) = timings(&fields).queue().unwrap();
        assert_eq!(end.nanos(), 1_795_168_579_500_000_000);
        assert_eq!(end.nanos_since(start), 250_000_000);
    }

    #[test]
    fn a_retraction_parts_the_pair() {
        let fields = [
            (Field::ForwardEntryTime, "1795168579.5"),
            (Field::QueueTime, "0.25"),
            (Field::NumRetractions, "1"),
        ];
        assert_eq!(timings(&fields).queue(), None);
        assert_eq!(timings(&fields).queue_nanos, Some(250_000_000));
    }

    #[test]
    fn a_perf_counter_is_no_epoch_stamp_and_null_is_nothing() {
        let fields = [
            (Field::ForwardEntryTime, "5321.25"),
            (Field::RequestReceived, "0.0"),
            (Field::DpRank, "null"),
            (
                Field::RequestFinished,
                "1795168579.5000000000000000000000000000000",
            ),
        ];
        let timings = timings(&fields);
        assert_eq!(timings.forward_entry, None);
        assert_eq!(timings.received, None);
        assert_eq!(timings.dp_rank, None);
        assert_eq!(
            timings.finished, None,
            "longer than any number Python prints"
        );
    }
}
