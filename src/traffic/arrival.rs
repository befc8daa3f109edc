//! When requests arrive: offsets from the start of the run, laid out before it begins.
//!
//! Pure and seeded: the schedule has a random stream of its own, so the same seed gives the same
//! schedule whatever else changes, and a shorter run's schedule is the beginning of a longer one's.

use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, Gamma};

use crate::clock::NANOS;

/// An arrival process.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrival {
    /// Gaps i.i.d. exponential with mean `1 / rate`.
    Poisson {
        /// Requests a second, finite and above 0.
        rate: f64,
    },
    /// Gaps i.i.d. gamma with mean `1 / rate`: below 1 burstier than Poisson, above 1 more even
    /// (`--burstiness` of SGLang's and vLLM's benchmarks).
    Gamma {
        /// Requests a second, finite and above 0.
        rate: f64,
        /// Shape of the distribution, finite and above 0.
        burstiness: f64,
    },
    /// All at once.
    Infinite,
    /// At these times: nanoseconds from the start of the run, in order.
    At(Arc<[i64]>),
}

/// The generator's random streams of one seed: this one is the schedule's, the others are the
/// workload's (one a request).
pub(super) const SCHEDULE_STREAM: u64 = 0;

impl Arrival {
    /// The process of `rate` requests a second (infinity: all at once) with gamma shape
    /// `burstiness`. `None` when either is not a number above 0, or the burstiness is infinite.
    pub fn new(rate: f64, burstiness: f64) -> Option<Arrival> {
        let sane = rate > 0.0 && burstiness > 0.0 && burstiness.is_finite();
        sane.then_some(if rate.is_infinite() {
            Arrival::Infinite
        } else if burstiness == 1.0 {
            Arrival::Poisson { rate }
        } else {
            Arrival::Gamma { rate, burstiness }
        })
    }

    /// Requests a second; `None` when all come at once. That of given times is their mean.
    pub fn rate(&self) -> Option<f64> {
        match self {
            Arrival::Poisson { rate } | Arrival::Gamma { rate, .. } => Some(*rate),
            Arrival::At(times) => {
                let last = times.last().filter(|last| **last > 0)?;
                Some((times.len() - 1) as f64 / (*last as f64 / NANOS as f64))
            }
            Arrival::Infinite => None,
        }
    }

