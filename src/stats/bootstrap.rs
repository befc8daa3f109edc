//! How sure a difference between two paired samples is: blocks of neighbouring pairs are drawn anew, again and again.
//!
//! A series of neighbours tells less than it has values: requests that wait in one queue wait alike, so a run of a thousand tells less
//! than a thousand draws would.
//!
//! Rules that choose a block by the series' own correlation (Politis and White) were tried on simulated queues and see too
//! little: where requests are spread over several queues, neighbours are nearly independent and yet the whole run stays
//! long or short for hundreds of them. So blocks are a fixed share of the run, and intervals are as much wider as so few
//! blocks ask for (Kiefer and Vogelsang 2005, "fixed b").

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::{between, ranks};

/// What is taken of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    /// The arithmetic mean.
    #[default]
    Mean,
    /// A quantile, 0 to 1, linear between the two nearest ranks.
    Quantile(f64),
}

/// The difference `b − a` of a statistic, and where it lies with 95 % confidence. Values have the unit of the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedDifference {
    /// Of the first sample.
    pub of_a: f64,
    /// Of the second.
    pub of_b: f64,
    /// Lower bound of the difference; −∞ where a resample had no end.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// The share of a series that is drawn together.
const SHARE: f64 = 0.25;
/// Two-sided 95 % of the normal distribution.
const NORMAL: f64 = 1.959_964;
/// The share of a normal distribution below one standard deviation under its mean.
const ONE_BELOW: f64 = 0.158_655;
/// Pairs, and values beyond a quantile, that a bound needs: of fewer, resamples are the sample over and over.
const LEAST: [f64; 2] = [40.0, 5.0];
/// Values drawn for a bound, which keeps the time of long runs down, and the fewest and most resamples.
const DRAWS: usize = 20_000_000;
const RESAMPLES: [usize; 2] = [300, 2000];

/// The paired difference of a statistic. `strata` are drawn each by itself (repeats of a run), their pairs are in order of
/// time. A value may be without end (+∞), none may be `NaN`. `None` where there are too few pairs for a bound, or the
/// statistic of a sample is not finite.
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
    if (a.len() as f64) < LEAST[0] || beyond < LEAST[1] - 1e-9 {
        return None;
    }
    let arms = [Sample::new(a), Sample::new(b)];
    let [of_a, of_b] = plain(&arms, statistic)?;
    let lengths: Vec<usize> = strata.iter().map(Vec::len).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut spread = |shorter, resamples| {
        let mut blocks = Blocks::new(&lengths, shorter);
        let difference = |_| {
            let weights = blocks.draw(&mut rng);
            let [a, b] = arms.each_ref().map(|arm| arm.weighted(statistic, weights));
            b - a
        };
        Spread::of((0..resamples).map(difference).collect())
    };
    let long = spread(1, resamples)?;
    // Shorter blocks see less of what hangs together over long stretches. As much as the long ones see more, still
    // longer ones would: "lugsail" (Vats and Flegal 2022).
    let short = spread(SHORTER, resamples / 2)?;
    let seen_less = (short.error / long.error).powi(2);
    let mut wider = widening() * (2.0 - seen_less.min(1.0)).sqrt();
    let of_repeat = |pairs: &Vec<(f64, f64)>| {
        let (a, b) = pairs.iter().copied().unzip();
        let [a, b] = plain(&[Sample::new(a), Sample::new(b)], statistic)?;
        Some(b - a)
    };
    let repeats: Option<Vec<f64>> = strata.iter().map(of_repeat).collect();
    if let Some(half) = repeats.and_then(|differences| by_repeats(&differences)) {
        wider = wider.max(half / (NORMAL * long.error));
    }
    let known = of_b - of_a;
    // Where nothing varies, nothing is wider.
    let reach = |distance: f64| {
        if distance > 0.0 {
            distance * wider
        } else {
            0.0
        }
    };
    Some(PairedDifference {
        of_a,
        of_b,
        low: known - reach(known - long.low),
        high: known + reach(long.high - known),
    })
}

/// The statistic of both arms as they are; `None` where one has no end.
fn plain(arms: &[Sample; 2], statistic: Statistic) -> Option<[f64; 2]> {
    let values = arms.each_ref().map(|arm| {
        let once = vec![1; arm.values.len()];
        arm.weighted(statistic, &once)
    });
    values
        .iter()
        .all(|value| value.is_finite())
        .then_some(values)
}

/// How many neighbours are drawn together of a series of `len` values: a quarter, at least 1.
fn block_length(len: usize) -> usize {
    ((len as f64 * SHARE).round() as usize).max(1)
}

