//! Settings compared request by request: the same place in the schedule is the same prompt at the same time.

use serde::{Serialize, Serializer};

use crate::request::columns::ColumnId;
pub use crate::stats::Statistic;
use crate::stats::paired_difference;

mod answer;
mod settings;
mod wording;

pub use settings::{Comparison, comparison};

/// What is compared: the values of both settings at each place in the schedule, run by run; `NaN` where there is none, +∞
/// where the request failed.
pub type Strata = Vec<Vec<(f64, f64)>>;

/// How far two settings differ in a metric, with 95 % bounds. Seconds, but for the shares that failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Difference {
    /// A column; `None`: whether it failed, of which values are 1 and 0.
    #[serde(serialize_with = "named")]
    pub metric: Option<ColumnId>,
    /// What of it.
    pub statistic: Statistic,
    /// The first setting, which others are held against.
    pub a: String,
    /// The second.
    pub b: String,
    /// What both have in common of what varies in the experiment; empty: nothing else varies.
    pub at: String,
    /// The first one's figure.
    pub of_a: f64,
    /// The second one's.
    pub of_b: f64,
    /// `b − a`.
    pub difference: f64,
    /// Its lower bound; −∞ (in JSON `null`): none.
    pub low: f64,
    /// Its upper bound.
    pub high: f64,
    /// Pairs that it is taken of.
    pub pairs: usize,
    /// Pairs that one side of has no value.
    pub left_out: usize,
    /// Requests of the first that failed.
    pub failed_a: usize,
    /// Of the second.
    pub failed_b: usize,
    /// Whether failed requests are in it, as requests that took for ever; else they are among those left out.
    pub is_with_failed: bool,
    /// Whether the first setting is the first of all that were sent the same.
    pub is_against_first: bool,
    /// Runs of each setting that it is taken of.
    pub repeats: usize,
    /// Whether it needs three: queues are long, so that bounds of fewer runs hold the truth less often than 95 times of 100.
    pub needs_repeats: bool,
    /// Whether a queue grew throughout a run of either: bounds then say more of the run's length than of the settings.
    #[serde(skip)]
    pub queue_grew: bool,
    /// The settings, as [`Comparison::groups`] names them: the group, and their places in it.
    #[serde(skip)]
    pub between: (usize, [usize; 2]),
    /// How many comparisons it is one of: one in twenty would show a difference where there is none.
    pub comparisons: usize,
    /// Whether it holds among so many (Holm's rule).
    pub holds: bool,
    /// Whether it is said that there is a difference; see [`Difference::is_shown`].
    pub shown: bool,
}

fn named<S: Serializer>(metric: &Option<ColumnId>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(metric.map_or("failed", |metric| metric.column().name))
}

/// Compares one metric of two settings, of which so many requests failed each. `None` where there are too few pairs for
/// bounds, or too few with an end.
pub fn compare(
    strata: &Strata,
    failed: [usize; 2],
    metric: Option<ColumnId>,
    statistic: Statistic,
    seed: u64,
) -> Option<Difference> {
    let all = strata.iter().map(Vec::len).sum::<usize>();
    let known = kept(strata, |value| !value.is_nan());
    // A mean has no end where a value has none. A quantile has one as long as few failed.
    let with_failed = match statistic {
        Statistic::Mean => None,
        Statistic::Quantile(_) => paired_difference(&known, statistic, seed),
    };
    let is_with_failed = with_failed.is_some();
    let (found, kept) = match with_failed {
        Some(found) => (found, known),
        None => {
            let ended = kept(strata, f64::is_finite);
            (paired_difference(&ended, statistic, seed)?, ended)
        }
    };
    let is_endless = |(a, b): &(f64, f64)| a.is_infinite() || b.is_infinite();
    let pairs = kept.iter().map(Vec::len).sum();
    Some(Difference {
        metric,
        statistic,
        of_a: found.of_a,
        of_b: found.of_b,
        difference: found.of_b - found.of_a,
        low: found.low,
        high: found.high,
        pairs,
        left_out: all - pairs,
        failed_a: failed[0],
        failed_b: failed[1],
        is_with_failed: is_with_failed && kept.iter().flatten().any(is_endless),
        repeats: strata.len(),
        comparisons: 1,
        holds: true,
        ..Difference::default()
    })
}

/// The pairs of which both values are `good`.
fn kept(strata: &[Vec<(f64, f64)>], good: fn(f64) -> bool) -> Strata {
    let of = |pairs: &Vec<(f64, f64)>| {
        let kept = pairs.iter().filter(|(a, b)| good(*a) && good(*b));
        kept.copied().collect()
    };
    strata.iter().map(of).collect()
}

impl Difference {
    /// Whether a difference may be said to be there: the bounds do not hold 0, it holds among all the comparisons made, and
    /// those that failed cannot turn it.
    pub fn is_shown(&self) -> bool {
        self.is_by_bounds() && self.holds && !self.failed_could_turn_it()
    }

    fn is_by_bounds(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }

    /// The better one failed more often, and only those that ended are compared.
    fn failed_could_turn_it(&self) -> bool {
        let failed_more = match self.difference < 0.0 {
            true => self.failed_b > self.failed_a,
            false => self.failed_a > self.failed_b,
        };
        failed_more && !self.is_with_failed && self.metric.is_some()
    }

    /// How many times farther from 0 it is than it had to be, were it the only comparison.
    fn strength(&self) -> f64 {
        let reach = match self.difference > 0.0 {
            true => self.difference - self.low,
            false => self.high - self.difference,
        };
        match self.difference {
            0.0 => 0.0,
            value => value.abs() / reach,
        }
    }
}

/// Says of each which hold where so many are compared: Holm's rule, by which the chance that any is shown where nothing
/// differs stays at 5 %.
fn judge(differences: &mut [Difference]) {
    /// Two-sided 95 % of the normal distribution.
    const ONE: f64 = 1.959_964;
    let count = differences.len();
    let mut order: Vec<&mut Difference> = differences.iter_mut().collect();
    order.sort_by(|x, y| y.strength().total_cmp(&x.strength()));
    let mut holds = true;
    for (n, difference) in order.into_iter().enumerate() {
        let needed = normal_quantile(0.05 / 2.0 / (count - n) as f64) / ONE;
        holds &= difference.strength() >= needed;
        difference.comparisons = count;
        difference.holds = holds;
        difference.shown = difference.is_shown();
    }
}

/// What a normal value exceeds with a probability below one half, within 0.0005 (Abramowitz and Stegun 26.2.23).
fn normal_quantile(beyond: f64) -> f64 {
    let t = (-2.0 * beyond.ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - above / below
}

#[cfg(test)]
mod tests;
