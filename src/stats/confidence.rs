//! Confidence intervals: of quantiles, by order statistics, and of the difference between two paired samples, by a block bootstrap.
//!
//! Of `n` independent values the number below the true `q`-quantile is binomial, whatever their distribution, so the values at two
//! ranks contain the quantile with a probability that is known exactly. For correlated values the effective sample size
//! replaces `n`; [`effective_count`] estimates it.
//!
//! Of paired samples, blocks of neighbouring pairs are resampled instead of single pairs: neighbouring requests are correlated, as
//! they wait in the same queue.
//!
//! Rules that choose the block length from the series' own correlation (Politis and White) gave too short blocks on simulated
//! queues: with requests spread over several queues, neighbours are nearly independent, yet queues stay long or short for
//! hundreds of requests. So the block length is a fixed share of the run, and intervals are widened as so few blocks require
//! (Kiefer and Vogelsang 2005, "fixed b").

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use statrs::distribution::{Binomial, ChiSquared, ContinuousCDF as _, DiscreteCDF as _, StudentsT};

use super::{interpolated, quantile, ranks, sorted};

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
    let (low, high) = order_ranks(effective, q)?;
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
fn order_ranks(count: u64, q: f64) -> Option<(u64, u64)> {
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

/// A statistic of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    /// The arithmetic mean.
    #[default]
    Mean,
    /// A quantile, 0 to 1, interpolated linearly between the two nearest ranks.
    Quantile(f64),
}

/// The difference `b − a` of a statistic with its 95 % confidence interval, in the unit of the samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct PairedDifference {
    /// The statistic of the first sample.
    pub of_a: f64,
    /// The statistic of the second.
    pub of_b: f64,
    /// Lower bound of the difference; −∞ if a resample had an infinite statistic.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// The length of a block as a share of the series.
const BLOCK_SHARE: f64 = 0.25;
/// The 97.5 % quantile of the normal distribution.
const Z_95: f64 = 1.959_964;
/// The probability of a normal value more than one standard deviation below its mean.
const BELOW_ONE_SD: f64 = 0.158_655;
/// The pairs, and the values beyond a quantile, that an interval needs: with fewer, resamples repeat the sample.
const MIN_PAIRS: usize = 40;
const MIN_BEYOND: f64 = 5.0;
/// The values drawn for an interval, which limits the time for long runs; and the bounds on the number of resamples.
const DRAWS: usize = 20_000_000;
const RESAMPLES: [usize; 2] = [300, 2000];

/// The paired difference of a statistic. `strata` (repeats of a run) are resampled each by itself; their pairs are in order of
/// time. Values may be +∞ but not `NaN`. `None` if there are too few pairs, or the statistic of a sample is not finite.
pub fn paired_difference(
    strata: &[Vec<(f64, f64)>],
    statistic: Statistic,
    seed: u64,
) -> Option<PairedDifference> {
    let pairs = strata.iter().map(Vec::len).sum::<usize>().max(1);
    let resamples = (DRAWS / pairs).clamp(RESAMPLES[0], RESAMPLES[1]);
    of_resamples(strata, statistic, seed, resamples)
}

fn of_resamples(
    strata: &[Vec<(f64, f64)>],
    statistic: Statistic,
    seed: u64,
    resamples: usize,
) -> Option<PairedDifference> {
    let (a, b): (Vec<f64>, Vec<f64>) = strata.iter().flatten().copied().unzip();
    let beyond = match statistic {
        Statistic::Mean => f64::INFINITY,
        Statistic::Quantile(q) => a.len() as f64 * q.min(1.0 - q),
    };
    if a.len() < MIN_PAIRS || beyond < MIN_BEYOND - 1e-9 {
        return None;
    }
    let samples = [Sample::new(a), Sample::new(b)];
    let [of_a, of_b] = values_of(&samples, statistic)?;
    let lengths: Vec<usize> = strata.iter().map(Vec::len).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut spread = |shorter, resamples| {
        let mut weights = vec![0; samples[0].values.len()];
        let difference = |_| {
            draw(&lengths, shorter, &mut rng, &mut weights);
            let [a, b] = samples
                .each_ref()
                .map(|of| of.weighted(statistic, &weights));
            b - a
        };
        Spread::of((0..resamples).map(difference).collect())
    };
    let long = spread(1, resamples)?;
    // Shorter blocks miss more of the long-range correlation. What long blocks miss in turn is estimated by the difference
    // between both: "lugsail" (Vats and Flegal 2022).
    let short = spread(SHORTER, resamples / 2)?;
    let ratio = (short.error / long.error).powi(2);
    let mut factor = widening() * (2.0 - ratio.min(1.0)).sqrt();
    let of_repeat = |pairs: &Vec<(f64, f64)>| {
        let (a, b) = pairs.iter().copied().unzip();
        let [a, b] = values_of(&[Sample::new(a), Sample::new(b)], statistic)?;
        Some(b - a)
    };
    let repeats: Option<Vec<f64>> = strata.iter().map(of_repeat).collect();
    if let Some(half) = repeats.and_then(|differences| by_repeats(&differences)) {
        factor = factor.max(half / (Z_95 * long.error));
    }
    let difference = of_b - of_a;
    // Without variation `factor` may be infinite, and 0 times that is not a number.
    let widened = |distance: f64| match distance > 0.0 {
        true => distance * factor,
        false => 0.0,
    };
    Some(PairedDifference {
        of_a,
        of_b,
        low: difference - widened(difference - long.low),
        high: difference + widened(long.high - difference),
    })
}

