//! Errors of a run of the generator.

use std::fmt::Display;
use std::path::Path;

use crate::clock::Stamp;

/// Why there was no run, or why it left nothing to keep.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments are invalid or do not go together.
    #[error("{0}")]
    Usage(String),
    /// The arguments are valid, but something failed.
    #[error("{0}")]
    Failed(String),
    /// A signal (its number) arrived before there was a result.
    #[error("interrupted before there was a result")]
    Interrupted(u8),
}

impl Error {
    /// Whether the arguments are at fault.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Usage(_))
    }

    /// Checks that `--start-at` is still to come.
    ///
    /// # Errors
    /// It has passed.
    pub(super) fn if_past(at: Stamp, now: Stamp) -> Result<(), Error> {
        let late = now.since(at);
        match late < 0.0 {
            true => Ok(()),
            false => Err(Error::Usage(format!(
                "--start-at {}: that was {late:.3} s before everything was ready; name a later moment",
                at.utc()
            ))),
        }
    }

    /// The system refused a thread, a runtime or a signal handler.
    pub(super) fn thread(error: impl Display) -> Error {
        Error::Failed(format!("the generator could not start: {error}"))
    }

    /// A file could not be written or renamed.
    pub(super) fn file(path: &Path, cause: impl Display) -> Error {
        Error::Failed(format!("{}: {cause}", path.display()))
    }
}
