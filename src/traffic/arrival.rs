//! When requests arrive: offsets from the start of the run, laid out before it begins.
//!
//! Pure and seeded: the schedule has a random stream of its own, so the same seed gives the same
//! schedule whatever else changes, and a shorter run's schedule is the beginning of a longer one's.

use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, Gamma};

use crate::clock::NANOS;

pub mod curve;

use curve::Curve;

/// An arrival process.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrival {
    /// A process of one request a second, sped up: its arrival at `u` comes when the integral of the rate is `u`. The
    /// integral of the rate at the arrivals is then again the process of one a second: a Poisson process stays one, of the
    /// rate that changes.
    Process {
        /// The gaps of the process that is sped up.
        gaps: Gaps,
        /// Requests a second.
        rate: Curve,
    },
    /// All at once.
    Infinite,
    /// At these times: nanoseconds from the start of the run, in order.
    At(Arc<[i64]>),
}

/// The gaps of a process of one request a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gaps {
    /// Gaps i.i.d. exponential: a Poisson process.
    Exponential,
    /// Gaps i.i.d. gamma of this shape, which is finite and above 0: below 1 burstier than Poisson, above 1 more even (`--burstiness` of SGLang's and
    /// vLLM's benchmarks).
    Gamma(f64),
    /// Gaps that are all the same, the first of half that: so a run holds as many as the rate says, wherever it ends.
    Even,
}

/// The generator's random streams of one seed: this one is the schedule's, the others are the
/// workload's (one a request).
pub(super) const SCHEDULE_STREAM: u64 = 0;

impl Gaps {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Gaps::Exponential => "poisson",
            Gaps::Gamma(_) => "gamma",
            Gaps::Even => "constant",
        }
    }

    /// When the requests of a process of one a second come, without end.
    fn arrivals(self, seed: u64) -> impl Iterator<Item = f64> + use<> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(SCHEDULE_STREAM);
        let gamma = match self {
            // Shape and scale are above 0; a quotient that overflows leaves no gaps rather than fail.
            Gaps::Gamma(shape) => Gamma::new(shape, 1.0 / shape).ok(),
            Gaps::Exponential | Gaps::Even => None,
        };
        let mut at = 0.0;
        (0_u64..).map(move |index| {
            match self {
                Gaps::Exponential => at += Distribution::<f64>::sample(&Exp1, &mut rng),
                Gaps::Gamma(_) => at += gamma.map_or(0.0, |gamma| gamma.sample(&mut rng)),
                // Not summed up: it stays exact.
                Gaps::Even => at = index as f64 + 0.5,
            }
            at
        })
    }
}

impl Arrival {
    /// The process of `rate` requests a second, above 0 (infinity: all at once), with these gaps.
    pub fn new(rate: f64, gaps: Gaps) -> Arrival {
        match rate.is_infinite() {
            true => Arrival::Infinite,
            false => Arrival::Process {
                gaps,
                rate: Curve::flat(rate),
            },
        }
    }

    /// What it is called in `summary.json`.
    pub fn name(&self) -> &'static str {
        match self {
            Arrival::Process { gaps, .. } => gaps.name(),
            Arrival::Infinite => "at_once",
            Arrival::At(_) => "trace",
        }
    }

    /// Requests a second, in the mean of the first `end_nanos` where the rate changes; `None` when all come at once.
    /// That of given times is their mean.
    pub fn rate(&self, end_nanos: i64) -> Option<f64> {
        match self {
            Arrival::Process { rate, .. } => rate.mean(end_nanos as f64 / NANOS as f64),
            Arrival::Infinite => None,
            Arrival::At(times) => {
                let last = times.last().filter(|last| **last > 0)?;
                Some((times.len() - 1) as f64 / (*last as f64 / NANOS as f64))
            }
        }
    }

    /// The schedule of `seed`: nanoseconds from the start of the run. A process starts at 0, so its first
    /// arrival comes after a gap like any other; given times end, and so does a rate that falls to 0.
    pub fn offsets(&self, seed: u64) -> impl Iterator<Item = i64> + use<> {
        let arrival = self.clone();
        let mut arrivals = match self {
            Arrival::Process { gaps, .. } => Some(gaps.arrivals(seed)),
            _ => None,
        };
        (0..).map_while(move |index| {
            let seconds = match &arrival {
                Arrival::Process { rate, .. } => rate.time_of(arrivals.as_mut()?.next()?)?,
                Arrival::Infinite => 0.0,
                Arrival::At(times) => return times.get::<usize>(index).copied(),
            };
            // A cast saturates: an absurdly slow rate ends in the far future, not in a panic.
            Some((seconds * NANOS as f64).round() as i64)
        })
    }
}

#[cfg(test)]
mod tests;
