//! Comparison of settings, request by request: the same place in the schedule is the same prompt at the same time.

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use statrs::distribution::{ContinuousCDF as _, Normal};

use crate::request::ColumnId;
pub use crate::stats::Statistic;
use crate::stats::{PairedDifference, paired_difference};
use crate::units::{US, durations};

mod settings;

pub use settings::{Comparison, MAX_ANSWERS, comparison};

const RESAMPLING_SEED: u64 = 1;

/// The values of both settings at each place in the schedule, run by run: `NaN` if missing, +∞ if the request failed.
type Strata = Vec<Vec<(f64, f64)>>;

/// The difference of two settings in a metric, with 95 % bounds: in seconds, or of failed requests as a share.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Difference {
    /// A column; `None` for failed requests, whose values are 1 and 0.
    #[serde(serialize_with = "serialize_metric")]
    pub metric: Option<ColumnId>,
    /// The statistic of it.
    pub statistic: Statistic,
    /// The first setting, the baseline.
    pub a: String,
    /// The second setting.
    pub b: String,
    /// The figures of both, and the bounds of their difference; an infinite one is `null` in JSON.
    #[serde(flatten)]
    pub found: PairedDifference,
    /// `b − a`.
    pub difference: f64,
    /// The number of pairs.
    pub pairs: usize,
    /// The number of pairs left out because a value is missing.
    pub left_out: usize,
    /// The number of failed requests of the first setting.
    pub failed_a: usize,
    /// The number of failed requests of the second setting.
    pub failed_b: usize,
    /// Whether failed requests count, as infinite; else they are left out.
    pub is_with_failed: bool,
    /// Whether the baseline is the first of all settings that were sent the same requests.
    pub is_against_first: bool,
    /// The number of runs of each setting.
    pub repeats: usize,
    /// The number of comparisons made: one in twenty would show a difference by chance.
    pub comparisons: usize,
    /// Whether it is significant among so many comparisons (Holm's rule).
    pub holds: bool,
}

fn serialize_metric<S: Serializer>(metric: &Option<ColumnId>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(metric.map_or("failed", |metric| metric.column().name))
}

/// Compares one metric of two settings; `failed`: the number of failed requests of each. `None` if too few pairs have finite values for bounds.
fn compare(
    strata: &Strata,
    failed: [usize; 2],
    metric: Option<ColumnId>,
    statistic: Statistic,
) -> Option<Difference> {
    let all = strata.iter().map(Vec::len).sum::<usize>();
    let of = |kept: Strata| Some((paired_difference(&kept, statistic, RESAMPLING_SEED)?, kept));
    let known = of(filter_pairs(strata, |value| !value.is_nan()));
    // A quantile is finite as long as few failed.
    let (found, kept) = known.or_else(|| of(filter_pairs(strata, f64::is_finite)))?;
    let has_failed = |(a, b): &(f64, f64)| a.is_infinite() || b.is_infinite();
    let pairs = kept.iter().map(Vec::len).sum();
    Some(Difference {
        metric,
        statistic,
        found,
        difference: found.of_b - found.of_a,
        pairs,
        left_out: all - pairs,
        failed_a: failed[0],
        failed_b: failed[1],
        is_with_failed: kept.iter().flatten().any(has_failed),
        repeats: strata.len(),
        comparisons: 1,
        holds: true,
        ..Difference::default()
    })
}

/// Keeps the pairs both of whose values are `good`.
fn filter_pairs(strata: &[Vec<(f64, f64)>], good: fn(f64) -> bool) -> Strata {
    let filter = |pairs: &Vec<(f64, f64)>| {
        let kept = pairs.iter().filter(|(a, b)| good(*a) && good(*b));
        kept.copied().collect()
    };
    strata.iter().map(filter).collect()
}

impl Difference {
    /// Whether there is a difference: its bounds exclude 0, it is significant among all comparisons, and failed requests cannot reverse
    /// it.
    pub fn is_shown(&self) -> bool {
        self.excludes_zero() && self.holds && !self.failed_could_reverse_it()
    }

    /// Whether the bounds exclude 0; a difference of a time that is shown as 0 does not count.
    fn excludes_zero(&self) -> bool {
        let is_seen = self.metric.is_none() || self.difference.abs() >= 0.5 * US;
        is_seen && (self.found.low > 0.0 || self.found.high < 0.0)
    }

