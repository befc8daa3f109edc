//! `queuescope node` and `queuescope routing`, as they are typed.

mod grid;
mod plan;
mod resume;
mod search;
mod started;
