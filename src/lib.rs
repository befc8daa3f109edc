//! queuescope shows where every LLM request waits.

pub mod cli;
pub mod clock;
pub mod config;
pub mod experiment;
pub mod offset;
pub mod proxy;
pub mod report;
pub mod request;
pub mod sim;
pub mod stats;
pub mod telemetry;
pub mod traffic;