/// The statistic of both samples, not resampled; `None` if one is not finite.
fn values_of(samples: &[Sample; 2], statistic: Statistic) -> Option<[f64; 2]> {
    let values = samples.each_ref().map(|sample| {
        let once = vec![1; sample.values.len()];
        sample.weighted(statistic, &once)
    });
    let are_finite = values.iter().all(|value| value.is_finite());
    are_finite.then_some(values)
}

/// The block length for a series of `len` values.
fn block_length(len: usize) -> usize {
    ((len as f64 * BLOCK_SHARE).round() as usize).max(1)
}

/// The factor on a normal 95 % interval whose spread comes from blocks of [`block_length`].
fn widening() -> f64 {
    // The polynomial of Kiefer and Vogelsang for the Bartlett kernel, to which a circular block bootstrap corresponds.
    let critical =
        1.96 + 2.9694 * BLOCK_SHARE + 0.4160 * BLOCK_SHARE.powi(2) - 0.5324 * BLOCK_SHARE.powi(3);
    critical / Z_95
}

/// The shorter blocks are this many times shorter.
const SHORTER: usize = 3;

/// Half the width of Student's interval from the differences of single repeats: these are independent, whatever the correlation
/// within a run. `None` of fewer than three: two differ too little or too much by chance.
fn by_repeats(differences: &[f64]) -> Option<f64> {
    let count = differences.len();
    let freedom = (count - 1) as f64;
    let student = StudentsT::new(0.0, 1.0, freedom).ok();
    let student = student.filter(|_| count > 2)?.inverse_cdf(0.975);
    let mean = differences.iter().sum::<f64>() / count as f64;
    let squares: f64 = differences.iter().map(|d| (d - mean).powi(2)).sum();
    Some(student * (squares / freedom / count as f64).sqrt())
}

/// Values, and their indices in ascending order.
struct Sample {
    values: Vec<f64>,
    order: Vec<u32>,
}

impl Sample {
    fn new(values: Vec<f64>) -> Sample {
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        order.sort_unstable_by(|x, y| values[*x as usize].total_cmp(&values[*y as usize]));
        Sample { values, order }
    }

    /// The statistic of a resample that has each value as often as its weight; the weights sum up to the sample's length.
    fn weighted(&self, statistic: Statistic, weights: &[u32]) -> f64 {
        let count = self.values.len() as u64;
        match statistic {
            Statistic::Mean => {
                let products = self.values.iter().zip(weights);
                products.map(|(v, w)| v * f64::from(*w)).sum::<f64>() / count as f64
            }
            Statistic::Quantile(q) => {
                let value = ranks(count, q).map(|(below, above, part)| {
                    let rank = |rank| self.rank(weights, rank, count);
                    interpolated(rank(below), part, || rank(above))
                });
                value.unwrap_or(f64::NAN)
            }
        }
    }

    /// The value at a rank of a resample, searched for from the nearer end.
    fn rank(&self, weights: &[u32], rank: u64, count: u64) -> f64 {
        let mut left = 0;
        let mut holds = |index: &&u32, target: u64| {
            left += u64::from(weights[**index as usize]);
            left > target
        };
        let found = if rank < count / 2 {
            self.order.iter().find(|index| holds(index, rank))
        } else {
            let target = count - 1 - rank;
            self.order.iter().rev().find(|index| holds(index, target))
        };
        found.map_or(f64::NAN, |index| self.values[*index as usize])
    }
}

/// Draws a resample of blocks, stratum by stratum: the number of times that each value occurs. Blocks are `shorter` times shorter
/// than [`block_length`].
fn draw(lengths: &[usize], shorter: usize, rng: &mut ChaCha8Rng, weights: &mut [u32]) {
    weights.fill(0);
    let mut rest = weights;
    for &length in lengths {
        let (stratum, others) = rest.split_at_mut(length);
        let block = (block_length(length) / shorter).max(1);
        let mut left = length;
        while left > 0 {
            let part = block.min(left);
            let first = rng.random_range(0..length);
            // A block that passes the end of the series continues at its start (circular bootstrap).
            let (start, end) = stratum.split_at_mut(first);
            let taken = end.iter_mut().chain(start).take(part);
            taken.for_each(|weight| *weight += 1);
            left -= part;
        }
        rest = others;
    }
}

/// How a difference varies between resamples.
struct Spread {
    /// Its 2.5 % and 97.5 % quantiles.
    low: f64,
    high: f64,
    /// Half the width of the central 68 %: the standard error of a normal distribution.
    error: f64,
}

impl Spread {
    fn of(differences: Vec<f64>) -> Option<Spread> {
        // ∞ − ∞ may be any difference: the worst case for each bound.
        let sorted_with = |unknown: f64| {
            let known = |d: &f64| if d.is_nan() { unknown } else { *d };
            sorted(differences.iter().map(known))
        };
        let [lower, upper] = [f64::NEG_INFINITY, f64::INFINITY].map(sorted_with);
        Some(Spread {
            low: nearest(&lower, 0.025)?,
            high: nearest(&upper, 0.975)?,
            error: (nearest(&upper, 1.0 - BELOW_ONE_SD)? - nearest(&lower, BELOW_ONE_SD)?) / 2.0,
        })
    }
}

/// The value at the rank nearest to a quantile: some values are infinite and cannot be interpolated.
fn nearest(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * q).round() as usize).copied()
}

#[cfg(test)]
mod tests;
