//! What is known of a run without its rows.

use serde_json::Value;

use crate::clock::Stamp;

use super::goodput::Goal;

/// What is known of a run without its rows.
#[derive(Clone, Debug)]
pub struct RunFacts {
    /// When the run began, on the clock of its rows.
    pub started: Stamp,
    /// When its last request had ended.
    pub ended: Stamp,
    /// The configured requests per second; `None` if unlimited (`inf`) or unknown (a proxy).
    pub offered_rate: Option<f64>,
    /// The number of scheduled requests.
    pub scheduled: usize,
    /// The configuration of the run, as `summary.json` has it.
    pub config: Value,
    /// The goals that a good request meets.
    pub goodput: Vec<Goal>,
    /// The machine of the generator; null if unknown.
    pub machine: Value,
}

impl RunFacts {
    /// The length of the run, seconds; `None` if it is 0.
    pub fn duration(&self) -> Option<f64> {
        Some(self.ended.since(self.started)).filter(|seconds| *seconds > 0.0)
    }

    /// A count per second of the run.
    pub fn per_second(&self, things: impl Into<f64>) -> Option<f64> {
        Some(things.into() / self.duration()?)
    }
}