    /// The schedule of `seed`: nanoseconds from the start of the run. A process starts at 0, so its first
    /// arrival comes after a gap like any other; given times end, and a process does not.
    pub fn offsets(&self, seed: u64) -> impl Iterator<Item = i64> + use<> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(SCHEDULE_STREAM);
        let gamma = match self {
            // Shape and scale are above 0; a product that overflows leaves no gaps rather than fail.
            Arrival::Gamma { rate, burstiness } => {
                Gamma::new(*burstiness, 1.0 / (rate * burstiness)).ok()
            }
            Arrival::Poisson { .. } | Arrival::Infinite | Arrival::At(_) => None,
        };
        let arrival = self.clone();
        let mut seconds = 0.0;
        (0..).map_while(move |index| {
            seconds += match &arrival {
                Arrival::Poisson { rate } => {
                    (1.0 / rate) * Distribution::<f64>::sample(&Exp1, &mut rng)
                }
                Arrival::Gamma { .. } => gamma.map_or(0.0, |gamma| gamma.sample(&mut rng)),
                Arrival::Infinite => 0.0,
                Arrival::At(times) => return times.get::<usize>(index).copied(),
            };
            // A cast saturates: an absurdly slow rate ends in the far future, not in a panic.
            Some((seconds * NANOS as f64).round() as i64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = 20_000;

    fn gaps(arrival: Arrival, seed: u64, n: usize) -> Vec<f64> {
        let mut before = 0;
        arrival
            .offsets(seed)
            .take(n)
            .map(|at| {
                let gap = (at - before) as f64 / NANOS as f64;
                before = at;
                gap
            })
            .collect()
    }

    /// √n × the Kolmogorov-Smirnov distance of `sample` from Exp(`rate`).
    fn kolmogorov_smirnov(mut sample: Vec<f64>, rate: f64) -> f64 {
        sample.sort_by(f64::total_cmp);
        let n = sample.len() as f64;
        let distance = sample.iter().enumerate().fold(0.0_f64, |worst, (i, gap)| {
            let expected = 1.0 - (-rate * gap).exp();
            let (below, above) = (i as f64 / n, (i + 1) as f64 / n);
            worst.max(expected - below).max(above - expected)
        });
        distance * n.sqrt()
    }

    /// √n × the lag-1 autocorrelation, standard normal for independent gaps.
    fn lag_one(sample: &[f64]) -> f64 {
        let n = sample.len() as f64;
        let mean = sample.iter().sum::<f64>() / n;
        let variance: f64 = sample.iter().map(|gap| (gap - mean).powi(2)).sum();
        let pairs = sample.windows(2);
        let covariance: f64 = pairs.map(|w| (w[0] - mean) * (w[1] - mean)).sum();
        covariance / variance * n.sqrt()
    }

    /// Each limit is passed with probability below 1e-6 by a true Poisson process, for a seed taken
    /// at random: P(√n D > 2.7) = 2 exp(−2 × 2.7²) = 9e-7; P(|z| > 4.9) = 1e-6.
    const KS_LIMIT: f64 = 2.7;
    const Z_LIMIT: f64 = 4.9;

    #[test]
    fn poisson_gaps_are_exponential_and_independent() {
        for (seed, rate) in [(1, 50.0), (2, 1000.0), (3, 0.25)] {
            let sample = gaps(Arrival::Poisson { rate }, seed, N);
            let z = lag_one(&sample);
            let distance = kolmogorov_smirnov(sample, rate);
            assert!(distance < KS_LIMIT, "seed {seed}: √n D = {distance}");
            assert!(z.abs() < Z_LIMIT, "seed {seed}: z = {z}");
        }
    }

    #[test]
    fn the_same_tests_refuse_what_is_not_poisson() {
        let burstiness = 0.8;
        let bursty = gaps(
            Arrival::Gamma {
                rate: 50.0,
                burstiness,
            },
            1,
            N,
        );
        assert!(kolmogorov_smirnov(bursty, 50.0) > KS_LIMIT);
        let poisson = gaps(Arrival::Poisson { rate: 50.0 }, 1, N);
        assert!(
            kolmogorov_smirnov(poisson.clone(), 55.0) > KS_LIMIT,
            "10 % off the rate"
        );
        let paired: Vec<f64> = poisson
            .windows(2)
            .map(|w| 0.9 * w[0] + 0.1 * w[1])
            .collect();
        assert!(lag_one(&paired) > Z_LIMIT);
    }

    #[test]
    fn gamma_gaps_have_the_asked_mean_and_shape() {
        for burstiness in [0.5, 4.0] {
            let rate = 20.0;
            let sample = gaps(Arrival::Gamma { rate, burstiness }, 7, N);
            let n = N as f64;
            let mean = sample.iter().sum::<f64>() / n;
            let variance = sample.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / n;
            // The mean's standard error is 1/(rate √(burstiness n)): 5 of them, 6e-7.
            let error = 5.0 / (rate * (burstiness * n).sqrt());
            assert!((mean - 1.0 / rate).abs() < error, "{mean}");
            let shape = mean * mean / variance;
            assert!((shape / burstiness - 1.0).abs() < 0.15, "{shape}");
        }
    }

    #[test]
    fn a_hundred_requests_at_fifty_a_second_end_around_two_seconds() {
        // The hundredth arrival is Gamma(100, 1/50): 2 s ± 0.2 s.
        for seed in 0..200 {
            let last = Arrival::Poisson { rate: 50.0 }.offsets(seed).nth(99);
            let seconds = last.unwrap() as f64 / NANOS as f64;
            assert!((1.1..3.2).contains(&seconds), "seed {seed}: {seconds} s");
        }
        let ends = (0..200).map(|seed| Arrival::Poisson { rate: 50.0 }.offsets(seed).nth(99));
        let mean = ends.map(|end| end.unwrap() as f64).sum::<f64>() / 200.0 / NANOS as f64;
        assert!((mean - 2.0).abs() < 5.0 * 0.2 / 200_f64.sqrt(), "{mean} s");
    }

    #[test]
    fn a_seed_gives_one_schedule_and_a_longer_run_only_adds_to_it() {
        let poisson = Arrival::Poisson { rate: 50.0 };
        let long: Vec<i64> = poisson.offsets(42).take(1000).collect();
        let short: Vec<i64> = poisson.offsets(42).take(100).collect();
        assert_eq!(short, long[..100]);
        assert!(long.windows(2).all(|w| w[0] <= w[1]));
        assert_ne!(long, poisson.offsets(43).take(1000).collect::<Vec<_>>());
        // Twice the rate is the same schedule at half the time, to the rounding.
        let double: Vec<i64> = Arrival::Poisson { rate: 100.0 }
            .offsets(42)
            .take(1000)
            .collect();
        let near = |(a, b): (&i64, &i64)| (a - 2 * b).abs() <= 2;
        assert!(long.iter().zip(&double).all(near));
    }

    #[test]
    fn infinite_means_at_once_and_nonsense_is_refused() {
        assert_eq!(Arrival::new(f64::INFINITY, 1.0), Some(Arrival::Infinite));
        assert!(Arrival::Infinite.offsets(1).take(10).all(|at| at == 0));
        for (rate, burstiness) in [(0.0, 1.0), (-3.0, 1.0), (f64::NAN, 1.0), (1.0, 0.0)] {
            assert_eq!(Arrival::new(rate, burstiness), None);
        }
        assert_eq!(Arrival::new(1.0, f64::INFINITY), None);
        let last = Arrival::Poisson { rate: 1e-300 }.offsets(1).next();
        assert_eq!(last, Some(i64::MAX));
    }

    #[test]
    fn given_times_are_kept_and_end() {
        let at = Arrival::At([0, 5, 4 * NANOS].into());
        assert_eq!(at.offsets(1).collect::<Vec<_>>(), [0, 5, 4 * NANOS]);
        assert_eq!(at.rate(), Some(0.5), "two gaps in four seconds");
        assert_eq!(Arrival::At([0, 0].into()).rate(), None, "all at once");
    }
}
