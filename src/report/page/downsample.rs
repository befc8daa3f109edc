//! Reduces samples and series to what a chart can show.

use serde_json::{Value, json};

/// The most points of a curve: enough for 400 pixels.
const POINTS: usize = 400;
/// How many of them are the largest values: the slowest requests.
const TAIL: usize = 80;

/// A number rounded to six digits, more than any chart shows; null if it is not finite.
pub fn short(value: f64) -> Value {
    if !value.is_finite() {
        return Value::Null;
    }
    let digits = 5 - value.abs().max(1e-9).log10().floor() as i32;
    let scale = 10_f64.powi(digits.clamp(0, 9));
    json!((value * scale).round() / scale)
}

/// Rounded numbers.
pub fn shorts(values: impl IntoIterator<Item = f64>) -> Value {
    values.into_iter().map(short).collect()
}

/// The cumulative distribution of an ascending sample: values, and the share that is no larger. Of a large sample it has every so
/// many-th value, and the largest ones.
pub fn cdf(sorted: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let count = sorted.len();
    let step = count.div_ceil(POINTS - TAIL).max(1);
    let all = sorted.iter().enumerate();
    let kept = all.filter(|(at, _)| at % step == 0 || at + TAIL >= count);
    kept.map(|(at, value)| (*value, (at + 1) as f64 / count as f64))
        .unzip()
}

/// A round length of time, of which `whole` seconds have at most `max`.
pub fn slot_of(whole: f64, max: f64) -> f64 {
    const LENGTHS: [f64; 15] = [
        0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0, 600.0, 3600.0,
    ];
    let fits = |length: &f64| whole / length <= max;
    LENGTHS.into_iter().find(fits).unwrap_or(whole / max)
}

/// At most about `max` points of a series: the minimum and the maximum of each chunk, so that no peak is lost.
pub fn thinned(points: &[(f64, f64)], max: usize) -> Vec<(f64, f64)> {
    if points.len() <= max {
        return points.to_vec();
    }
    let chunk = points.len().div_ceil((max / 2).max(1));
    let mut kept = Vec::new();
    for points in points.chunks(chunk) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let lowest = points.iter().min_by(by_value).copied();
        let highest = points.iter().max_by(by_value).copied();
        let mut pair: Vec<(f64, f64)> = lowest.into_iter().chain(highest).collect();
        pair.sort_by(|a, b| a.0.total_cmp(&b.0));
        pair.dedup();
        kept.extend(pair);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_keeps_its_ends_and_is_bounded() {
        let small = cdf(&[1.0, 3.0]);
        assert_eq!(small, (vec![1.0, 3.0], vec![0.5, 1.0]));
        let large: Vec<f64> = (1..=100_000).map(f64::from).collect();
        let (values, shares) = cdf(&large);
        assert!(values.len() > POINTS / 2 && values.len() <= POINTS);
        assert_eq!(values.last(), Some(&100_000.0));
        let at = shares.iter().position(|share| *share >= 0.5).unwrap();
        assert!((values[at] - 50_000.0).abs() < 400.0, "{}", values[at]);
        assert_eq!(cdf(&[]), (vec![], vec![]));
    }

    #[test]
    fn thinning_keeps_every_peak_and_the_order() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|t| (f64::from(t), 1.0)).collect();
        points[7_777].1 = 50.0;
        points[1_234].1 = -3.0;
        let kept = thinned(&points, 300);
        assert!(kept.len() <= 300, "{}", kept.len());
        assert!(kept.contains(&(7_777.0, 50.0)) && kept.contains(&(1_234.0, -3.0)));
        assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn numbers_are_short_and_nothing_is_null() {
        assert_eq!(short(0.123_456_789), json!(0.123_457));
        assert_eq!(short(1_795_000_000.25), json!(1_795_000_000.0));
        assert_eq!(short(f64::NAN), Value::Null);
        assert_eq!(short(0.0), json!(0.0));
    }
}
