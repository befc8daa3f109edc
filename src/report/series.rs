//! What is measured over time is called so ([`super::files::SeriesRow`]).

/// The source of what is counted from the rows of requests.
pub const RECORDS: &str = "records";
/// The source of rows that a server's `/metrics` told.
pub const METRICS: &str = "metrics";
/// Tokens that the KV cache of a server holds, by the same.
pub const POOL: &str = "max_total_num_tokens";
/// The source of rows of a GPU.
pub const GPU: &str = "gpu";
/// In a batch: prefill or decode.
pub const RUNNING: &str = "running";
/// In the server queue.
pub const QUEUED: &str = "queued";
