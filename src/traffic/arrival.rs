//! Arrival processes: when requests are sent, as offsets from the start of the run, computed before it begins.
//!
//! Pure and seeded: the schedule has its own random stream, so the same seed gives the same schedule whatever else changes, and the
//! schedule of a shorter run is the beginning of a longer run's.

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
    /// A process of one request per second whose time is rescaled: its arrival at `u` is moved to where the integral of the rate
    /// reaches `u`. A Poisson process stays one, with the rate that changes.
    Process {
        /// The gaps of the process before it is rescaled.
        gaps: Gaps,
        /// Requests per second.
        rate: Curve,
    },
    /// All at once.
    AtOnce,
    /// At these offsets, in nanoseconds, in order.
    At(Arc<[i64]>),
}

/// The distribution of the gaps of a process of one request per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gaps {
    /// Independent exponential gaps: a Poisson process.
    Exponential,
    /// Independent gamma gaps of mean 1: burstier than Poisson if the shape is below 1, more even above 1 (`--burstiness` of SGLang's
    /// and vLLM's benchmarks).
    Gamma(Gamma<f64>),
    /// Equal gaps; the first is half as long, so that a run of any length has as many requests as its rate says.
    Constant,
}

/// The random stream of the schedule. The workload uses the others of the same seed, one for each request.
pub(super) const SCHEDULE_STREAM: u64 = 0;

impl Gaps {
    /// The endless arrival times of a process of one request per second.
    fn arrivals(self, seed: u64) -> impl Iterator<Item = f64> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(SCHEDULE_STREAM);
        let mut at = 0.0;
        std::iter::repeat_with(move || {
            let gap: f64 = match self {
                Gaps::Exponential => Exp1.sample(&mut rng),
                Gaps::Gamma(gamma) => gamma.sample(&mut rng),
                // Sums of these are exact.
                Gaps::Constant if at == 0.0 => 0.5,
                Gaps::Constant => 1.0,
            };
            at += gap;
            at
        })
    }
}

impl Arrival {
    /// A process of `rate` requests per second with these gaps. The rate is above 0; infinity means all at once.
    pub fn new(rate: f64, gaps: Gaps) -> Arrival {
        match rate.is_infinite() {
            true => Arrival::AtOnce,
            false => Arrival::Process {
                gaps,
                rate: Curve::flat(rate),
            },
        }
    }

    /// The name in `summary.json`.
    pub fn name(&self) -> &'static str {
        match self {
            Arrival::Process { gaps, .. } => match gaps {
                Gaps::Exponential => "poisson",
                Gaps::Gamma(_) => "gamma",
                Gaps::Constant => "constant",
            },
            Arrival::AtOnce => "at_once",
            Arrival::At(_) => "trace",
        }
    }

    /// The rate in requests per second: the mean over the first `end_nanos` if it changes, or of given times over all. `None` if all
    /// come at once.
    pub fn rate(&self, end_nanos: i64) -> Option<f64> {
        match self {
            Arrival::Process { rate, .. } => rate.mean(end_nanos as f64 / NANOS as f64),
            Arrival::AtOnce => None,
            Arrival::At(times) => {
                let last = times.last().filter(|last| **last > 0)?;
                Some((times.len() - 1) as f64 / (*last as f64 / NANOS as f64))
            }
        }
    }

    /// The offsets of the schedule of `seed`, in nanoseconds. A process starts with a gap. Given times end, and so does a process
    /// whose rate falls to 0.
    pub fn offsets(&self, seed: u64) -> Box<dyn Iterator<Item = i64> + '_> {
        match self {
            Arrival::Process { gaps, rate } => {
                let seconds = gaps.arrivals(seed).map_while(|due| rate.time_of(due));
                // The cast saturates if the rate is absurdly low.
                Box::new(seconds.map(|at| (at * NANOS as f64).round() as i64))
            }
            Arrival::AtOnce => Box::new(std::iter::repeat(0)),
            Arrival::At(times) => Box::new(times.iter().copied()),
        }
    }
}

#[cfg(test)]
mod tests;
