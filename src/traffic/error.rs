//! Why there is no run, or nothing to keep of it.

use std::fmt::Display;
use std::path::Path;

use crate::clock::Stamp;

/// Why there was no run, or nothing to keep of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// It made sense, and did not work.
    #[error("{0}")]
    Failed(String),
    /// A signal came before there was anything to keep.
    #[error("interrupted before there was a result")]
    Interrupted(u8),
}

impl Error {
    /// Whether what was asked for is to blame, rather than how it went.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Usage(_))
    }

    /// Whether `--start-at` has passed.
    ///
    /// # Errors
    /// It has.
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

    /// The system gave no thread, runtime or signal handler.
    pub(super) fn thread(error: impl Display) -> Error {
        Error::Failed(format!("the generator could not start: {error}"))
    }

    /// A file could not be written, or a folder not be made.
    pub(super) fn file(path: &Path, cause: impl Display) -> Error {
        Error::Failed(format!("{}: {cause}", path.display()))
    }
}
