//! Which upstream gets the next request, by the requests in flight and by what each has had of the prompt. Pure: randomness is
//! passed in.

use std::collections::HashSet;

use rand::Rng;
use rand::seq::{IndexedRandom, IteratorRandom};

use crate::names::names;
use crate::telemetry::prometheus::ChosenBy;

use super::Rules;

#[cfg(test)]
mod tests;

names! {
    /// How requests are distributed over the upstreams.
    #[serde(rename_all = "snake_case")]
    pub enum Policy {
        /// One after the other.
        RoundRobin = "round_robin",
        /// Any, with the same chance.
        Random = "random",
        /// The one with the fewest requests in flight; among equals any, with the same chance.
        ShortestQueue = "shortest_queue",
        /// Of two taken at random the one with fewer requests in flight (Mitzenmacher, 2001).
        PowerOfTwo = "power_of_two",
        /// The one that got the longest part of the prompt before ([`Rules::narrow`]), the least loaded of several; where
        /// that does not decide, the one with the fewest requests in flight, then the one with the least in its cache.
        CacheAware = "cache_aware",
    }
}

impl Policy {
    /// Whether it looks at the prompt.
    pub fn is_by_prompt(self) -> bool {
        self == Policy::CacheAware
    }

    /// Lists their names, for helps and messages.
    pub fn listed(is_listed: impl Fn(&Policy) -> bool) -> String {
        let listed = Policy::ALL.into_iter().filter(is_listed);
        listed.map(Policy::name).collect::<Vec<_>>().join(", ")
    }

    /// Whether it looks at the requests in flight.
    pub fn is_by_load(self) -> bool {
        !matches!(self, Policy::RoundRobin | Policy::Random)
    }
}

/// An upstream that may be chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Candidate {
    /// Its index among all.
    pub index: usize,
    /// Whether it cannot be connected to at present.
    pub is_out: bool,
    /// The number of requests that it has.
    pub in_flight: usize,
    /// The number of blocks at the prompt's beginning that it got before; only known for [`Policy::CacheAware`].
    pub shared: usize,
    /// The number of blocks of all prompts that it got.
    pub cached: usize,
}

/// The beginnings of prompts that an upstream got, an estimate of what its prefix cache holds: hashes of the blocks of recent prompts.
/// A block is in it only with all blocks before it in its prompt.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    recent: HashSet<u64>,
    /// The blocks that were recent before. Those that are used again become recent again, the rest is dropped as a whole.
    old: HashSet<u64>,
}

/// The most recent blocks: with the old ones 8 MiB of text, some 2 million tokens.
const MAX_RECENT: usize = 32_768;

impl Policy {
    /// Chooses one of `candidates`; `None` if there are none. `turn` counts the choices of [`Policy::RoundRobin`].
    pub fn choose(
        self,
        candidates: &[Candidate],
        turn: &mut usize,
        rng: &mut impl Rng,
    ) -> Option<usize> {
        let chosen = match self {
            // If one is out, the others have its turns in turn.
            Policy::RoundRobin => {
                let at = turn.checked_rem(candidates.len())?;
                *turn = turn.wrapping_add(1);
                candidates[at]
            }
            Policy::Random => *candidates.choose(rng)?,
            // The pair is in random order, and the first of equals is taken: ties are fair.
            Policy::PowerOfTwo => {
                let two = candidates.choose_multiple(rng, 2);
                *two.min_by_key(|c| c.in_flight)?
            }
            // `cached` is 0 for the first policy.
            Policy::ShortestQueue | Policy::CacheAware => {
                let load = |c: &Candidate| (c.in_flight, c.cached);
                let least = candidates.iter().map(load).min()?;
                let least = candidates.iter().filter(|c| load(c) == least);
                *least.choose(rng)?
            }
        };
        Some(chosen.index)
    }
}

impl Rules {
    /// Keeps the candidates for a prompt of this many blocks, of which the least loaded is to be taken. Returns what decides.
    pub(super) fn narrow(&self, candidates: &mut Vec<Candidate>, blocks: usize) -> ChosenBy {
        if blocks == 0 {
            return ChosenBy::Unread;
        }
        let loads = candidates.iter().map(|candidate| candidate.in_flight);
        let max = loads.clone().max().unwrap_or(0);
        let min = loads.min().unwrap_or(0);
        if (max - min) as u64 > self.balance_abs_threshold.get()
            && max as f64 > min as f64 * self.balance_rel_threshold
        {
            return ChosenBy::Imbalance;
        }
        let longest = candidates.iter().map(|candidate| candidate.shared).max();
        let longest = longest.unwrap_or(0);
        // The first block is the same in any two prompts of a short system prompt: most of it is JSON.
        if longest > 1 && longest as f64 > blocks as f64 * self.cache_threshold {
            candidates.retain(|candidate| candidate.shared == longest);
            return ChosenBy::Prefix;
        }
        ChosenBy::Load
    }
}

impl Prefixes {
    /// Returns how many blocks of a prompt, from its first on, are in here.
    pub fn shared(&self, blocks: &[u64]) -> usize {
        let holds = |block: &u64| self.recent.contains(block) || self.old.contains(block);
        blocks.partition_point(holds)
    }

    /// Adds the blocks of a prompt that the upstream got.
    pub fn insert(&mut self, blocks: &[u64]) {
        if self.recent.len() + blocks.len() > MAX_RECENT {
            self.old = std::mem::take(&mut self.recent);
        }
        self.recent.extend(blocks);
    }

    /// The number of blocks; those that have become recent again count twice.
    pub fn len(&self) -> usize {
        self.recent.len() + self.old.len()
    }
}
