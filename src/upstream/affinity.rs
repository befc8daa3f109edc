//! When a request goes to the upstream that was given the beginning of its prompt before. Pure.

use crate::telemetry::prometheus::ChosenBy;

use super::policy::Candidate;

/// The limits of [`super::Policy::CacheAware`], as sglang-router has them.
#[derive(Clone, Copy, Debug)]
pub struct Affinity {
    /// The share of a prompt that must be known to an upstream; it goes there if more is.
    pub cache_threshold: f64,
    /// Requests in flight by which the longest queue must be ahead of the shortest before it counts as imbalance.
    pub balance_abs_threshold: usize,
    /// How many times as long as the shortest it must be, too.
    pub balance_rel_threshold: f64,
}

impl Affinity {
    /// Those of `candidates` that may have a prompt of so many blocks, and what decides. Among them the least loaded is
    /// to be taken.
    pub fn narrow(self, candidates: &mut Vec<Candidate>, blocks: usize) -> ChosenBy {
        if blocks == 0 {
            return ChosenBy::Unread;
        }
        let loads = candidates.iter().map(|candidate| candidate.in_flight);
        let most = loads.clone().max().unwrap_or(0);
        let fewest = loads.min().unwrap_or(0);
        if most - fewest > self.balance_abs_threshold
            && most as f64 > fewest as f64 * self.balance_rel_threshold
        {
            return ChosenBy::Imbalance;
        }
        let longest = candidates.iter().map(|candidate| candidate.shared).max();
        let longest = longest.unwrap_or(0);
        if longest as f64 > blocks as f64 * self.cache_threshold {
            candidates.retain(|candidate| candidate.shared == longest);
            return ChosenBy::Prefix;
        }
        ChosenBy::Load
    }
}
