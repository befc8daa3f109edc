//! Statistics of samples: exact quantiles, a bounded histogram, concurrency, confidence intervals and the causes of waiting.
//!
//! Pure functions that know nothing of requests.

mod concurrency;
pub mod confidence;
mod histogram;
pub mod waits;

pub use concurrency::{Concurrency, Interval, Window};
pub use confidence::{PairedDifference, Statistic, paired_difference};
pub use histogram::Histogram;

/// The summary of a sample, in the unit of the sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The number of values.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Population standard deviation (numpy's `std`, as bench_serving uses it).
    pub std: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest value.
    pub max: f64,
}

impl Summary {
    /// Summarizes the finite values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
        Summary::of_sorted(&sorted(values.into_iter().filter(|v| v.is_finite())))
    }

    /// Summarizes an ascending sample, of which some values may be +∞: figures that depend on one of those are not finite.
    pub fn of_sorted(sorted: &[f64]) -> Option<Summary> {
        let count = sorted.len() as f64;
        let max = *sorted.last()?;
        let mean = sorted.iter().sum::<f64>() / count;
        let variance = sorted.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
        Some(Summary {
            count: sorted.len() as u64,
            mean,
            std: variance.sqrt(),
            p50: quantile(sorted, 0.5)?,
            p90: quantile(sorted, 0.9)?,
            p95: quantile(sorted, 0.95)?,
            p99: quantile(sorted, 0.99)?,
            p999: quantile(sorted, 0.999)?,
            max,
        })
    }
}

/// The values in ascending order.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// The `q`-quantile (0 to 1, clamped) of an ascending sample, linear between the two nearest ranks:
/// numpy's default, which bench_serving reports. `None` if there are no values or `q` is NaN.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let (below, above, part) = ranks(sorted.len() as u64, q)?;
    let at = |rank: u64| sorted.get(rank as usize).copied();
    let above = at(above)?;
    Some(interpolated(at(below)?, part, || above))
}

/// Interpolates linearly. At `part` 0 it is `low`, even if `high` is infinite.
fn interpolated(low: f64, part: f64, high: impl FnOnce() -> f64) -> f64 {
    if part == 0.0 {
        return low;
    }
    let high = high();
    if high.is_finite() {
        low + (high - low) * part
    } else {
        high
    }
}

/// The two ranks (from 0) that a quantile lies between, and its fraction of the distance from the first to the second.
fn ranks(count: u64, q: f64) -> Option<(u64, u64, f64)> {
    if q.is_nan() {
        return None;
    }
    let last = count.checked_sub(1)?;
    let at = last as f64 * q.clamp(0.0, 1.0);
    let below = (at.floor() as u64).min(last);
    Some((below, (below + 1).min(last), at - below as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_near(got: f64, wanted: f64, error: f64) {
        assert!((got - wanted).abs() <= error, "{got} is not {wanted}");
    }

    #[test]
    fn quantiles_agree_with_numpy() {
        // numpy.percentile([15, 20, 35, 40, 50], [0, 5, 30, 40, 95, 100])
        let sorted = [15.0, 20.0, 35.0, 40.0, 50.0];
        let shares = [0.0, 0.05, 0.3, 0.4, 0.95, 1.0];
        let known = [15.0, 16.0, 23.0, 29.0, 48.0, 50.0];
        for (q, value) in shares.into_iter().zip(known) {
            assert_near(quantile(&sorted, q).unwrap(), value, 1e-10);
        }
    }

    #[test]
    fn a_summary_of_one_to_a_thousand() {
        let summary = Summary::of((1..=1000).rev().map(f64::from)).unwrap();
        assert_eq!(summary.count, 1000);
        assert_eq!(summary.max, 1000.0);
        let known = [
            (summary.mean, 500.5),
            // sqrt((n² − 1) / 12)
            (summary.std, 288.674_990_257_210_8),
            (summary.p50, 500.5),
            (summary.p90, 900.1),
            (summary.p95, 950.05),
            (summary.p99, 990.01),
            (summary.p999, 999.001),
        ];
        for (got, wanted) in known {
            assert_near(got, wanted, 1e-9);
        }
    }

    #[test]
    fn there_is_no_summary_of_no_values() {
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([f64::NAN]), None);
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[1.0], f64::NAN), None);
        assert_eq!(quantile(&[1.0, 2.0], 7.0), Some(2.0));
    }

    #[test]
    fn figures_that_depend_on_infinite_values_are_not_finite() {
        let summary = Summary::of_sorted(&[1.0, 2.0, f64::INFINITY]).unwrap();
        assert_eq!((summary.count, summary.p50), (3, 2.0));
        for figure in [summary.mean, summary.std, summary.p90, summary.max] {
            assert!(!figure.is_finite(), "{summary:?}");
        }
    }
}
