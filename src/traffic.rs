//! The traffic generator: an open loop that sends each request at its scheduled time, whatever
//! became of the earlier ones, and records every one of them.

pub mod arrival;
pub mod workload;
