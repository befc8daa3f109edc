//! Confidence intervals of quantiles, by order statistics.
//!
//! Of `n` independent values the number below the true `q`-quantile is binomial, whatever their distribution, so the values at two
//! ranks contain the quantile with a probability that is known exactly. For correlated values the effective sample size
//! replaces `n`; [`effective_count`] estimates it.

use statrs::distribution::{Binomial, ChiSquared, ContinuousCDF as _, DiscreteCDF as _};

use super::quantile;

/// The probability beyond each end of a 95 % interval.
const TAIL: f64 = 0.025;

/// The number of blocks by which correlation is estimated. Fewer and longer ones would contain more of a long correlation; but
/// even of 32 the variance of the means is known only to √(2 / 31), a quarter.
const BLOCKS: usize = 32;
/// A short sample has fewer blocks, so that each has at least [`MIN_LENGTH`] values, but not fewer than [`MIN_BLOCKS`].
const MIN_LENGTH: usize = 20;
const MIN_BLOCKS: usize = 8;

/// The effective sample size that a block must have: with less, the correlation reaches beyond the block.
const MIN_EFFECTIVE: usize = 4;

/// The bounds of a quantile; `None` of too few values, or of too strong a correlation.
pub type Bounds = Option<(f64, f64)>;

/// The reported quantiles with their 95 % confidence intervals.
pub type Intervals = [(&'static str, Bounds); 4];

/// The intervals of a series whose neighbours may be correlated; `sorted` has the same values ascending. The effective sample size of a
/// quantile is the least of those at it, at the median and at the 90th percentile: beyond a high quantile there are too few values to
/// show a correlation.
pub fn intervals(in_order: &[f64], sorted: &[f64]) -> Intervals {
    let mut least = Some(f64::INFINITY);
    [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)].map(|(name, q)| {
        let at = quantile(sorted, q).filter(|at| at.is_finite());
        let here = at.and_then(|at| effective_count(in_order, at));
        let effective = least.zip(here).map(|(least, here)| least.min(here));
        least = if q <= 0.9 { effective } else { least };
        let bounds = effective.and_then(|count| dependent_interval(sorted, q, count));
        (name, bounds)
    })
}

/// The 95 % interval of the `q`-quantile of ascending values of an effective sample size; `None` if that is too small.
fn dependent_interval(sorted: &[f64], q: f64, effective: f64) -> Option<(f64, f64)> {
    let effective = effective.min(sorted.len() as f64).floor() as u64;
    let (low, high) = ranks(effective, q)?;
    // The value at rank r of m estimates the quantile r / (m + 1).
    let scale = (sorted.len() + 1) as f64 / (effective + 1) as f64;
    let low = (low as f64 * scale).floor() as usize;
    let high = (high as f64 * scale).ceil() as usize;
    let at = |rank: usize| sorted.get(rank.clamp(1, sorted.len()) - 1).copied();
    Some((at(low)?, at(high)?))
}

/// The effective sample size of a series for the share of values up to `at`: its length, divided by the ratio of the variance of
/// that share between blocks of neighbours to the variance of independent values, if the ratio is more than chance.
/// `None` if the correlation reaches beyond blocks, or there are too few values for blocks.
fn effective_count(in_order: &[f64], at: f64) -> Option<f64> {
    let count = in_order.len();
    let blocks = (count / MIN_LENGTH).clamp(MIN_BLOCKS, BLOCKS);
    let length = count / blocks;
    if length == 0 {
        return None;
    }
    let share = |values: &[f64]| {
        let up_to = values.iter().filter(|value| **value <= at).count();
        up_to as f64 / values.len() as f64
    };
    // An incomplete last block is left out.
    let shares: Vec<f64> = in_order.chunks_exact(length).map(share).collect();
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    let squares: f64 = shares.iter().map(|share| (share - mean).powi(2)).sum();
    let freedom = (shares.len() - 1) as f64;
    let variance = squares / freedom;
    let independent = mean * (1.0 - mean) / length as f64;
    let ratio = match independent > 0.0 {
        true => variance / independent,
        false => 1.0,
    };
    // Blocks of independent values differ by more in one of twenty samples.
    let max_by_chance = ChiSquared::new(freedom).ok()?.inverse_cdf(0.95) / freedom;
    let is_chance = ratio <= max_by_chance;
    let effective = count as f64 / if is_chance { 1.0 } else { ratio };
    (effective >= (MIN_EFFECTIVE * blocks) as f64).then_some(effective)
}

/// The ranks, from 1, of the two bounds: the lower one is above the quantile, and the upper one below it, with at most the
/// probability [`TAIL`] each. `None` of too few values: the smallest and the largest must contain it with 95 %, which needs 368 for the
/// p99, 72 for the p95, 6 for the median. (299 for an upper bound of the p99 alone.)
fn ranks(count: u64, q: f64) -> Option<(u64, u64)> {
    let below = Binomial::new(q, count).ok()?;
    // The library's own search computes each probability seven times.
    let least = |share: f64| {
        let (mut from, mut to) = (0, count);
        while from < to {
            let middle = u64::midpoint(from, to);
            match below.cdf(middle) < share {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        from
    };
    let (low, high) = (least(TAIL), least(1.0 - TAIL) + 1);
    (low >= 1 && high <= count).then_some((low, high))
}

#[cfg(test)]
mod tests;
