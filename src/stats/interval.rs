//! Intervals that hold a quantile of what a sample was drawn from, by its order statistics.
//!
//! Of `n` independent values the number below the true `q`-quantile is binomial, whatever they are distributed like:
//! so the values of two ranks hold the quantile between them with a probability that is known exactly. Values that
//! depend on each other tell less than as many independent ones; [`effective_count`] estimates how much they tell.

use std::iter::successors;

use super::quantile;

/// The probability that may lie beyond each end of an interval: they are of 95 %.
const TAIL: f64 = 0.025;

/// Into so many blocks a sample is cut to see how far its values depend on each other. Fewer would be longer, and hold
/// more of a long dependence; but the variance of the blocks' means is only known to √(2 / 31), a quarter.
const BLOCKS: usize = 32;
/// A block of a short sample has at least so many values: there are then fewer blocks, but not below [`FEWEST`].
const SHORTEST: usize = 20;
const FEWEST: usize = 8;

/// A block must tell as much as so many independent values: with fewer the dependence is longer than the block shows.
const IN_A_BLOCK: usize = 4;

/// Blocks of independent values differ by chance alone, more than this only in one of twenty samples: less is no
/// dependence. The normal distribution's 95 %.
const CHANCE: f64 = 1.644_854;

/// Probabilities below this share of the largest one add nothing to a sum of them in a double.
const NEGLIGIBLE: f64 = 1e-20;

/// What a quantile lies between; `None` of too few values, or too alike neighbours.
pub type Between = Option<(f64, f64)>;

