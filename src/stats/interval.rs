//! Intervals that hold a quantile of what a sample was drawn from, by its order statistics.
//!
//! Of `n` independent values the number below the true `q`-quantile is binomial, whatever they are distributed like:
//! so the values of two ranks hold the quantile between them with a probability that is known exactly. Values that
//! depend on each other tell less than as many independent ones; [`effective_count`] estimates how much they tell.

use super::quantile;

/// Confidence of the intervals that are reported.
pub const CONFIDENCE: f64 = 0.95;

/// Into so many blocks a sample is cut to see how far its values depend on each other. Fewer would be longer, and hold
/// more of a long dependence; but the variance of the blocks' means is only known to √(2 / 31), a quarter.
const BLOCKS: usize = 32;
/// A block of a short sample has at least so many values: there are then fewer blocks, but not below [`FEWEST`].
const SHORTEST: usize = 20;
const FEWEST: usize = 8;

/// A block must tell as much as so many independent values: with fewer the dependence is longer than the block shows.
const IN_A_BLOCK: usize = 4;
/// With fewer values nobody can tell how alike neighbours are.
const LEAST: u64 = (IN_A_BLOCK * FEWEST) as u64;

/// Blocks of independent values differ by chance alone, more than this only in one of twenty samples: less is no
/// dependence. The normal distribution's 95 %.
const CHANCE: f64 = 1.644_854;

/// Probabilities below this share of the largest one add nothing to a sum of them in a double.
const NEGLIGIBLE: f64 = 1e-20;

/// Why there is no interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TooFew {
    /// So many values it takes at least: [`needed`], and those that it takes to see how alike neighbours are.
    pub needed: u64,
    /// So many there are.
    pub count: u64,
    /// So many independent ones tell as much; `None`: so few, or so dependent, that nobody can say.
    pub effective: Option<f64>,
}

/// What a quantile lies between, or why nobody can say.
pub type Between = Result<(f64, f64), TooFew>;

/// Intervals of the quantiles that are reported, with [`CONFIDENCE`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Intervals {
    /// Of the median.
    pub p50: Between,
    /// Of the 90th percentile.
    pub p90: Between,
    /// Of the 95th percentile.
    pub p95: Between,
    /// Of the 99th percentile.
    pub p99: Between,
}

impl Intervals {
    /// Of values in the order they came in, and the same ascending.
    pub fn of(in_order: &[f64], sorted: &[f64]) -> Intervals {
        let at = |q| series_interval(in_order, sorted, q, CONFIDENCE);
        Intervals {
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
        }
    }

