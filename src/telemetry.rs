//! Where records go: files and metrics. Knows nothing of Pingora.

pub mod csv;
pub mod metric;
pub mod process;
pub mod prometheus;
pub mod recorder;
pub mod records_file;
pub mod rotation;
pub mod upstreams;
