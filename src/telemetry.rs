//! Where records go: files and metrics. Knows nothing of Pingora.

pub mod csv;
pub mod prometheus;
pub mod recorder;
mod sink;
pub mod upstreams;
