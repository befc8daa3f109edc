//! One request: its moments, the bytes they are read from, and the row made of them.
//!
//! Free of IO, async and Pingora. It never reads a clock: times are passed in.

pub mod attempt;
pub mod cell;
mod columns;
pub mod csv;
mod engine_report;
pub mod headers;
pub mod impossible;
mod internal;
mod meta_info;
mod observer;
mod outcome;
pub mod prompt_blocks;
mod request_body;
mod response;
pub mod row;
#[cfg(test)]
pub mod sample;
pub mod scan;
mod sequence;
pub mod sse;
pub mod stages;
mod stamps;
mod time_spent;
mod timeline;
mod unseen;
mod wait;

pub use attempt::{
    Attempt, BodyTiming, FailedAttempt, Hex, MAX_FAILED, ParentSpan, Roles, ServerRole, SpanId,
    UpstreamKind, append_lost_server, parse_failed, sendings,
};
pub use columns::{COLUMNS, Column, ColumnId, Origin, Scope, TypedRow, Unit};
pub use csv::shown_text;
pub use engine_report::EngineReport;
pub use headers::{
    OUTCOME_HEADER, content_type, is_encoded, label_pairs, reported_outcome, smg_worker,
};
pub use impossible::{Impossible, without_impossible};
pub use internal::Sending;
pub use meta_info::{Generation, LOG_LINE, MetaInfo};
pub use observer::{End, Observer};
pub use outcome::{GIVEN_UP, OWN_SHORTAGES, Outcome, ResponseFacts, judge};
pub use response::{Endpoint, MAX_SEQUENCES, Unread};
pub use row::{Row, Rows, without_quotes};
pub use scan::{Field, Scalar};
pub use sequence::{GAP_BOUNDS, GapCounts, MissingReason, TimingSource};
pub use stages::{Breakdown, Part, StageSet, UNSEEN};
pub use stamps::{
    FRONT_HEADER, HOP_HEADER, STAMPS_REQUEST_HEADER, Stamps, name_engine_clock, relate_engine,
    relate_process,
};
pub use time_spent::{PartSpent, TimeSpent};
pub use timeline::{
    ClockOf, ENGINE, ENGINE_OF_PAIR, Moment, Period, PrefillTimes, Relation, STAGES, Side, Stage,
    TOLERANCE_NANOS, Timeline,
};
pub use unseen::{Unseen, Unseens};
pub use wait::Wait;