/// Quantiles that are reported, and what each lies between with 95 %.
pub type Intervals = [(&'static str, Between); 4];

/// Of values in the order they came in, whose neighbours may be alike, and the same ascending. How far they depend on each other
/// is judged at the median, the 90th percentile and the quantile itself, wherever they tell least: beyond a high quantile
/// there are too few values to show it.
pub fn intervals(in_order: &[f64], sorted: &[f64]) -> Intervals {
    let [p50, p90, p95, p99] = [0.5, 0.9, 0.95, 0.99].map(|q| effective_at(in_order, sorted, q));
    [
        ("p50", interval(sorted, 0.5, [p50; 3])),
        ("p90", interval(sorted, 0.9, [p50, p90, p90])),
        ("p95", interval(sorted, 0.95, [p50, p90, p95])),
        ("p99", interval(sorted, 0.99, [p50, p90, p99])),
    ]
}

/// An interval that holds the `q`-quantile with 95 %, each tail with at most half of what is left. `sorted` ascends, its values
/// tell no more than `effective` independent ones. `None`: there are too few of them (see [`needed`]).
fn dependent_interval(sorted: &[f64], q: f64, effective: f64) -> Option<(f64, f64)> {
    let effective = effective.min(sorted.len() as f64).floor() as u64;
    let (low, high) = ranks(effective, q)?;
    // The value of rank r of m stands for the share r / (m + 1).
    let scale = (sorted.len() + 1) as f64 / (effective + 1) as f64;
    let low = (low as f64 * scale).floor() as usize;
    let high = (high as f64 * scale).ceil() as usize;
    let at = |rank: usize| sorted.get(rank.clamp(1, sorted.len()) - 1).copied();
    Some((at(low)?, at(high)?))
}

/// How many independent values an interval for the `q`-quantile (above 0, below 1) takes: so many that even the smallest and the
/// largest are beyond it with less than half of what 95 % leave. 368 for the p99, 72 for the p95, 6 for the median. (299 would
/// do for an upper bound of the p99 alone.)
fn needed(q: f64) -> u64 {
    (TAIL.ln() / q.max(1.0 - q).ln()).ceil() as u64
}

/// That of values that tell as much as the least of these counts.
fn interval(sorted: &[f64], q: f64, judged: [Option<f64>; 3]) -> Between {
    let effective = judged.into_iter().reduce(|a, b| Some(a?.min(b?))).flatten();
    dependent_interval(sorted, q, effective?)
}

/// [`effective_count`] at a quantile.
fn effective_at(in_order: &[f64], sorted: &[f64], q: f64) -> Option<f64> {
    let at = quantile(sorted, q).filter(|at| at.is_finite())?;
    effective_count(in_order, at)
}

/// How many independent values tell as much about the share of values up to `at` as `in_order` does: from the variance
/// of the shares of blocks of neighbours, beside what it would be without dependence, if that is more than chance makes it.
/// `None` where the dependence reaches further than such blocks can tell, or there are too few values for blocks.
fn effective_count(in_order: &[f64], at: f64) -> Option<f64> {
    let count = in_order.len();
    let blocks = (count / SHORTEST).clamp(FEWEST, BLOCKS);
    let length = count / blocks;
    if length == 0 {
        return None;
    }
    let share = |values: &[f64]| {
        let up_to = values.iter().filter(|value| **value <= at).count();
        up_to as f64 / values.len() as f64
    };
    // What does not fill the last block is left out of this.
    let shares: Vec<f64> = in_order.chunks_exact(length).map(share).collect();
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    let squares: f64 = shares.iter().map(|share| (share - mean).powi(2)).sum();
    let variance = squares / (shares.len() - 1) as f64;
    let independent = mean * (1.0 - mean) / length as f64;
    let ratio = match independent > 0.0 {
        true => variance / independent,
        false => 1.0,
    };
    let is_chance = ratio <= by_chance((shares.len() - 1) as f64);
    let alike = if is_chance { 1.0 } else { ratio };
    let effective = count as f64 / alike;
    (effective >= (IN_A_BLOCK * blocks) as f64).then_some(effective)
}

/// How many times its true value a variance of so many degrees of freedom is by [`CHANCE`] at most (Wilson and Hilferty's
/// approximation of chi-squared).
fn by_chance(freedom: f64) -> f64 {
    let spread = 2.0 / (9.0 * freedom);
    (1.0 - spread + CHANCE * spread.sqrt()).powi(3)
}

/// The ranks, from 1, of the two values: the lower is above the quantile with at most the tail's probability, which is
/// that fewer than so many values are below it; and the upper is below it likewise.
fn ranks(count: u64, q: f64) -> Option<(u64, u64)> {
    // Of fewer even the smallest and the largest would not be beyond it.
    if count < needed(q) {
        return None;
    }
    let weights = weights(count, q);
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    let low = edge(weights.iter(), total)?;
    let high = edge(weights.iter().rev(), total)? + 1;
    (low >= 1 && high <= count).then_some((low, high))
}

/// The first number that has more than the tail's probability up to it.
fn edge<'w>(mut weights: impl Iterator<Item = &'w (u64, f64)>, total: f64) -> Option<u64> {
    let mut beyond = 0.0;
    let edge = weights.find(|(_, weight)| {
        beyond += weight;
        beyond > TAIL * total
    });
    edge.map(|(of, _)| *of)
}

/// The binomial probabilities of `count` and `q`, not normed, as far as they count, each with the number that it is of.
fn weights(count: u64, q: f64) -> Vec<(u64, f64)> {
    let mode = ((count + 1) as f64 * q).floor().min(count as f64) as u64;
    let odds = q / (1.0 - q);
    let down = |(of, weight): &(u64, f64)| {
        let less = of.checked_sub(1)?;
        Some((less, weight * (*of as f64 / ((count - less) as f64 * odds))))
    };
    let up = |(of, weight): &(u64, f64)| {
        let left = (count - of) as f64;
        (*of < count).then(|| (of + 1, weight * (left * odds / (of + 1) as f64)))
    };
    let counts = |(_, weight): &(u64, f64)| *weight > NEGLIGIBLE;
    let mut weights: Vec<(u64, f64)> = successors(Some((mode, 1.0)), down)
        .take_while(counts)
        .collect();
    weights.reverse();
    weights.extend(successors(Some((mode, 1.0)), up).take_while(counts).skip(1));
    weights
}

#[cfg(test)]
mod tests;
