//! A rate that changes over time: linear between points.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::traffic::args::values::LONGEST_SECONDS;
use crate::units;

/// Requests a second over time: linear between points, and that of the last one from there on. Two points of one time
/// are a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(Arc<[Point]>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    /// Seconds from the start.
    at: f64,
    /// Requests a second.
    rate: f64,
    /// The integral of the rate up to here: requests that are due by then, in the mean.
    due: f64,
}

const RIGHT: &str = "must be SECONDS:RATE points with commas between them, such as 0:5,60:50,180:5 or 0:300/min,1min:50";
/// A higher rate is taken for a slip.
const MOST_A_SECOND: f64 = 1e6;

impl Curve {
    /// Always this rate.
    pub fn flat(rate: f64) -> Curve {
        let point = Point {
            at: 0.0,
            rate,
            due: 0.0,
        };
        Curve([point].into())
    }

    /// The mean rate until then, seconds; `None` where it changes and no time has passed.
    pub fn mean(&self, end: f64) -> Option<f64> {
        match &*self.0 {
            [only] => Some(only.rate),
            _ => (end > 0.0).then(|| self.integral(end) / end),
        }
    }

    /// Through these points of seconds and requests a second.
    ///
    /// # Errors
    /// Which point is wrong, and what would be right.
    pub fn new(points: &[(f64, f64)]) -> Result<Curve, String> {
        let mut made: Vec<Point> = Vec::with_capacity(points.len());
        for &(at, rate) in points {
            let wrong = |right: &str| Err(format!("point {at}:{rate}: {right}"));
            if !(0.0..=LONGEST_SECONDS).contains(&at) {
                return wrong("the time must be a number of seconds, 0 or more, a year at most");
            }
            if !(0.0..=MOST_A_SECOND).contains(&rate) {
                return wrong("the rate must be a number from 0 to a million requests a second");
            }
            let due = match made.last() {
                None if at != 0.0 => return wrong("the first point must be at 0 seconds"),
                None => 0.0,
                Some(before) if at < before.at => {
                    return wrong("the times must be in order");
                }
                Some(before) => before.due + (at - before.at) * (before.rate + rate) / 2.0,
            };
            made.push(Point { at, rate, due });
        }
        match made.last() {
            Some(last) if last.at > 0.0 && last.due > 0.0 => Ok(Curve(made.into())),
            Some(last) if last.at > 0.0 => Err("no request is due: a rate must be above 0".into()),
            _ => Err(format!("needs two points or more: {RIGHT}")),
        }
    }

    /// When its last point is, seconds.
    pub fn end(&self) -> f64 {
        self.0.last().map_or(0.0, |last| last.at)
    }

    /// Requests that are due by then, in the mean.
    pub fn integral(&self, seconds: f64) -> f64 {
        let next = self.0.partition_point(|point| point.at <= seconds);
        let Some(from) = next.checked_sub(1).and_then(|last| self.0.get(last)) else {
            return 0.0;
        };
        let passed = seconds - from.at;
        let slope = self.0.get(next).map_or(0.0, |to| from.slope(to));
        from.due + passed * (from.rate + slope * passed / 2.0)
    }

    /// When the integral of the rate reaches `due`, seconds; `None` if it never does.
    pub fn time_of(&self, due: f64) -> Option<f64> {
        let next = self.0.partition_point(|point| point.due < due);
        let Some(from) = next.checked_sub(1).and_then(|last| self.0.get(last)) else {
            return Some(0.0);
        };
        let more = due - from.due;
        match self.0.get(next) {
            None => (from.rate > 0.0).then(|| from.at + more / from.rate),
            Some(to) => {
                // The root of a quadratic in the form that loses no digits where the slope is near 0.
                let root = (from.rate * from.rate + 2.0 * from.slope(to) * more).max(0.0);
                let passed = 2.0 * more / (from.rate + root.sqrt());
                Some((from.at + passed).min(to.at))
            }
        }
    }
}

impl Point {
    /// How the rate changes a second, up to a later point.
    fn slope(&self, to: &Point) -> f64 {
        (to.rate - self.rate) / (to.at - self.at)
    }
}

impl FromStr for Curve {
    type Err = String;

    fn from_str(text: &str) -> Result<Curve, String> {
        let point = |text: &str| {
            let (at, rate) = text.trim().split_once(':')?;
            Some((units::seconds(at.trim())?, units::per_second(rate.trim())?))
        };
        let points = text
            .split(',')
            .map(|text| point(text).ok_or_else(|| format!("point {}: {RIGHT}", text.trim())));
        Curve::new(&points.collect::<Result<Vec<_>, _>>()?)
    }
}

impl fmt::Display for Curve {
    /// As it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Point { at, rate, .. }) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{at}:{rate}")?;
        }
        Ok(())
    }
}
