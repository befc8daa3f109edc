//! The config file: the proxy's section and its workers' put together, or all that is wrong with them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use self::proxy::Config;

pub mod args;
pub mod check;
mod faults;
pub mod proxy;
mod syntax;
pub mod topology;
mod words;

/// A config file as far as it can be read.
#[derive(Debug, Default)]
pub struct Loaded {
    /// What could be read; the keys that could not have their defaults.
    pub config: Config,
    /// What could not, in the order of the file.
    pub faults: Vec<Error>,
    /// The keys of the proxy at fault: to say no more of their defaults.
    pub keys: Vec<String>,
}

/// Why a config file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error(
        "cannot read config file {path}: {why}; give the path of a text file, as in --config config.toml"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// It does not say what it may say.
    #[error("{path}, line {line}: {problem}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what would be right.
        problem: String,
    },
}

/// Reads a file, and goes on after a fault. Absent keys have their defaults.
///
/// # Errors
/// When the file cannot be read.
pub fn load(path: &Path) -> Result<Loaded, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::Read {
        path: path.into(),
        why: match error.kind() {
            ErrorKind::InvalidData => "it is not text in UTF-8".into(),
            _ => error.to_string(),
        },
    })?;
    let parsed = faults::parse(&text);
    let error = |(line, problem)| Error::Content {
        path: path.into(),
        line,
        problem,
    };
    Ok(Loaded {
        config: parsed.config,
        faults: parsed.faults.into_iter().map(error).collect(),
        keys: parsed.keys,
    })
}
