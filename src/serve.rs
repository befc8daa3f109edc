//! The proxy as a process: start, reload, drain, signals, and the admin listener.

pub mod admin;
pub mod lifecycle;
mod live;
pub mod process;
pub mod start;
