//! A run that is over, for whoever asked for it.

use std::path::PathBuf;

use crate::report::load::Summary;
use crate::report::verdict::{Evidence, Grade, Verdict};

/// Why a run that worked is not what was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unfit {
    /// It was stopped by this signal.
    Stopped(u8),
    /// Its figures are not the server's ([`FinishedRun::verdict`]).
    Invalid,
    /// More requests failed than `--max-failed` allows.
    Failed {
        /// Requests that failed.
        failed: u64,
        /// All requests.
        requests: u64,
        /// The share that may fail.
        most: f64,
    },
    /// More than half failed, and nobody said how many may.
    MostFailed {
        /// Requests that failed.
        failed: u64,
        /// All requests.
        requests: u64,
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
            } => write!(
                f,
                "{failed} of {requests} requests failed, more than --max-failed {most} allows"
            ),
            Unfit::MostFailed { failed, requests } => write!(
                f,
                "{failed} of {requests} requests failed, more than half (--max-failed SHARE says how many may)"
            ),
        }
    }
}

impl FinishedRun {
    /// Whether its figures are to be believed, and too many requests failed; of a run that came to its own end.
    pub(super) fn judge(&mut self, max_failed: Option<f64>) {
        let (failed, requests) = (self.summary.failed(), self.summary.requests());
        match max_failed {
            Some(most) if failed as f64 > most * requests as f64 => {
                self.unfit = Some(Unfit::Failed {
                    failed,
                    requests,
                    most,
                });
            }
            // Where all did, that is what there is to say.
            None if failed * 2 > requests && self.failure.is_none() => {
                self.unfit = Some(Unfit::MostFailed { failed, requests });
            }
            None if failed > 0 => {
                let note = "the exit status tells of failed requests where more than half did, or with --max-failed SHARE";
                self.warnings.push(note.to_owned());
            }
            _ => {}
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
