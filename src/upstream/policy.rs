//! Which upstream gets the next request. Pure: randomness is passed in.

use rand::seq::{IndexedRandom, IteratorRandom};
use rand_chacha::ChaCha8Rng;

use crate::request::names::names;
use crate::telemetry::prometheus::ChosenBy;

use super::Rules;

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

/// Chooses by a policy.
#[derive(Debug)]
pub struct Chooser {
    policy: Policy,
    rng: ChaCha8Rng,
    turn: usize,
}

impl Chooser {
    /// Creates a chooser with randomness from `rng`.
    pub fn new(policy: Policy, rng: ChaCha8Rng) -> Chooser {
        let turn = 0;
        Chooser { policy, rng, turn }
    }

    /// Chooses one of `candidates`; `None` if there are none.
    pub fn choose(&mut self, candidates: &[Candidate]) -> Option<usize> {
        let chosen = match self.policy {
            // If one is out, the others have its turns in turn.
            Policy::RoundRobin => {
                let at = self.turn.checked_rem(candidates.len())?;
                self.turn = self.turn.wrapping_add(1);
                candidates[at]
            }
            Policy::Random => *candidates.choose(&mut self.rng)?,
            // The pair is in random order, and the first of equals is taken: ties are fair.
            Policy::PowerOfTwo => {
                let two = candidates.choose_multiple(&mut self.rng, 2);
                *two.min_by_key(|c| c.in_flight)?
            }
            // `cached` is 0 for the first policy.
            Policy::ShortestQueue | Policy::CacheAware => {
                let load = |c: &Candidate| (c.in_flight, c.cached);
                let least = candidates.iter().map(load).min()?;
                let least = candidates.iter().filter(|c| load(c) == least);
                *least.choose(&mut self.rng)?
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

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::keys::values::Whole;

    fn chooser(policy: Policy) -> Chooser {
        Chooser::new(policy, ChaCha8Rng::seed_from_u64(7))
    }

    fn candidates(in_flight: &[usize]) -> Vec<Candidate> {
        let numbered = in_flight.iter().enumerate();
        let candidate = |(index, in_flight): (usize, &usize)| Candidate {
            index,
            is_out: false,
            in_flight: *in_flight,
            shared: 0,
            cached: 0,
        };
        numbered.map(candidate).collect()
    }

    /// Returns how often each was chosen of 30 000 times.
    fn shares(policy: Policy, in_flight: &[usize]) -> Vec<usize> {
        let mut chooser = chooser(policy);
        let mut shares = vec![0; in_flight.len()];
        for _ in 0..30_000 {
            shares[chooser.choose(&candidates(in_flight)).unwrap()] += 1;
        }
        shares
    }

    /// Whether a share of 30 000 is within 5 standard deviations of `chance`: a correct chooser fails with a probability of less
    /// than one in a million, and the seed is fixed.
    fn is_about(share: usize, chance: f64) -> bool {
        let deviation = (30_000.0 * chance * (1.0 - chance)).sqrt();
        (share as f64 - 30_000.0 * chance).abs() <= 5.0 * deviation
    }

    #[test]
    fn turns_are_even_if_one_is_out() {
        let mut chooser = chooser(Policy::RoundRobin);
        let all = candidates(&[9, 0, 3, 0]);
        let without_1: Vec<_> = all.iter().filter(|c| c.index != 1).copied().collect();
        let mut turns = |from: &[Candidate], times: usize| -> Vec<usize> {
            (0..times).map(|_| chooser.choose(from).unwrap()).collect()
        };
        assert_eq!(turns(&all, 6), [0, 1, 2, 3, 0, 1]);
        assert_eq!(turns(&without_1, 7), [0, 2, 3, 0, 2, 3, 0]);
        // It gets one turn in four, not all those that it missed.
        assert_eq!(turns(&all, 6), [1, 2, 3, 0, 1, 2]);
    }

    #[test]
    fn without_candidates_there_is_no_choice() {
        use Policy::{CacheAware, PowerOfTwo, Random, RoundRobin, ShortestQueue};
        for policy in [RoundRobin, Random, ShortestQueue, PowerOfTwo, CacheAware] {
            assert_eq!(chooser(policy).choose(&[]), None);
            assert_eq!(chooser(policy).choose(&candidates(&[5])), Some(0));
        }
    }

    #[test]
    fn each_policy_has_its_expected_shares() {
        let third = 1.0 / 3.0;
        use Policy::{CacheAware, PowerOfTwo, Random, ShortestQueue};
        let cases: [(Policy, &[usize], &[f64]); 5] = [
            (Random, &[0, 9, 3], &[third; 3]),
            (ShortestQueue, &[2, 1, 5, 1], &[0.0, 0.5, 0.0, 0.5]),
            (CacheAware, &[2, 1, 5, 1], &[0.0, 0.5, 0.0, 0.5]),
            // Of the six pairs, the longest queue wins none, the shortest three.
            (PowerOfTwo, &[1, 2, 3, 4], &[0.5, third, 1.0 / 6.0, 0.0]),
            (PowerOfTwo, &[4, 4, 4], &[third; 3]),
        ];
        for (policy, in_flight, chances) in cases {
            let shares = shares(policy, in_flight);
            let is_right = |(share, chance): (&usize, &f64)| is_about(*share, *chance);
            let are_right = shares.iter().zip(chances).all(is_right);
            assert!(are_right, "{policy:?}: {shares:?}");
        }
    }

    /// Returns what decides for a prompt of so many blocks, and the indices that are kept of candidates with these (in flight, shared).
    fn narrowed(blocks: usize, of: &[(usize, usize)]) -> (ChosenBy, Vec<usize>) {
        let limits = Rules {
            balance_abs_threshold: Whole::of::<8>(),
            ..Rules::default()
        };
        let (in_flight, shared): (Vec<_>, Vec<_>) = of.iter().copied().unzip();
        let mut candidates = candidates(&in_flight);
        for (candidate, shared) in candidates.iter_mut().zip(shared) {
            candidate.shared = shared;
        }
        let by = limits.narrow(&mut candidates, blocks);
        (by, candidates.iter().map(|c| c.index).collect())
    }

    /// Candidates, what decides, and who is kept.
    type Case = (&'static [(usize, usize)], ChosenBy, &'static [usize]);

    #[test]
    fn the_longest_shared_prefix_decides_while_queues_are_even() {
        use ChosenBy::{Imbalance, Load, Prefix};
        let cases: [Case; 8] = [
            // More than the threshold must be shared.
            (&[(0, 0), (0, 4)], Prefix, &[1]),
            (&[(0, 0), (0, 3)], Load, &[0, 1]),
            (&[], Load, &[]),
            (&[(0, 5), (2, 9), (0, 0), (1, 9)], Prefix, &[1, 3]),
            // Uneven queues take precedence, by both thresholds: 9 ahead may be less than 1.5 times as long.
            (&[(9, 9), (0, 0)], Imbalance, &[0, 1]),
            (&[(8, 9), (0, 0)], Prefix, &[0]),
            (&[(27, 9), (18, 0)], Prefix, &[0]),
            (&[(28, 9), (18, 0)], Imbalance, &[0, 1]),
        ];
        for (of, by, left) in cases {
            assert_eq!(narrowed(10, of), (by, left.to_vec()), "{of:?}");
        }
        // A single block is mostly JSON, and the same in any two prompts of a short system prompt.
        assert_eq!(narrowed(2, &[(0, 0), (0, 1)]), (Load, vec![0, 1]));
        assert_eq!(narrowed(2, &[(0, 0), (0, 2)]), (Prefix, vec![1]));
    }
}