    /// Each with its name, `p50` to `p99`.
    pub fn named(&self) -> [(&'static str, Between); 4] {
        [
            ("p50", self.p50),
            ("p90", self.p90),
            ("p95", self.p95),
            ("p99", self.p99),
        ]
    }
}

/// An interval that holds the `q`-quantile with at least `confidence`, each tail with at most half of what is left.
/// `sorted` ascends, its values are independent. `None`: there are too few of them (see [`needed`]), or `q` or
/// `confidence` do not lie between 0 and 1.
pub fn quantile_interval(sorted: &[f64], q: f64, confidence: f64) -> Option<(f64, f64)> {
    dependent_interval(sorted, q, confidence, sorted.len() as f64)
}

/// [`quantile_interval`] of values that tell no more than `effective` independent ones.
pub fn dependent_interval(
    sorted: &[f64],
    q: f64,
    confidence: f64,
    effective: f64,
) -> Option<(f64, f64)> {
    let effective = effective.min(sorted.len() as f64).floor() as u64;
    let (low, high) = ranks(effective, q, confidence)?;
    // The value of rank r of m stands for the share r / (m + 1).
    let scale = (sorted.len() + 1) as f64 / (effective + 1) as f64;
    let low = (low as f64 * scale).floor() as usize;
    let high = (high as f64 * scale).ceil() as usize;
    let at = |rank: usize| sorted.get(rank.clamp(1, sorted.len()) - 1).copied();
    Some((at(low)?, at(high)?))
}

/// How many independent values an interval for the `q`-quantile takes: so many that even the smallest and the largest
/// are beyond it with less than half of what `confidence` leaves. 368 for the p99 at 95 %, 72 for the p95, 6 for the
/// median. (299 would do for an upper bound of the p99 alone.)
pub fn needed(q: f64, confidence: f64) -> Option<u64> {
    let tail = tail(q, confidence)?;
    let log = q.max(1.0 - q).ln();
    Some((tail.ln() / log).ceil() as u64)
}

/// An interval of the `q`-quantile from values in the order they came in, whose neighbours may be alike, and the same
/// values ascending.
///
/// How far they depend on each other is judged at the median, the 90th percentile and the quantile itself, wherever
/// they tell least: beyond a high quantile there are too few values to show it.
///
/// # Errors
/// They tell too little.
pub fn series_interval(
    in_order: &[f64],
    sorted: &[f64],
    q: f64,
    confidence: f64,
) -> Result<(f64, f64), TooFew> {
    let at = |q: f64| quantile(sorted, q);
    let judged = [0.5, 0.9, q].map(|share| {
        let at = at(share.min(q)).filter(|at| at.is_finite());
        at.and_then(|at| effective_count(in_order, at))
    });
    let effective = judged.into_iter().reduce(|a, b| Some(a?.min(b?))).flatten();
    let interval =
        effective.and_then(|effective| dependent_interval(sorted, q, confidence, effective));
    interval.ok_or(TooFew {
        needed: needed(q, confidence).map_or(u64::MAX, |needed| needed.max(LEAST)),
        count: sorted.len() as u64,
        effective,
    })
}

/// How many independent values tell as much about the share of values up to `at` as `in_order` does: from the variance
/// of the shares of blocks of neighbours, beside what it would be without dependence, if that is more than chance makes it.
/// `None` where the dependence reaches further than such blocks can tell, or there are too few values for blocks.
pub fn effective_count(in_order: &[f64], at: f64) -> Option<f64> {
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

/// The probability that may lie beyond each end.
fn tail(q: f64, confidence: f64) -> Option<f64> {
    let inside = |share: f64| 0.0 < share && share < 1.0;
    (inside(q) && inside(confidence)).then_some((1.0 - confidence) / 2.0)
}

/// The ranks, from 1, of the two values: the lower is above the quantile with at most the tail's probability, which is
/// that fewer than so many values are below it; and the upper is below it likewise.
fn ranks(count: u64, q: f64, confidence: f64) -> Option<(u64, u64)> {
    let tail = tail(q, confidence)?;
    // Above the first rank's probability to be beyond, there is none.
    if count < needed(q, confidence)? {
        return None;
    }
    let (first, weights) = weights(count, q);
    let total: f64 = weights.iter().sum();
    let mut below = 0.0;
    let low = weights.iter().take_while(|weight| {
        below += **weight;
        below <= tail * total
    });
    let low = first + low.count() as u64;
    let mut above = 0.0;
    let high = weights.iter().rev().take_while(|weight| {
        above += **weight;
        above <= tail * total
    });
    let last = first + weights.len() as u64 - 1;
    let high = last - high.count() as u64 + 1;
    (low >= 1 && high <= count).then_some((low, high))
}

/// The binomial probabilities of `count` and `q`, not normed, as far as they count, and the number that the first is of.
fn weights(count: u64, q: f64) -> (u64, Vec<f64>) {
    let mode = ((count + 1) as f64 * q).floor().min(count as f64) as u64;
    let odds = q / (1.0 - q);
    let mut weights = Vec::new();
    let (mut weight, mut of) = (1.0, mode);
    while weight > NEGLIGIBLE {
        weights.push(weight);
        if of == 0 {
            break;
        }
        weight *= of as f64 / ((count - of + 1) as f64 * odds);
        of -= 1;
    }
    weights.reverse();
    let first = mode + 1 - weights.len() as u64;
    (weight, of) = (1.0, mode);
    while of < count {
        weight *= (count - of) as f64 * odds / (of + 1) as f64;
        of += 1;
        if weight <= NEGLIGIBLE {
            break;
        }
        weights.push(weight);
    }
    (first, weights)
}

#[cfg(test)]
mod tests;
