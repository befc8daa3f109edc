//! One request: its moments, the bytes they are read from, and the row made of them.
//!
//! Free of IO, async and Pingora. It never reads a clock: times are passed in.

pub mod attempt;
pub mod body_timing;
pub mod cell;
pub mod clocks;
pub mod column;
pub mod columns;
pub mod csv;
pub mod endpoint;
pub mod engine_report;
pub mod field;
pub mod gaps;
pub mod generation;
pub mod headers;
pub mod impossible;
pub mod internal;
pub mod meta_info;
pub mod names;
pub mod observer;
pub mod outcome;
pub mod prompt_blocks;
pub mod request_body;
pub mod response;
pub mod roles;
pub mod row;
#[cfg(test)]
pub mod sample;
pub mod scalar;
pub mod scan;
pub mod sequence;
pub mod sse;
pub mod stages;
pub mod stamps;
pub mod time_spent;
pub mod timeline;
pub mod unseen;
pub mod wait;
pub mod word_counter;
