//! What a change of servers would do to a load that was measured: rows teach the simulator's engine how fast the servers are, and
//! the load is put to it in its own time. The error of that is measured on the rows it was learnt from.

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
    /// Rows that tell nothing of servers.
    #[error(
        "--fit: no server has 20 requests whose rows tell when they entered and left its queue and had their first token \
         (queue_time_start, queue_time_end, server_first_token_time) on a clock that is known (clock_state): SGLang tells it with \
         --enable-metrics; `traffic --upstream-kind server` or a proxy's hops relate its clock"
    )]
    NothingToLearn,
    /// A load without requests.
    #[error(
        "LOAD: no request went well and tells its arrival and numbers of tokens (arrival_time, actual_prompt_tokens, actual_output_tokens)"
    )]
    Empty,
    /// A load of pairs of servers.
    #[error(
        "{0}: its requests were prefilled by one server and decoded by another (column disaggregated): pairs are not predicted; \
         give rows of servers that do both"
    )]
    Pairs(String),
    /// A load of hops.
    #[error(
        "{0}: its rows are of worker hops, which do not tell when requests arrived: put them together with those of their front by \
         `queuescope report --join`, and give that folder"
    )]
    Hops(String),
    /// A load whose requests are there already.
    #[error(
        "{0} and {1}: {2} requests are in both, and the load would be doubled; give each once, and of proxies behind each other \
         only what the first recorded"
    )]
    Twice(String, String, usize),
    /// A load and what it is a part of.
    #[error("{0} lies in {1}, and its load would be doubled; give one of the two")]
    Inside(String, String),
    /// A part of a load.
    #[error(
        "{0}: is shard {1} of a load, whose servers had the other shards, too: put all of them together by `queuescope report \
         --merge`, and give that folder"
    )]
    Shard(String, String),
    /// A setting that cannot be.
    #[error("{0}")]
    Setting(String),
    /// A file that cannot be read or written.
    #[error(transparent)]
    Files(#[from] crate::table::Error),
}

impl Error {
    /// Whether what was given is wrong.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Error::Files(error) if error.is_written)
    }
}
