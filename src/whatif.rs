//! Predicts what a change of servers would do to a measured load. The simulator's engine is fitted to rows of requests; the load is
//! then replayed through it in simulated time. The error is measured by replaying the rows that the engine was fitted to.

pub mod command;
pub mod figures;
pub mod fit;
pub mod learn;
pub mod load;
pub mod replay;
pub mod settings;

/// Why nothing is predicted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Rows of these files without the times of servers.
    #[error(
        "{0}: no server has 20 requests whose rows tell when they entered and left its queue and had their first token \
         (queue_time_start, queue_time_end, server_first_token_time) on a clock that is known (clock_state): SGLang reports them \
         with --enable-metrics; `traffic --upstream-kind server` or a proxy's hops relate its clock"
    )]
    NothingToLearn(String),
    /// Files without a request that can be replayed.
    #[error(
        "{0}: no request went well and tells its arrival and numbers of tokens (arrival_time, actual_prompt_tokens, actual_output_tokens)"
    )]
    Empty(String),
    /// Rows of prefill/decode pairs of servers.
    #[error(
        "{0}: its requests were prefilled by one server and decoded by another (column disaggregated): pairs are not predicted; \
         give rows of servers that do both"
    )]
    Pairs(String),
    /// One shard of several.
    #[error(
        "{0}: is shard {1} of a load, whose servers had the other shards, too: put all of them together by `queuescope report \
         --merge`, and give that folder"
    )]
    Shard(String, String),
    /// An invalid setting.
    #[error("{0}")]
    Setting(String),
    /// An error of reading or writing a file.
    #[error(transparent)]
    Files(#[from] crate::table::Error),
}

impl Error {
    /// Whether the caller's arguments or files are to blame, and not the writing of a result.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Error::Files(error) if error.is_written)
    }
}
