//! The result of a run.

use std::path::PathBuf;

use crate::error::{Error, INVALID, SIGNALLED, TOO_MANY_FAILED};
use crate::report::files::{Grade, Verdict};
use crate::report::load::Summary;

use super::verdict::Evidence;

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
    pub failure: Option<Error>,
}

impl FinishedRun {
    /// Sets `failure` by the signal that stopped the run; else by its verdict, and by the number of failed requests. What says already
    /// that no request succeeded, or that files could not be written, stays the message.
    pub(super) fn judge(&mut self, signal: Option<u8>, max_failed: Option<f64>) {
        let [failed, all] = [self.summary.failed(), self.summary.requests()];
        let allowed = max_failed.unwrap_or(HALF);
        let has_failed_too_often = failed as f64 > allowed * all as f64;
        let is_invalid = self.verdict.grade == Grade::Invalid;
        let (code, message) = match (signal, &self.failure) {
            (Some(signal), _) => (
                SIGNALLED + signal,
                "the run was stopped before its end".to_owned(),
            ),
            (None, None) if is_invalid => (
                INVALID,
                "the run is INVALID: its figures are not the server's".to_owned(),
            ),
            (None, failure)
                if has_failed_too_often && (max_failed.is_some() || failure.is_none()) =>
            {
                (
                    TOO_MANY_FAILED,
                    format!(
                        "{failed} of {all} requests failed, more than --max-failed {allowed} allows"
                    ),
                )
            }
            _ => return,
        };
        let message = self
            .failure
            .take()
            .map_or(message, |failure| failure.message);
        self.failure = Some(Error { message, code });
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
