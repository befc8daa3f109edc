//! What is known of a run without its rows, and its requests by these.

use std::ops::Range;

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

/// A request of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// The index of its first row.
    pub row: u32,
    /// The number of its rows.
    pub rows: u32,
    /// Whether it succeeded.
    pub is_ok: bool,
    /// Whether it arrived within the window.
    pub is_inside: bool,
    /// Whether it ended within the window.
    pub ends_inside: bool,
}

impl Request {
    /// The index of its first row.
    pub fn row(&self) -> usize {
        self.row as usize
    }

    /// The indices of its rows.
    pub fn rows(&self) -> Range<usize> {
        self.row()..self.row() + self.rows as usize
    }
}
