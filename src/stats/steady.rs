//! When a series has come to its steady state, and whether it stays there.

/// Values that are taken together, so that one that is far off does not decide.
const BATCH: usize = 5;
/// At most this part of a series is taken for its beginning.
const MOST: usize = 3;
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

/// How many of the first values are not yet of the steady state: MSER-5 (White, 1997), which leaves out so many that the
/// mean of the rest is known best; in batches of five, at most a third. `None`: even that may not be enough, as the best
/// was the most.
pub fn warm_up(values: &[f64]) -> Option<usize> {
    let batch = |values: &[f64]| values.iter().sum::<f64>() / BATCH as f64;
    let means: Vec<f64> = values.chunks_exact(BATCH).map(batch).collect();
    let most = means.len() / MOST;
    // Sums over the rest, from the end.
    let (mut sum, mut squares, mut best) = (0.0, 0.0, None::<(f64, usize)>);
    for (left_out, mean) in means.iter().enumerate().rev() {
        sum += mean;
        squares += mean * mean;
        if left_out > most {
            continue;
        }
        let rest = (means.len() - left_out) as f64;
        let error = (squares - sum * sum / rest).max(0.0) / (rest * rest);
        if best.is_none_or(|(least, _)| error <= least) {
            best = Some((error, left_out));
        }
    }
    let (_, left_out) = best?;
    (left_out < most || most == 0).then_some(left_out * BATCH)
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
    fn a_beginning_that_differs_is_left_out_and_no_more() {
        // The first 100 of 1000 rise to where the others are: those more than half below must go.
        let rising = |values: Vec<f64>| -> Vec<f64> {
            let value =
                |(index, noise): (usize, f64)| 10.0 * (index as f64 / 100.0).min(1.0) + noise;
            values.into_iter().enumerate().map(value).collect()
        };
        for seed in 0..20 {
            let left_out = warm_up(&rising(noise(seed, 1000))).unwrap();
            assert!((60..=150).contains(&left_out), "seed {seed}: {left_out}");
        }
        assert_eq!(warm_up(&[]), None);
        assert_eq!(warm_up(&[1.0; 7]), Some(0));
        // It never comes to an end.
        let line: Vec<f64> = (0..300).map(f64::from).collect();
        assert_eq!(warm_up(&line), None);
    }

    #[test]
    fn noise_loses_little_and_has_no_trend() {
        let left_out = (0..100).map(|seed| warm_up(&noise(seed, 1000)).unwrap_or(333));
        let mean = left_out.sum::<usize>() as f64 / 100.0;
        assert!(mean < 80.0, "{mean}");
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
