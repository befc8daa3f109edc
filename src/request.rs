//! What a request is: its moments, the bytes they are read from, and the row they make.
//!
//! Free of IO, async and Pingora; it never reads a clock: time is handed in.

pub mod attempt;
pub mod cell;
pub mod column;
pub mod columns;
pub mod csv;
pub mod endpoint;
pub mod field;
pub mod gaps;
pub mod generation;
pub mod head;
pub mod impossible;
pub mod messages;
pub mod meta_info;
pub mod more;
pub mod names;
pub mod observer;
pub mod openai;
pub mod outcome;
pub mod passage;
pub mod prompt_blocks;
pub mod request_body;
pub mod response;
pub mod responses;
pub mod roles;
pub mod row;
#[cfg(test)]
pub mod sample;
pub mod scalar;
pub mod scan;
pub mod sequence;
pub mod sglang;
pub mod sse;
pub mod stages;
pub mod stamps;
pub mod time_spent;
pub mod timeline;
pub mod token_count;
pub mod told;
pub mod trace;
pub mod unseen;
pub mod wait;
pub mod words;
