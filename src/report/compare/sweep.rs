//! What a setting that is a number does to the servers' queue.

use serde::Serialize;
use serde_json::{Map, Value};

use super::{Difference, Statistic};
use crate::report::duration;

/// The column that a sweep tells of.
pub const QUEUE: &str = "pure_queue_time";
const P50: Statistic = Statistic::Quantile(0.5);

/// The servers' queue by the values of one key, all else alike.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sweep {
    /// The key.
    pub key: String,
    /// What its settings have in common of what else varies.
    pub at: String,
    /// Its values, ascending, each with the median of the queue, seconds.
    pub values: Vec<(f64, f64)>,
    /// Whether the queue of the highest value differs from that of the lowest by more than chance.
    pub shown: bool,
    /// What both ends are called where they are compared, and what they share.
    #[serde(skip)]
    pub(super) ends: (String, String, String),
}

/// Settings that differ in one key alone, by their places and ascending values.
pub struct Line {
    /// The key.
    pub key: String,
    /// Its values and their places.
    pub of: Vec<(f64, usize)>,
}

/// The lines of two or more values among settings.
pub fn lines(group: &[&Map<String, Value>]) -> Vec<Line> {
    let mut lines = Vec::new();
    let keys = group.iter().take(1).flat_map(|of| of.keys());
    for key in keys {
        let others = |n: usize| {
            let mut others = group.get(n).map(|of| (*of).clone()).unwrap_or_default();
            others.remove(key);
            others
        };
        let mut left: Vec<usize> = (0..group.len()).collect();
        while let Some(first) = left.first().copied() {
            let (line, rest): (Vec<usize>, Vec<usize>) =
                left.into_iter().partition(|n| others(*n) == others(first));
            left = rest;
            let value = |n: &usize| Some((group.get(*n)?.get(key)?.as_f64()?, *n));
            let Some(mut of) = line.iter().map(value).collect::<Option<Vec<_>>>() else {
                continue;
            };
            of.sort_by(|a, b| a.0.total_cmp(&b.0));
            if of.len() > 1 {
                let key = key.clone();
                lines.push(Line { key, of });
            }
        }
    }
    lines
}

impl Line {
    /// The places of the lowest and the highest value, the first of the experiment first.
    pub fn ends(&self) -> [usize; 2] {
        let place = |of: Option<&(f64, usize)>| of.map_or(0, |(_, place)| *place);
        let mut ends = [place(self.of.first()), place(self.of.last())];
        ends.sort_unstable();
        ends
    }
}

impl Sweep {
    /// Takes of the judged differences whether that of its ends is shown.
    pub(super) fn judge(&mut self, differences: &[Difference]) {
        let (a, b, at) = &self.ends;
        self.shown = differences.iter().any(|of| {
            let is_of_both = (&of.a, &of.b, &of.at) == (a, b, at);
            is_of_both && of.metric == QUEUE && of.statistic == P50 && of.shown
        });
    }

    /// Whether the queue falls as the value grows; else it rises.
    pub fn falls(&self) -> bool {
        let ends = self.values.first().zip(self.values.last());
        ends.is_some_and(|(low, high)| high.1 < low.1)
    }

    /// `the server's queue falls from 11.20 s (8) to 350 µs (64) (p50)`.
    pub fn sentence(&self) -> String {
        let [lowest, between @ .., highest] = self.values.as_slice() else {
            return String::new();
        };
        let told = |(value, queue): &(f64, f64)| format!("{} ({value})", duration(*queue));
        let (from, to) = (told(lowest), told(highest));
        let what = match (self.shown, self.falls()) {
            (true, true) => format!("the server's queue falls from {from} to {to} (p50)"),
            (true, false) => format!("the server's queue rises from {from} to {to} (p50)"),
            (false, _) => {
                format!("no change of the server's queue can be shown from {from} to {to} (p50)")
            }
        };
        let at = match self.at.as_str() {
            "" => String::new(),
            at => format!("{at}: "),
        };
        let between: Vec<String> = between.iter().map(told).collect();
        let between = match between.as_slice() {
            [] => String::new(),
            between => format!("; between: {}", between.join(", ")),
        };
        format!("{at}as {} grows, {what}{between}", self.key)
    }
}
