//! Why there is no run, or nothing to keep of it.

use std::io;
use std::path::{Path, PathBuf};

use crate::clock::Stamp;

/// Why there was no run, or nothing to keep of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The folder for the files holds a run already.
    #[error(
        "--output-dir {}: holds a run already ({}); name another folder, leave the flag out, or replace \
         that run with --force",
        dir.display(), files.join(", ")
    )]
    Taken {
        /// The folder.
        dir: PathBuf,
        /// The run's files that are there.
        files: Vec<&'static str>,
    },
    /// The folder for the files cannot be made or read.
    #[error("--output-dir: {}: {cause}", path.display())]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// No connection to the target came about.
    #[error("cannot reach {url}: {why}")]
    Unreachable {
        /// The base URL.
        url: String,
        /// What happened.
        why: String,
    },
    /// The target answers, but not so that the run can begin.
    #[error("{0}")]
    Refused(String),
    /// A data set could not be brought here.
    #[error(
        "cannot download {url}: {why}; bring the file here by other means and name it with --dataset-path FILE, or \
         put it at {}",
        path.display()
    )]
    Download {
        /// From where.
        url: String,
        /// What happened.
        why: String,
        /// Where it would have been kept.
        path: PathBuf,
    },
    /// A warm-up request failed.
    #[error("a warm-up request failed: {0}")]
    Warmup(String),
    /// A signal came before there was anything to keep.
    #[error("interrupted before there was a result")]
    Interrupted(u8),
    /// The system gave no thread, runtime or signal handler.
    #[error("the generator could not start: {0}")]
    Thread(String),
    /// A file could not be written.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The rows cannot be read again.
    #[error("no figures: {0}")]
    Unread(String),
}

impl Error {
    /// Whether what was asked for is to blame, rather than how it went.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Usage(_) | Error::Taken { .. })
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

    pub(super) fn thread(error: impl std::fmt::Display) -> Error {
        Error::Thread(error.to_string())
    }

    pub(super) fn folder(path: &Path, cause: io::Error) -> Error {
        let path = path.to_owned();
        Error::Folder { path, cause }
    }
}
