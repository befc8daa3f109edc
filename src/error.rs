//! The error of a command, with the exit code of the process.

use std::fmt::Display;
use std::path::Path;

/// Why a command failed or was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What is wrong, and what would be right.
    pub message: String,
    /// The exit code.
    pub code: u8,
}

/// The exit code of a command that failed.
pub const FAILED: u8 = 1;
/// The exit code of an invalid command line, config or input file.
pub const USAGE: u8 = 2;
/// The exit code of a run in which the generator did not keep its schedule.
pub const INVALID: u8 = 3;
/// The exit code of a run in which too many requests failed.
pub const TOO_MANY_FAILED: u8 = 4;
/// The exit code after a signal, to which its number is added, as shells do.
pub const SIGNALLED: u8 = 128;

impl Error {
    /// An error with its exit code.
    pub fn new(code: u8, message: impl ToString) -> Error {
        let message = message.to_string();
        Error { message, code }
    }

    /// What was given is valid, but something failed.
    pub fn failed(message: impl ToString) -> Error {
        Error::new(FAILED, message)
    }

    /// What was given is invalid: names the flag, key or file, the problem and what would be valid.
    pub fn usage(message: impl ToString) -> Error {
        Error::new(USAGE, message)
    }

    /// A file that was given cannot be read.
    pub fn read(path: &Path, problem: impl Display) -> Error {
        Error::usage(format!("{}: {problem}", path.display()))
    }

    /// A file cannot be written.
    pub fn write(path: &Path, problem: impl Display) -> Error {
        Error::failed(format!("{}: {problem}", path.display()))
    }
}
