//! What is known of a run beside its records.

use serde_json::Value;

use crate::clock::Stamp;

use super::goodput::Goal;

/// What is known of a run beside its records.
#[derive(Clone, Debug)]
pub struct RunFacts {
    /// When the run began, on the clock of the records' observer.
    pub started: Stamp,
    /// When its last request had ended.
    pub ended: Stamp,
    /// Requests a second that were asked for; `None` when there was no such limit (`inf`, or a proxy).
    pub offered_rate: Option<f64>,
    /// How many requests the schedule held.
    pub scheduled: usize,
    /// The configuration of the run, as it is to stand in the summary.
    pub config: Value,
    /// What a request must keep to count as good.
    pub goodput: Vec<Goal>,
    /// The machine, where it is known.
    pub machine: Value,
}

impl RunFacts {
    /// How long the run took, seconds; `None` when it took no time.
    pub fn duration(&self) -> Option<f64> {
        Some(self.ended.since(self.started)).filter(|seconds| *seconds > 0.0)
    }

    /// So many things, a second of the run.
    pub fn a_second(&self, things: impl Into<f64>) -> Option<f64> {
        Some(things.into() / self.duration()?)
    }
}