    /// Whether the better setting failed more often, and failed requests are left out.
    fn failed_could_reverse_it(&self) -> bool {
        let failed_more = match self.difference < 0.0 {
            true => self.failed_b > self.failed_a,
            false => self.failed_a > self.failed_b,
        };
        failed_more && !self.is_with_failed && self.metric.is_some()
    }

    /// Its figures, with what is concluded from them.
    pub fn to_json(&self) -> Value {
        let mut json = json!(self);
        let PairedDifference { low, high, .. } = self.found;
        json["label"] = self.label().into();
        json["range"] = self.range([self.difference, low, high]).into();
        json["shown"] = self.is_shown().into();
        json["sentence"] = self.sentence().into();
        json
    }

    /// Says which setting beats the other, on what and by how much, or that no difference is shown; and how failed requests count.
    pub fn sentence(&self) -> String {
        let (a, b, what) = (&self.a, &self.b, self.label());
        let PairedDifference { low, high, .. } = self.found;
        let found = [self.difference, low, high];
        let less = [-self.difference, -high, -low];
        let is_less = self.difference < 0.0;
        let result = match (self.is_shown(), is_less) {
            (true, true) => format!("{b} beats {a} on {what} by {}", self.range(less)),
            (true, false) => format!("{a} beats {b} on {what} by {}", self.range(found)),
            (false, _) => format!(
                "no difference can be shown between {a} and {b} on {what} ({}{})",
                self.range(found),
                match self.excludes_zero() {
                    true if self.failed_could_reverse_it() =>
                        ", which those that failed could turn",
                    true => ", which one of so many comparisons may show by chance",
                    false => "",
                }
            ),
        };
        result + &self.failed_text()
    }

    /// The label of statistic and metric: `p99 TTFT`.
    fn label(&self) -> String {
        let Some(metric) = self.metric.map(|metric| metric.column().label) else {
            return "failed requests".to_owned();
        };
        match self.statistic {
            Statistic::Mean => format!("mean {metric}"),
            Statistic::Quantile(q) => format!("p{:.0} {metric}", q * 100.0),
        }
    }

    /// The numbers of pairs left out and of failed requests, and how these count.
    fn failed_text(&self) -> String {
        let mut text = String::new();
        if self.metric.is_none() {
            return text;
        }
        if self.left_out > 0 {
            let all = self.pairs + self.left_out;
            text += &format!("; of the {} of {all} pairs with both values", self.pairs);
        }
        if self.failed_a + self.failed_b > 0 {
            let (a, b) = (&self.a, &self.b);
            text += &format!("; failed: {a} {}, {b} {}", self.failed_a, self.failed_b);
        }
        if self.is_with_failed {
            text += ", counted as infinitely slow";
        }
        text
    }

    /// Formats a value and its bounds in one unit: `31.0 ms [21.6, 41.2]`; a share of failed requests as `1.20 % of all [0.90, 1.50]`.
    fn range(&self, values: [f64; 3]) -> String {
        let (shown, unit) = match self.metric {
            None => (values.map(|of| format!("{:.2}", of * 100.0)), "% of all"),
            Some(_) => durations(values),
        };
        let [value, low, high] = shown.map(|shown| match shown.parse() {
            // No minus before 0.
            Ok(0.0) => shown.replace('-', ""),
            _ if shown.ends_with("inf") => "no end".to_owned(),
            _ => shown.replace('-', "−"),
        });
        format!("{value} {unit} [{low}, {high}]")
    }

    /// The difference over its distance to the bound next to 0: above 1 it is significant if it is the only comparison.
    fn strength(&self) -> f64 {
        let reach = match self.difference > 0.0 {
            true => self.difference - self.found.low,
            false => self.found.high - self.difference,
        };
        match self.difference {
            0.0 => 0.0,
            value => value.abs() / reach,
        }
    }
}

/// Sets which differences are significant among all: by Holm's rule, the chance that any is shown where nothing differs is 5 %.
fn apply_holm(differences: &mut [Difference]) {
    let normal = Normal::standard();
    let count = differences.len();
    let mut order: Vec<&mut Difference> = differences.iter_mut().collect();
    order.sort_by(|x, y| y.strength().total_cmp(&x.strength()));
    let mut holds = true;
    for (n, difference) in order.into_iter().enumerate() {
        let [needed, alone] = [count - n, 1].map(|of| -normal.inverse_cdf(0.025 / of as f64));
        holds &= difference.strength() >= needed / alone;
        difference.comparisons = count;
        difference.holds = holds;
    }
}

#[cfg(test)]
mod tests;
