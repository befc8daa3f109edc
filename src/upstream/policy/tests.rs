//! Tests of the choice, and of what is known of prompts.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::keys::values::Whole;

/// Returns how such a policy chooses, with a fixed seed.
fn chooser(policy: Policy) -> impl FnMut(&[Candidate]) -> Option<usize> {
    let (mut turn, mut rng) = (0, ChaCha8Rng::seed_from_u64(7));
    move |candidates| policy.choose(candidates, &mut turn, &mut rng)
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
        shares[chooser(&candidates(in_flight)).unwrap()] += 1;
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
        (0..times).map(|_| chooser(from).unwrap()).collect()
    };
    assert_eq!(turns(&all, 6), [0, 1, 2, 3, 0, 1]);
    assert_eq!(turns(&without_1, 7), [0, 2, 3, 0, 2, 3, 0]);
    // It gets one turn in four, not all those that it missed.
    assert_eq!(turns(&all, 6), [1, 2, 3, 0, 1, 2]);
}

#[test]
fn without_candidates_there_is_no_choice() {
    for policy in Policy::ALL {
        assert_eq!(chooser(policy)(&[]), None);
        assert_eq!(chooser(policy)(&candidates(&[5])), Some(0));
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

/// The blocks of a prompt of a group: its first `same` are the group's.
fn prompt(group: u64, same: u64, own: u64) -> Vec<u64> {
    let shared = (0..same).map(|at| group * 1_000_000 + at);
    let own = (same..128).map(|at| own * 1_000 + at);
    shared.chain(own).collect()
}

#[test]
fn what_prompts_share_is_found_and_nothing_else() {
    let mut prefixes = Prefixes::default();
    assert_eq!(prefixes.shared(&prompt(1, 40, 7)), 0);
    prefixes.insert(&prompt(1, 40, 7));
    prefixes.insert(&prompt(2, 9, 8));
    assert_eq!(prefixes.shared(&prompt(1, 40, 7)), 128);
    assert_eq!(prefixes.shared(&prompt(1, 40, 9)), 40);
    assert_eq!(prefixes.shared(&prompt(2, 9, 9)), 9);
    assert_eq!(prefixes.shared(&prompt(3, 9, 9)), 0);
    assert_eq!(prefixes.shared(&[]), 0);
}

#[test]
fn it_is_bounded_and_keeps_what_is_used_again() {
    let mut prefixes = Prefixes::default();
    let kept = prompt(1, 100, 999_999);
    for own in 1..4_000 {
        prefixes.insert(&prompt(own + 1, 20, own));
        if own % 100 == 0 {
            prefixes.insert(&kept);
        }
        assert!(prefixes.len() <= 2 * MAX_RECENT);
    }
    assert_eq!(prefixes.shared(&kept), 128);
    // So are the last ones; the first are dropped, whole.
    assert_eq!(prefixes.shared(&prompt(4_000, 20, 3_999)), 128);
    assert_eq!(prefixes.shared(&prompt(2, 20, 1)), 0);
}
