//! Experiments: what is started, what is done to it, and what is left of it.

mod faults;
mod launch;
//! `queuescope node` and `queuescope routing`, as they are typed.

mod grid;
mod plan;
mod resume;
mod search;
mod started;
