//! Arrival processes: when requests are sent, as offsets from the start of the run, computed before it begins.
//!
//! Pure and seeded: the schedule has its own random stream, so the same seed gives the same schedule whatever else changes, and the
//! schedule of a shorter run is the beginning of a longer run's.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, Gamma};

use crate::clock::{NANOS, seconds};
use crate::units;

use super::args::values::{MAX_RATE, MAX_SECONDS};

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

/// A rate over time: linear between points, and constant after the last. Two points at the same time are a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(Arc<[Point]>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    /// Seconds from the start.
    at: f64,
    /// Requests per second.
    rate: f64,
    /// The integral of the rate up to this point: the mean number of requests that are due by then.
    due: f64,
}

/// The random stream of the schedule. The workload uses the others of the same seed, one for each request.
const SCHEDULE_STREAM: u64 = 0;

const EXPECTED: &str = "must be SECONDS:RATE points with commas between them, such as 0:5,60:50,180:5 or 0:300/min,1min:50: \
    two or more, from 0 s on, in order of time, within a year, up to a million requests a second";

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
            Arrival::Process { rate, .. } => rate.mean(seconds(end_nanos)),
            Arrival::AtOnce => None,
            Arrival::At(times) => {
                let last = times.last().filter(|last| **last > 0)?;
                Some((times.len() - 1) as f64 / seconds(*last))
            }
        }
    }

    /// The offsets of the schedule of `seed`, in nanoseconds. A process starts with a gap. Given times end, and so does a process
    /// whose rate falls to 0.
    pub fn offsets(&self, seed: u64) -> Box<dyn Iterator<Item = i64> + '_> {
        match self {
            Arrival::Process { gaps, rate } => {
                let times = gaps.arrivals(seed).map_while(|due| rate.time_of(due));
                // The cast saturates if the rate is absurdly low.
                Box::new(times.map(|at| (at * NANOS as f64).round() as i64))
            }
            Arrival::AtOnce => Box::new(std::iter::repeat(0)),
            Arrival::At(times) => Box::new(times.iter().copied()),
        }
    }
}

impl Curve {
    /// A constant rate.
    fn flat(rate: f64) -> Curve {
        let point = Point {
            at: 0.0,
            rate,
            due: 0.0,
        };
        Curve([point].into())
    }

    /// The mean rate up to `end` seconds; `None` if the rate changes and `end` is 0.
    pub fn mean(&self, end: f64) -> Option<f64> {
        match &*self.0 {
            [only] => Some(only.rate),
            _ => (end > 0.0).then(|| self.integral(end) / end),
        }
    }

    /// The time of the last point, in seconds.
    pub fn end(&self) -> f64 {
        self.0.last().map_or(0.0, |last| last.at)
    }

    /// The integral of the rate: the mean number of requests that are due by then.
    fn integral(&self, seconds: f64) -> f64 {
        // The first point is at 0.
        let next = self.0.partition_point(|point| point.at <= seconds);
        let from = self.0[next - 1];
        let passed = seconds - from.at;
        let slope = self.0.get(next).map_or(0.0, |to| from.slope(to));
        from.due + passed * (from.rate + slope * passed / 2.0)
    }

    /// The time in seconds at which the integral of the rate reaches `due`; `None` if it never does.
    fn time_of(&self, due: f64) -> Option<f64> {
        let next = self.0.partition_point(|point| point.due < due);
        let Some(from) = next.checked_sub(1).and_then(|last| self.0.get(last)) else {
            return Some(0.0);
        };
        let more = due - from.due;
        match self.0.get(next) {
            None => (from.rate > 0.0).then(|| from.at + more / from.rate),
            Some(to) => {
                // This form of the quadratic's root loses no precision where the slope is near 0.
                let root = (from.rate * from.rate + 2.0 * from.slope(to) * more).max(0.0);
                let passed = 2.0 * more / (from.rate + root.sqrt());
                Some((from.at + passed).min(to.at))
            }
        }
    }
}

impl Point {
    /// The change of the rate per second up to a later point.
    fn slope(&self, to: &Point) -> f64 {
        (to.rate - self.rate) / (to.at - self.at)
    }
}

impl FromStr for Curve {
    type Err = String;

    fn from_str(text: &str) -> Result<Curve, String> {
        let mut curve: Vec<Point> = Vec::new();
        for text in text.split(',').map(str::trim) {
            let wrong = || format!("point {text}: {EXPECTED}");
            let (at, rate) = text.split_once(':').ok_or_else(wrong)?;
            let at = units::seconds(at.trim()).filter(|at| (0.0..=MAX_SECONDS).contains(at));
            let rate =
                units::per_second(rate.trim()).filter(|rate| (0.0..=MAX_RATE).contains(rate));
            let (at, rate) = at.zip(rate).ok_or_else(wrong)?;
            let due = match curve.last() {
                None if at == 0.0 => 0.0,
                Some(before) if at >= before.at => {
                    before.due + (at - before.at) * (before.rate + rate) / 2.0
                }
                _ => return Err(wrong()),
            };
            curve.push(Point { at, rate, due });
        }
        match curve.last() {
            Some(last) if last.at > 0.0 && last.due > 0.0 => Ok(Curve(curve.into())),
            Some(last) if last.at > 0.0 => Err("no request is due: a rate must be above 0".into()),
            _ => Err(EXPECTED.to_owned()),
        }
    }
}

impl fmt::Display for Curve {
    /// In the form that is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let points = self.0.iter();
        let points = points.map(|Point { at, rate, .. }| format!("{at}:{rate}"));
        f.write_str(&Vec::from_iter(points).join(","))
    }
}

#[cfg(test)]
mod tests;
