//! How sure a difference between two paired samples is: blocks of neighbouring pairs are drawn anew, again and again.

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::blocks::{block_length, widening};
use super::{quantile, ranks};

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
    let samples = [Sample::new(a), Sample::new(b)];
    let (of_a, of_b) = (samples[0].plain(statistic)?, samples[1].plain(statistic)?);
    let lengths: Vec<usize> = strata.iter().map(Vec::len).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let long = Blocks::new(&lengths, 1);
    let short = Blocks::new(&lengths, SHORTER);
    let drawn = Drawn {
        long: drawn(&mut rng, &samples, statistic, long, resamples),
        short: drawn(&mut rng, &samples, statistic, short, resamples / 2),
        repeats: of_repeats(strata, statistic),
    };
    let [low, high] = drawn.bounds(of_b - of_a)?;
    Some(PairedDifference {
        of_a,
        of_b,
        low,
        high,
    })
}

/// What was drawn: the statistic of both arms, resample by resample.
struct Drawn {
    /// Of the blocks that bounds are taken of.
    long: Vec<(f64, f64)>,
    /// Of shorter ones.
    short: Vec<(f64, f64)>,
    /// Of each repeat as it is.
    repeats: Option<Vec<(f64, f64)>>,
}

impl Drawn {
    /// The bounds of the difference that is `known` of the whole sample. `None` where a repeat has none.
    fn bounds(&self, known: f64) -> Option<[f64; 2]> {
        let spread = Spread::of(&self.long)?;
        // Shorter blocks see less of what hangs together over long stretches. As much as the long ones see more, still
        // longer ones would: "lugsail" (Vats and Flegal 2022).
        let short = Spread::of(&self.short)?;
        let seen_less = (short.error / spread.error).powi(2);
        let mut wider = widening() * (2.0 - seen_less.min(1.0)).sqrt();
        if let Some(repeats) = &self.repeats {
            let each: Vec<f64> = repeats.iter().map(|(a, b)| b - a).collect();
            if !each.iter().all(|value| value.is_finite()) {
                return None;
            }
            if let Some(half) = by_repeats(&each) {
                wider = wider.max(half / (NORMAL * spread.error));
            }
        }
        Some([
            known - stretched(known - spread.low, wider),
            known + stretched(spread.high - known, wider),
        ])
    }
}

/// How much shorter the blocks are that the long ones are held against.
const SHORTER: usize = 3;

/// A distance times a factor; 0 where nothing varies.
fn stretched(distance: f64, factor: f64) -> f64 {
    if distance > 0.0 {
        distance * factor
    } else {
        0.0
    }
}

/// The statistic of both arms in each repeat; `None` where one has no end.
fn of_repeats(strata: &[Vec<(f64, f64)>], statistic: Statistic) -> Option<Vec<(f64, f64)>> {
    let of = |pairs: &Vec<(f64, f64)>| {
        let (a, b) = pairs.iter().copied().unzip();
        Some((
            Sample::new(a).plain(statistic)?,
            Sample::new(b).plain(statistic)?,
        ))
    };
    strata.iter().map(of).collect()
}

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

    fn at(&self, place: u32) -> f64 {
        self.values.get(place as usize).copied().unwrap_or(f64::NAN)
    }

    /// Of the sample as it is; `None` where that is not finite.
    fn plain(&self, statistic: Statistic) -> Option<f64> {
        let value = match statistic {
            Statistic::Mean => self.values.iter().sum::<f64>() / self.values.len() as f64,
            Statistic::Quantile(q) => {
                let sorted: Vec<f64> = self.order.iter().map(|&p| self.at(p)).collect();
                quantile(&sorted, q)?
            }
        };
        value.is_finite().then_some(value)
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
                let Some((below, above, part)) = ranks(count, q) else {
                    return f64::NAN;
                };
                let low = self.rank(weights, below, count);
                if part == 0.0 || below == above {
                    return low;
                }
                let high = self.rank(weights, above, count);
                if high.is_finite() {
                    low + (high - low) * part
                } else {
                    high
                }
            }
        }
    }

    /// The value of a rank of a resample, sought from the nearer end.
    fn rank(&self, weights: &[u32], rank: u64, count: u64) -> f64 {
        let mut left = 0;
        let mut holds = |place: &&u32, target: u64| {
            left += u64::from(weights.get(**place as usize).copied().unwrap_or(0));
            left > target
        };
        let found = if rank < count / 2 {
            self.order.iter().find(|place| holds(place, rank))
        } else {
            let target = count - 1 - rank;
            self.order.iter().rev().find(|place| holds(place, target))
        };
        found.map_or(f64::NAN, |place| self.at(*place))
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

/// The statistic of both arms in each of so many resamples.
fn drawn(
    rng: &mut ChaCha8Rng,
    [a, b]: &[Sample; 2],
    statistic: Statistic,
    mut blocks: Blocks<'_>,
    resamples: usize,
) -> Vec<(f64, f64)> {
    let draw = |_| {
        let weights = blocks.draw(rng);
        (
            a.weighted(statistic, weights),
            b.weighted(statistic, weights),
        )
    };
    (0..resamples).map(draw).collect()
}

impl Spread {
    fn of(drawn: &[(f64, f64)]) -> Option<Spread> {
        let differences: Vec<f64> = drawn.iter().map(|(a, b)| b - a).collect();
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
