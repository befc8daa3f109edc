//! Sources and metrics of series over time ([`super::files::SeriesRow`]).

/// The source of what is counted from the rows of requests.
pub const RECORDS: &str = "records";
/// The source of rows from a server's `/metrics`.
pub const METRICS: &str = "metrics";
/// The metric of how many tokens a server's KV cache can hold.
pub const POOL: &str = "max_total_num_tokens";
/// The source of rows of a GPU.
pub const GPU: &str = "gpu";
/// The metric of requests in a batch.
pub const RUNNING: &str = "running";
/// The metric of requests in the server queue.
pub const QUEUED: &str = "queued";