/// How much wider a 95 % interval is whose spread comes of blocks of [`block_length`], than the normal distribution says.
fn widening() -> f64 {
    // Their polynomial for the Bartlett kernel, which blocks in a ring amount to.
    let critical = 1.96 + 2.9694 * SHARE + 0.4160 * SHARE.powi(2) - 0.5324 * SHARE.powi(3);
    critical / NORMAL
}

/// How much shorter the blocks are that the long ones are held against.
const SHORTER: usize = 3;

/// Half of the interval that the repeats' own differences give, of three or more: whatever hangs together within a run,
/// runs do not. Two differ too little or too much by chance.
fn by_repeats(differences: &[f64]) -> Option<f64> {
    /// Student's 97.5 % quantile for 2, 3, … degrees of freedom.
    const STUDENT: [f64; 9] = [
        4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    ];
    let count = differences.len();
    let student = STUDENT.get(count.checked_sub(3)?).copied();
    let mean = differences.iter().sum::<f64>() / count as f64;
    let squares: f64 = differences.iter().map(|d| (d - mean).powi(2)).sum();
    let error = (squares / (count - 1) as f64 / count as f64).sqrt();
    // Beyond the table, the quantile falls as 2.5 by the degrees of freedom.
    Some(student.unwrap_or(NORMAL + 2.5 / (count - 1) as f64) * error)
}

/// Values and their places in ascending order.
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

    /// Of a resample that holds each place as often as `weights` say; their sum is the sample's length.
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
                    between(rank(below), part, || rank(above))
                });
                value.unwrap_or(f64::NAN)
            }
        }
    }

    /// The value of a rank of a resample, sought from the nearer end.
    fn rank(&self, weights: &[u32], rank: u64, count: u64) -> f64 {
        let mut left = 0;
        let mut holds = |place: &&u32, target: u64| {
            left += u64::from(weights[**place as usize]);
            left > target
        };
        let found = if rank < count / 2 {
            self.order.iter().find(|place| holds(place, rank))
        } else {
            let target = count - 1 - rank;
            self.order.iter().rev().find(|place| holds(place, target))
        };
        found.map_or(f64::NAN, |place| self.values[*place as usize])
    }
}

/// How often each place is in a resample of blocks, stratum by stratum.
struct Blocks<'a> {
    /// Lengths of the strata.
    lengths: &'a [usize],
    /// How much shorter blocks are than [`block_length`].
    shorter: usize,
    weights: Vec<u32>,
    changes: Vec<i32>,
}

impl<'a> Blocks<'a> {
    fn new(lengths: &'a [usize], shorter: usize) -> Blocks<'a> {
        let all = lengths.iter().sum();
        Blocks {
            lengths,
            shorter,
            weights: vec![0; all],
            changes: vec![0; all + 1],
        }
    }

    fn draw(&mut self, rng: &mut ChaCha8Rng) -> &[u32] {
        self.changes.fill(0);
        let mut start = 0;
        for &length in self.lengths {
            let end = start + length;
            let block = (block_length(length) / self.shorter).max(1);
            let mut left = length;
            while left > 0 {
                let part = block.min(left);
                let first = rng.random_range(start..end);
                self.add(first, (first + part).min(end));
                // The series is a ring: what goes past its end goes on at its begin.
                self.add(start, (first + part).saturating_sub(length));
                left -= part;
            }
            start = end;
        }
        let mut level = 0;
        for (weight, change) in self.weights.iter_mut().zip(&self.changes) {
            level += change;
            *weight = level.unsigned_abs();
        }
        &self.weights
    }

    fn add(&mut self, from: usize, to: usize) {
        if from < to {
            self.changes[from] += 1;
            self.changes[to] -= 1;
        }
    }
}

/// How a difference varies over resamples.
struct Spread {
    /// Its 2.5 % and 97.5 % quantiles.
    low: f64,
    high: f64,
    /// Half of what lies within one standard deviation around the middle.
    error: f64,
}

impl Spread {
    fn of(differences: Vec<f64>) -> Option<Spread> {
        // Where neither had an end, nobody knows which way the difference goes: it may be either.
        let either = |unknown: f64| {
            let known = differences
                .iter()
                .map(|d| if d.is_nan() { unknown } else { *d });
            let mut sorted: Vec<f64> = known.collect();
            sorted.sort_unstable_by(f64::total_cmp);
            sorted
        };
        let (lower, upper) = (either(f64::NEG_INFINITY), either(f64::INFINITY));
        Some(Spread {
            low: nearest(&lower, 0.025)?,
            high: nearest(&upper, 0.975)?,
            error: (nearest(&upper, 1.0 - ONE_BELOW)? - nearest(&lower, ONE_BELOW)?) / 2.0,
        })
    }
}

/// The value at the rank nearest to a quantile: some have no end, and nothing lies between two of them.
fn nearest(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * q).round() as usize).copied()
}

#[cfg(test)]
mod tests;
