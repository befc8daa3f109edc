//! How far the figures of a run can be believed, as its generator judged it.

use serde::{Deserialize, Serialize};

/// How far a run's figures can be believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Grade {
    /// The load was the one asked for, and its answers were seen in time.
    #[default]
    Valid,
    /// Something was off that shows in some figures.
    Degraded,
    /// The figures are not those of the server.
    Invalid,
}

/// What is said of a run's figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// How far they can be believed.
    pub grade: Grade,
    /// Why not farther, in sentences with the figures; those of the grade first.
    pub reasons: Vec<String>,
}

impl Grade {
    /// `VALID`, `DEGRADED`, `INVALID`: as in `summary.json`.
    pub fn name(self) -> &'static str {
        match self {
            Grade::Valid => "VALID",
            Grade::Degraded => "DEGRADED",
            Grade::Invalid => "INVALID",
        }
    }
}

impl Verdict {
    /// What must stand beside every figure of the run: nothing if it is valid.
    pub fn mark(&self) -> Option<&'static str> {
        Some(self.grade.name()).filter(|_| self.grade != Grade::Valid)
    }
}
