//! A generator's judgement of its own run.

use serde::{Deserialize, Serialize};

use crate::request::names::names;

names! {
    /// How far a run's figures can be believed.
    #[derive(Default)]
    #[serde(rename_all = "UPPERCASE")]
    pub enum Grade {
        /// The load was the one asked for, and its answers were seen in time.
        Valid = "VALID" default,
        /// Something was off that shows in some figures.
        Degraded = "DEGRADED",
        /// The figures are not those of the server.
        Invalid = "INVALID",
    }
}

/// How far a run's figures can be believed, and why not farther.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// How far.
    pub grade: Grade,
    /// Why not farther, in sentences with the figures, those of the grade first.
    pub reasons: Vec<String>,
}
