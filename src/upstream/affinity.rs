//! [`Policy::CacheAware`](super::Policy): when a request goes to the upstream that got its prompt's beginning before. Pure.

use crate::telemetry::prometheus::ChosenBy;

use super::Rules;
use super::policy::Candidate;

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
        if longest as f64 > blocks as f64 * self.cache_threshold {
            candidates.retain(|candidate| candidate.shared == longest);
            return ChosenBy::Prefix;
        }
        ChosenBy::Load
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::values::Whole;
    use crate::upstream::policy::tests::candidates;

    /// Returns what decides for a prompt of 10 blocks, and the indices that are kept of candidates with these (in flight, shared).
    fn narrowed(of: &[(usize, usize)]) -> (ChosenBy, Vec<usize>) {
        let limits = Rules {
            balance_abs_threshold: Whole::of::<8>(),
            ..Rules::default()
        };
        let (in_flight, shared): (Vec<_>, Vec<_>) = of.iter().copied().unzip();
        let mut candidates = candidates(&in_flight);
        for (candidate, shared) in candidates.iter_mut().zip(shared) {
            candidate.shared = shared;
        }
        let by = limits.narrow(&mut candidates, 10);
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
            assert_eq!(narrowed(of), (by, left.to_vec()), "{of:?}");
        }
    }
}
