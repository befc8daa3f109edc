//! The traffic generator: an open loop that sends each request at its scheduled time, whatever
//! became of the earlier ones, and records every one of them.

pub mod arrival;
pub mod client;
mod clocks;
pub mod driver;
pub mod lag;
pub mod plan;
pub mod stop;
pub mod workload;

/// Why there was no run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Nothing answers at the target.
    #[error("nothing answers at {url}: {why}")]
    Unreachable {
        /// The base URL.
        url: String,
        /// What happened.
        why: String,
    },
    /// The target answers, but not so that the run can begin.
    #[error("{0}")]
    Refused(String),
    /// A warm-up request failed.
    #[error("a warm-up request failed: {0}")]
    Warmup(String),
    /// The system gave no thread or runtime.
    #[error("the generator could not start: {0}")]
    Thread(String),
}

impl Error {
    /// Whether what was asked for is to blame, rather than how it went.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Usage(_))
    }
}
