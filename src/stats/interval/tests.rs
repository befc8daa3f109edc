use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// An exponential of mean 1.
fn exponential(rng: &mut ChaCha8Rng) -> f64 {
    -(1.0 - rng.random::<f64>()).ln()
}

/// Times in an M/M/1 system of service rate 1 and this load, which is in its steady state: their quantiles are
/// −ln(1 − q) / (1 − load). Load 0: independent.
fn times(rng: &mut ChaCha8Rng, load: f64, count: usize) -> Vec<f64> {
    let mut wait = match rng.random::<f64>() < load {
        true => exponential(rng) / (1.0 - load),
        false => 0.0,
    };
    let one = |_| {
        let time = wait + exponential(rng);
        wait = match load > 0.0 {
            true => (time - exponential(rng) / load).max(0.0),
            false => 0.0,
        };
        time
    };
    (0..count).map(one).collect()
}

fn ascending(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// The load, the number of values, and the quantile.
type Case = (f64, usize, f64);

/// How often there was an interval, and how often it was wrong.
fn given_and_wrong((load, count, q): Case, interval: fn(&[f64], f64) -> Bounds) -> (f64, f64) {
    const TIMES: usize = 300;
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let truth = -(1.0 - q).ln() / (1.0 - load);
    let found = (0..TIMES).filter_map(|_| interval(&times(&mut rng, load, count), q));
    let found: Vec<_> = found.collect();
    let is_wrong = |(low, high): &&(f64, f64)| !(*low..=*high).contains(&truth);
    let wrong = found.iter().filter(is_wrong);
    let share = |count: usize| count as f64 / TIMES as f64;
    (share(found.len()), share(wrong.count()))
}

fn of_independent(values: &[f64], q: f64) -> Bounds {
    dependent_interval(&ascending(values), q, values.len() as f64)
}

fn of_series(values: &[f64], q: f64) -> Bounds {
    let at = [0.5, 0.9, 0.95, 0.99].iter().position(|of| *of == q);
    intervals(values, &ascending(values))[at.unwrap()].1
}

/// Of 300 intervals that are wrong with 5 %, more than this share are with a probability below 1e-6: z = 5.
const MISSES: f64 = 0.113;
/// Of 300 that are wrong with 10 %, more than this share are: z = 5.2.
const MISSES_IN_QUEUES: f64 = 0.19;

/// Of independent values all have an interval; ranks are whole numbers, so some are wrong in less than 5 %, but none never: 0.98³⁰⁰ = 0.2 %.
/// As a series, those that look correlated by chance have none: one of twenty for each of the up to three quantiles, so at least 85 % have
/// one. Fewer than 74 % of 300 have one with a probability below 1e-6: z = 5.3.
/// In a queue of 80 % load a value is correlated with the next 50. Intervals for independent values are wrong in 2 of 3; ours in about one of
/// ten at most, as there is none where the correlation is too long for the blocks.
#[test]
fn intervals_have_their_coverage_or_are_withheld() {
    for (load, count, q, at_least) in [
        (0.0, 32, 0.5, 0.74),
        (0.0, 40, 0.5, 0.74),
        (0.0, 100, 0.95, 0.74),
        (0.0, 368, 0.99, 0.74),
        (0.0, 500, 0.99, 0.74),
        (0.5, 1000, 0.5, 0.9),
        (0.8, 5000, 0.5, 0.9),
        (0.8, 5000, 0.9, 0.0),
        (0.9, 1000, 0.5, 0.0),
    ] {
        let (given, wrong) = given_and_wrong((load, count, q), of_series);
        let most = if load > 0.0 { MISSES_IN_QUEUES } else { MISSES };
        let context = format!("p{q} of {count} at {load}: {given} given, {wrong} wrong");
        assert!(given >= at_least && wrong < most, "{context}");
    }
    for (count, q) in [(40, 0.5), (500, 0.5), (500, 0.95), (400, 0.99)] {
        let (given, wrong) = given_and_wrong((0.0, count, q), of_independent);
        let is_right = given == 1.0 && 0.0 < wrong && wrong < MISSES;
        assert!(is_right, "p{q} of {count}: {wrong}");
    }
}

#[test]
fn too_few_values_have_no_interval() {
    for (q, needed) in [(0.99, 368), (0.95, 72), (0.5, 6), (0.01, 368)] {
        let is_given = |count| ranks(count, q).is_some();
        assert_eq!(
            (is_given(needed - 1), is_given(needed)),
            (false, true),
            "{q}"
        );
    }
    let values: Vec<f64> = (0..368).map(f64::from).collect();
    // The largest of 368 is beyond the p99 with 97.5 %: 1 − 0.99³⁶⁸.
    let interval = dependent_interval(&values, 0.99, 368.0);
    assert_eq!(interval, Some((359.0, 367.0)));
    assert_eq!(dependent_interval(&values, 0.99, 367.0), None);
    // Ascending: the strongest correlation.
    assert_eq!(of_series(&values, 0.99), None);
    // Enough for a median, but not to estimate the correlation.
    assert_eq!(of_series(&values[..24], 0.5), None);
}

#[test]
fn ranks_are_those_of_the_binomial() {
    // R: qbinom(c(.025, .975), 100, .5) is 40 and 60; P(X ≤ 39) = 0.0176, P(X ≥ 61) = 0.0176.
    let values: Vec<f64> = (1..=100).map(f64::from).collect();
    assert_eq!(dependent_interval(&values, 0.5, 100.0), Some((40.0, 61.0)));
    // All values are equal: the interval is that value.
    let alike = dependent_interval(&[7.0; 1_000_000], 0.999, 1e6);
    assert_eq!(alike, Some((7.0, 7.0)));
    // An effective sample size of ten: wider.
    let (low, high) = dependent_interval(&values, 0.5, 10.0).unwrap();
    assert!(low < 30.0 && high > 70.0, "{low} {high}");
}
