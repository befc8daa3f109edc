//! The result of a run.

use std::path::PathBuf;

use crate::report::files::{Grade, Verdict};
use crate::report::load::Summary;

use super::verdict::Evidence;

/// Why a completed run must not be used as it is; decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unfit {
    /// It was stopped by this signal.
    Stopped(u8),
    /// Its figures are not the server's ([`FinishedRun::verdict`]).
    Invalid,
    /// More requests failed than are allowed.
    Failed {
        /// How many failed, of how many.
        counts: [u64; 2],
        /// `--max-failed`; `None`: half may fail.
        max_share: Option<f64>,
    },
}

/// The default of `--max-failed`.
const HALF: f64 = 0.5;

/// A run that is over, with its files written.
#[derive(Debug)]
pub struct FinishedRun {
    /// The figures.
    pub summary: Summary,
    /// Whether the figures can be trusted.
    pub verdict: Verdict,
    /// What the verdict was judged by.
    pub evidence: Evidence,
    /// What a reader of the figures must know: requests waited for slots, the run was cut short, …
    pub warnings: Vec<String>,
    /// The folder of the files.
    pub output_dir: PathBuf,
    /// Why scripts must not take the run for a complete and valid one.
    pub unfit: Option<Unfit>,
    /// Why the run failed: no request succeeded, or its files could not be written.
    pub failure: Option<String>,
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unfit::Stopped(_) => write!(f, "the run was stopped before its end"),
            Unfit::Invalid => write!(f, "the run is INVALID: its figures are not the server's"),
            Unfit::Failed { counts, max_share } => {
                let [failed, all] = counts;
                let allowed = max_share.unwrap_or(HALF);
                write!(
                    f,
                    "{failed} of {all} requests failed, more than --max-failed {allowed} allows"
                )
            }
        }
    }
}

impl FinishedRun {
    /// Sets `unfit` of a run that was not stopped: by its verdict, and by the number of failed requests.
    pub(super) fn judge(&mut self, max_failed: Option<f64>) {
        let counts @ [failed, all] = [self.summary.failed(), self.summary.requests()];
        let allowed = max_failed.unwrap_or(HALF) * all as f64;
        // Where all failed, `failure` says so already.
        if failed as f64 > allowed && (max_failed.is_some() || self.failure.is_none()) {
            self.unfit = Some(Unfit::Failed {
                counts,
                max_share: max_failed,
            });
        }
        // Where no request succeeded, `failure` says more than the verdict.
        if self.verdict.grade == Grade::Invalid && self.failure.is_none() {
            self.unfit = Some(Unfit::Invalid);
        }
    }

    /// Renders the result for the terminal.
    pub fn to_text(&self) -> String {
        let mut text = self.verdict.marked(&self.summary.to_text());
        text.push_str(&self.verdict.to_text(&self.evidence));
        for warning in &self.warnings {
            text.push_str(&format!("note: {warning}\n"));
        }
        text.push_str(&format!("files: {}\n", self.output_dir.display()));
        text
    }
}
