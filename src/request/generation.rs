//! Which SGLang a `meta_info` comes from, by its fields.
//!
//! No version is told in a response, and forks carry any number: the fields say what can be known.

use super::field::Field;
use super::meta_info::Shape;

/// Versions that write the same fields. [`Generation::versions`] names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`versions` is the documentation, of users too")]
pub enum Generation {
    Before0_4_6,
    From0_4_6,
    Fork,
    V0_5_5,
    V0_5_6,
    From0_5_7,
    From0_5_10,
    From0_5_12,
    V0_5_21,
    From0_5_22,
    From0_5_6MetricsOff,
    From0_5_10MetricsOff,
    From0_5_12MetricsOff,
}

impl Generation {
    /// All of them, in the order of releases.
    pub const ALL: [Generation; 13] = [
        Generation::Before0_4_6,
        Generation::From0_4_6,
        Generation::Fork,
        Generation::V0_5_5,
        Generation::V0_5_6,
        Generation::From0_5_7,
        Generation::From0_5_10,
        Generation::From0_5_12,
        Generation::V0_5_21,
        Generation::From0_5_22,
        Generation::From0_5_6MetricsOff,
        Generation::From0_5_10MetricsOff,
        Generation::From0_5_12MetricsOff,
    ];

    /// The one that writes these fields: those of a sequence's first and last `meta_info`. `prefill_by_scheduler` says
    /// that the scheduler wrote `prefill_finished_ts`.
    pub fn of(shape: Shape, prefill_by_scheduler: bool) -> Generation {
        let has = |field| shape.has(field);
        if has(Field::ServerCreated) {
            Generation::Fork
        } else if has(Field::RequestFinished) {
            match () {
                () if has(Field::StorageWait) => Generation::From0_5_22,
                () if has(Field::FirstTokenLatency) => Generation::V0_5_21,
                () if has(Field::InferenceTime) => Generation::From0_5_10,
                () => Generation::From0_5_12,
            }
        } else if has(Field::DecodeFinished) {
            match () {
                () if has(Field::RequestScheduled) => Generation::V0_5_5,
                () if prefill_by_scheduler => Generation::From0_5_7,
                () => Generation::V0_5_6,
            }
        } else if has(Field::ResponseSent) {
            match () {
                () if has(Field::NumRetractions) => Generation::From0_5_12MetricsOff,
                () if has(Field::DpRank) => Generation::From0_5_10MetricsOff,
                () => Generation::From0_5_6MetricsOff,
            }
        } else if has(Field::EndToEnd) {
            Generation::From0_4_6
        } else {
            Generation::Before0_4_6
        }
    }

    /// The versions that write these fields.
    pub const fn versions(self) -> &'static str {
        match self {
            Generation::Before0_4_6 => "0.4.0, or another before 0.4.6",
            Generation::From0_4_6 => "0.4.6 to 0.5.4.post3",
            Generation::Fork => "a fork of about 0.4.9 with `server_created_time`",
            Generation::V0_5_5 => "0.5.5",
            Generation::V0_5_6 => "0.5.6",
            Generation::From0_5_7 => "0.5.7 to 0.5.9",
            Generation::From0_5_10 => "0.5.10 or 0.5.11",
            Generation::From0_5_12 => "0.5.12 to 0.5.20",
            Generation::V0_5_21 => "0.5.21",
            Generation::From0_5_22 => "0.5.22 or later",
            Generation::From0_5_6MetricsOff => "0.5.6 to 0.5.9",
            Generation::From0_5_10MetricsOff => "0.5.10 or 0.5.11",
            Generation::From0_5_12MetricsOff => "0.5.12 or later",
        }
    }

    /// What it tells and what it cannot, in a sentence's end.
    pub const fn tells(self) -> &'static str {
        match self {
            Generation::Before0_4_6 | Generation::From0_4_6 => {
                "it tells no moment of the server's, whatever is switched on"
            }
            Generation::Fork => {
                "it tells receipt and first token; of the queue both ends, or only how long it was; not the end of prefill"
            }
            Generation::V0_5_5 => {
                "it tells receipt, queue and end, and with metrics on a stream's first token; not the end of prefill"
            }
            Generation::V0_5_6 => {
                "it tells receipt, queue and end, and a stream's first token; not the end of prefill"
            }
            Generation::From0_5_7 | Generation::From0_5_10 | Generation::From0_5_12 => {
                "it tells receipt, queue, end of prefill (which stands for the first token) and end"
            }
            Generation::V0_5_21 | Generation::From0_5_22 => {
                "it tells receipt, queue, end of prefill, first token and end"
            }
            Generation::From0_5_6MetricsOff
            | Generation::From0_5_10MetricsOff
            | Generation::From0_5_12MetricsOff => {
                "it tells no moment of the server's without `--enable-metrics`"
            }
        }
    }

    /// Whether the server runs with `--enable-metrics`; `None` where that changes nothing that is looked at.
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

    /// Whether no switch makes it tell its moments in responses.
    pub const fn is_too_old(self) -> bool {
        matches!(self, Generation::Before0_4_6 | Generation::From0_4_6)
    }
}
