//! One request: its moments, the bytes they are read from, and the row made of them.
//!
//! Free of IO, async and Pingora. It never reads a clock: times are passed in.

pub mod attempt;
mod body_timing;
pub mod cell;
mod clocks;
pub mod column;
mod columns;
pub mod csv;
mod endpoint;
mod engine_report;
mod field;
mod gaps;
mod generation;
pub mod headers;
pub mod impossible;
mod internal;
mod meta_info;
pub mod names;
mod observer;
mod outcome;
pub mod prompt_blocks;
mod request_body;
mod response;
mod roles;
pub mod row;
#[cfg(test)]
pub mod sample;
mod scalar;
pub mod scan;
mod sequence;
pub mod sse;
pub mod stages;
mod stamps;
mod time_spent;
mod timeline;
mod unseen;
mod wait;
mod word_counter;

pub use attempt::{
    Attempt, FailedAttempt, Hex, MAX_FAILED, ParentSpan, ServerRole, SpanId, UpstreamKind,
    append_lost_server, failed_text, parse_failed, sendings,
};
pub use body_timing::BodyTiming;
pub use cell::shown_text;
pub use clocks::{name_engine_clock, relate_engine, relate_process};
pub use column::{Origin, Scope, Unit};
pub use columns::{COLUMNS, Column, ColumnId};
pub use endpoint::Endpoint;
pub use engine_report::EngineReport;
pub use field::Field;
pub use gaps::{GAP_BOUNDS, GapCounts};
pub use generation::Generation;
pub use headers::{
    OUTCOME_HEADER, content_type, is_encoded, label_pairs, reported_outcome, smg_worker,
};
pub use impossible::{Impossible, without_impossible};
pub use internal::Sending;
pub use meta_info::{LOG_LINE, MetaInfo};
pub use observer::{End, Observer};
pub use outcome::{GIVEN_UP, OWN_SHORTAGES, Outcome, ResponseFacts, judge};
pub use response::{MAX_SEQUENCES, Unread};
pub use roles::Roles;
pub use row::{Row, Rows, without_quotes};
pub use scalar::Scalar;
pub use sequence::{MissingReason, TimingSource};
pub use stages::{Breakdown, Part, StageSet, UNSEEN};
pub use stamps::{FRONT_HEADER, HOP_HEADER, STAMPS_REQUEST_HEADER, Stamps};
pub use time_spent::{PartSpent, TimeSpent};
pub use timeline::{
    ClockOf, ENGINE, ENGINE_OF_PAIR, Moment, Period, PrefillTimes, Relation, STAGES, Side, Stage,
    TOLERANCE_NANOS, Timeline,
};
pub use unseen::{Unseen, Unseens};
pub use wait::Wait;
