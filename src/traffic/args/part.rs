//! The flags of a load that several generators share, and of one that is stored.

use std::path::PathBuf;

use crate::clock::Stamp;
use crate::traffic::shard::Shard;

use super::values;

/// Which part of a load is sent, and from when on; where the load is stored.
#[derive(Clone, Debug, clap::Args)]
pub struct PartArgs {
    /// Send every N-th request only, from the I-th on (from 0): N generators with the same flags send one load
    #[arg(long, value_name = "I/N")]
    #[arg(help_heading = "When requests are sent")]
    pub shard: Option<Shard>,
    /// Begin then, Unix seconds or a time such as 2026-11-22T10:00:00Z, so that shards begin together
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    #[arg(help_heading = "When requests are sent")]
    pub start_at: Option<Stamp>,
    /// No flag: a trial of a search sets it. The drawn gaps are scaled so that their mean is that of the rate.
    #[arg(skip)]
    pub exact_rate: bool,
    /// Write what is sent and when to a new file, for --workload
    #[arg(long, value_name = "FILE")]
    #[arg(help_heading = "What is written")]
    pub save_workload: Option<PathBuf>,
}

impl PartArgs {
    /// Start of the requests' ids where none is given. Shards agree on it; else those of two runs must not meet in one
    /// file, whatever the seed.
    pub(super) fn id_prefix(&self, seed: u64) -> String {
        match (self.shard, self.start_at) {
            (None, _) => format!("qs-{:08x}", rand::random::<u32>()),
            (Some(_), Some(at)) => format!("qs-{seed}-{}", at.compact_utc()),
            (Some(_), None) => format!("qs-{seed}"),
        }
    }
}
