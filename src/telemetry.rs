//! Where records go: files and metrics. Knows nothing of Pingora.

pub mod csv;
pub mod process;
pub mod prometheus;
pub mod recorder;
pub mod rotation;
mod sink;
pub mod upstreams;
