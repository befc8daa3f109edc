//! A rate that changes over time, linear between points.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::traffic::args::values::MAX_SECONDS;
use crate::units;

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

const EXPECTED: &str = "must be SECONDS:RATE points with commas between them, such as 0:5,60:50,180:5 or 0:300/min,1min:50: \
    two or more, from 0 s on, in order of time, within a year, up to a million requests a second";
/// A higher rate is taken for a typing error.
const MAX_RATE: f64 = 1e6;

impl Curve {
    /// A constant rate.
    pub fn flat(rate: f64) -> Curve {
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
    pub fn integral(&self, seconds: f64) -> f64 {
        let next = self.0.partition_point(|point| point.at <= seconds);
        let Some(from) = next.checked_sub(1).and_then(|last| self.0.get(last)) else {
            return 0.0;
        };
        let passed = seconds - from.at;
        let slope = self.0.get(next).map_or(0.0, |to| from.slope(to));
        from.due + passed * (from.rate + slope * passed / 2.0)
    }

    /// The time in seconds at which the integral of the rate reaches `due`; `None` if it never does.
    pub fn time_of(&self, due: f64) -> Option<f64> {
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
        for (index, Point { at, rate, .. }) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{at}:{rate}")?;
        }
        Ok(())
    }
}
