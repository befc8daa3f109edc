//! The confidence interval of the difference between two paired samples.
//!
//! Neighbouring requests are correlated, as they wait in the same queue. So runs are cut into a few long sections, and the interval
//! follows from how the difference varies between these, by Student's distribution: "sectioning" (Asmussen and Glynn, Stochastic
//! Simulation, III.5a). Runs are independent of each other, so with enough of them each is one section.

use statrs::distribution::{ContinuousCDF as _, StudentsT};

use super::quantile;

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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedDifference {
    /// The statistic of the first sample.
    pub of_a: f64,
    /// The statistic of the second.
    pub of_b: f64,
    /// Lower bound of the difference.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// The sections of one or two runs together: more were too short for the correlation in long queues, and for the tail of a distribution.
const SECTIONS: usize = 4;
const SECTIONS_FOR_MEDIAN: usize = 8;
/// The pairs, and the values beyond a quantile, that an interval needs.
const MIN_PAIRS: usize = 40;
const MIN_BEYOND: f64 = 5.0;

/// The paired difference of a statistic. The pairs of a run are in order of time. Values may be +∞ but not `NaN`. `None` if there are too
/// few pairs, or the statistic of a sample or of a section of it is not finite.
pub fn paired_difference(
    runs: &[Vec<(f64, f64)>],
    statistic: Statistic,
) -> Option<PairedDifference> {
    let all = runs.concat();
    let beyond = match statistic {
        Statistic::Mean => f64::INFINITY,
        Statistic::Quantile(q) => all.len() as f64 * q.min(1.0 - q),
    };
    if all.len() < MIN_PAIRS || beyond < MIN_BEYOND {
        return None;
    }
    let [of_a, of_b] = statistic.of_both(&all)?;
    let difference = of_b - of_a;
    let per_run = match (runs.len(), statistic) {
        (3.., _) => 1,
        (count, Statistic::Quantile(0.5)) => SECTIONS_FOR_MEDIAN / count,
        (count, _) => SECTIONS / count,
    };
    let sections = runs
        .iter()
        .flat_map(|run| run.chunks(run.len().div_ceil(per_run).max(1)));
    // From the difference of all, not from the mean of the sections': quantiles of sections are biased.
    let deviation = |section| {
        let [a, b] = statistic.of_both(section)?;
        Some(b - a - difference)
    };
    let deviations = sections.map(deviation).collect::<Option<Vec<f64>>>()?;
    let count = deviations.len() as f64;
    let squares: f64 = deviations.iter().map(|deviation| deviation.powi(2)).sum();
    let student = StudentsT::new(0.0, 1.0, count - 1.0).ok()?;
    let half_width = student.inverse_cdf(0.975) * (squares / (count - 1.0) / count).sqrt();
    Some(PairedDifference {
        of_a,
        of_b,
        low: difference - half_width,
        high: difference + half_width,
    })
}

impl Statistic {
    /// Computes it for both samples; `None` if one is not finite.
    fn of_both(self, pairs: &[(f64, f64)]) -> Option<[f64; 2]> {
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let values = [a, b].map(|mut sample| match self {
            Statistic::Mean => sample.iter().sum::<f64>() / sample.len() as f64,
            Statistic::Quantile(q) => {
                sample.sort_unstable_by(f64::total_cmp);
                quantile(&sample, q).unwrap_or(f64::NAN)
            }
        });
        let are_finite = values.iter().all(|value| value.is_finite());
        are_finite.then_some(values)
    }
}

#[cfg(test)]
mod tests;
