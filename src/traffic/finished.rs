//! A run that is over, for whoever asked for it.

use std::path::PathBuf;

use crate::report::load::Summary;
use crate::report::verdict::{Grade, Verdict};

use super::verdict::Evidence;

/// Why a run that worked is not what was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unfit {
    /// It was stopped by this signal.
    Stopped(u8),
    /// Its figures are not the server's ([`FinishedRun::verdict`]).
    Invalid,
    /// More requests failed than may.
    Failed {
        /// Requests that failed.
        failed: u64,
        /// All requests.
        requests: u64,
        /// The share that may fail, by `--max-failed`; else half.
        most: Option<f64>,
    },
}

/// A run that is over and on disk.
#[derive(Debug)]
pub struct FinishedRun {
    /// The figures.
    pub summary: Summary,
    /// Whether they can be believed.
    pub verdict: Verdict,
    /// What that was judged by.
    pub evidence: Evidence,
    /// What the reader of the figures must know: the generator was late, the run was cut short, …
    pub warnings: Vec<String>,
    /// What was sent, where it is a data set of its own.
    pub dataset: Option<String>,
    /// Where the files are.
    pub output_dir: PathBuf,
    /// Why scripts shall not take the run for a whole one.
    pub unfit: Option<Unfit>,
    /// Why the run counts as failed: not one request succeeded, or its files could not be written.
    pub failure: Option<String>,
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unfit::Stopped(_) => write!(f, "the run was stopped before its end"),
            Unfit::Invalid => write!(f, "the run is INVALID: its figures are not the server's"),
            Unfit::Failed {
                failed,
                requests,
                most,
            } => {
                write!(f, "{failed} of {requests} requests failed, more than ")?;
                match most {
                    Some(most) => write!(f, "--max-failed {most} allows"),
                    None => write!(f, "half (--max-failed SHARE says how many may)"),
                }
            }
        }
    }
}

impl FinishedRun {
    /// Whether its figures are to be believed, and too many requests failed; of a run that came to its own end.
    pub(super) fn judge(&mut self, max_failed: Option<f64>) {
        let (failed, requests) = (self.summary.failed(), self.summary.requests());
        let most = max_failed.unwrap_or(0.5) * requests as f64;
        // Where all did, that is what there is to say.
        if failed as f64 > most && (max_failed.is_some() || self.failure.is_none()) {
            self.unfit = Some(Unfit::Failed {
                failed,
                requests,
                most: max_failed,
            });
        }
        // Where nothing at all came back, that is what there is to say.
        if self.verdict.grade == Grade::Invalid && self.failure.is_none() {
            self.unfit = Some(Unfit::Invalid);
        }
    }

    /// What the terminal shows.
    pub fn to_text(&self) -> String {
        let mut text = self.verdict.marked(&self.summary.to_text());
        text.push_str(&self.verdict.to_text(&self.evidence));
        if let Some(dataset) = &self.dataset {
            text.push_str(&format!("data set: {dataset}\n"));
        }
        for warning in &self.warnings {
            text.push_str(&format!("note: {warning}\n"));
        }
        text.push_str(&format!("files: {}\n", self.output_dir.display()));
        text
    }
}
