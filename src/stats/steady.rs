//! Whether a series is in a steady state.

/// Blocks whose means a trend is looked for in: so few that neighbours hardly depend on each other.
const BLOCKS: usize = 20;
/// Beyond so many standard deviations (1 of 100 series without a trend) it is one, if it also matters.
const SURE: f64 = 2.58;
/// A trend that moves the mean by less than this share, from the first quarter to the last, does not.
const MATTERS: f64 = 0.25;

/// How a series moved.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Trend {
    /// Mean of the first quarter.
    pub first: f64,
    /// Mean of the last quarter.
    pub last: f64,
    /// Whether it neither rises nor falls, as far as can be told.
    pub is_steady: bool,
}

/// Whether the values rise or fall (Mann-Kendall over the means of blocks); `None` of fewer than 40.
pub fn trend(values: &[f64]) -> Option<Trend> {
    if values.len() < 2 * BLOCKS {
        return None;
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let means: Vec<f64> = values
        .chunks_exact(values.len() / BLOCKS)
        .map(mean)
        .collect();
    let means = means.get(..BLOCKS)?;
    let later = |(index, mean): (usize, &f64)| {
        let more = means.iter().skip(index + 1);
        more.map(|next| f64::from(i8::from(next > mean) - i8::from(next < mean)))
            .sum::<f64>()
    };
    let score: f64 = means.iter().enumerate().map(later).sum();
    let count = BLOCKS as f64;
    let deviation = (count * (count - 1.0) * (2.0 * count + 5.0) / 18.0).sqrt();
    let quarter = values.len() / 4;
    let first = mean(values.get(..quarter)?);
    let last = mean(values.get(values.len() - quarter..)?);
    let moved = (last - first).abs() > MATTERS * first.abs().min(last.abs());
    Some(Trend {
        first,
        last,
        is_steady: score.abs() / deviation < SURE || !moved,
    })
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn noise(seed: u64, count: usize) -> Vec<f64> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..count).map(|_| rng.random::<f64>()).collect()
    }

    #[test]
    fn noise_has_no_trend() {
        // 1 of 100 is sure of a trend, and that does not matter then.
        assert!((0..100).all(|seed| trend(&noise(seed, 1000)).unwrap().is_steady));
    }

    #[test]
    fn a_queue_that_grows_is_no_steady_state() {
        let grows = |seed| -> Vec<f64> {
            let values = noise(seed, 400).into_iter().enumerate();
            values
                .map(|(index, noise)| noise + index as f64 / 200.0)
                .collect()
        };
        for seed in 0..20 {
            let trend = trend(&grows(seed)).unwrap();
            assert!(
                !trend.is_steady && trend.last > trend.first + 1.0,
                "{trend:?}"
            );
        }
        assert_eq!(trend(&[1.0; 39]), None);
        assert!(trend(&[1.0; 40]).unwrap().is_steady);
    }
}
