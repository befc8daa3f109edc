//! The config: its file with the flags over it, or all that is wrong with them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use self::args::Args;
use self::problems::Parsed;
use self::proxy::Config;
use crate::config_error::ConfigError;

pub mod args;
pub mod check;
pub mod engine;
pub mod otlp;
mod problems;
pub mod proxy;
mod syntax;
pub mod topology;
pub mod values;
mod words;

/// A config as far as it can be read.
#[derive(Debug)]
pub struct Loaded {
    /// What could be read.
    pub config: Config,
    /// What could not, in the order of the file and then of the flags.
    pub problems: Vec<Error>,
    /// The keys of the proxy at fault: to say no more of them.
    pub keys: Vec<String>,
}

/// Why a config cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error(
        "cannot read config file {path}: {why}; give the path of a text file, as in --config config.toml"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The file does not say what it may say.
    #[error("{path}, line {line}: {problem}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A flag does not.
    #[error("{0}")]
    Flag(String),
}

/// Reads a file and the flags over it, and goes on after a problem. Absent keys have their defaults.
///
/// # Errors
/// When the file cannot be read.
pub fn load(path: Option<&Path>, flags: &Args) -> Result<Loaded, Error> {
    let text = path.map(read).transpose()?.unwrap_or_default();
    let mut parsed = Parsed::of(&text);
    parsed.put(flags);
    let config = parsed.config();
    let of_file = parsed
        .of_file
        .into_iter()
        .map(|(line, problem)| Error::Content {
            path: path.unwrap_or(Path::new("")).into(),
            line,
            problem,
        });
    Ok(Loaded {
        config,
        problems: of_file
            .chain(parsed.of_flags.into_iter().map(Error::Flag))
            .collect(),
        keys: parsed.keys,
    })
}

/// What is wrong with the text of a config that is in no file yet: its content, and its values against one another.
pub fn wrong(text: &str) -> Vec<String> {
    let parsed = Parsed::of(text);
    let checked = topology::check(&parsed.config()).err().unwrap_or_default();
    let is_new = |other: &ConfigError| !parsed.keys.contains(&other.key);
    let checked = checked.into_iter().filter(is_new);
    let of_file = parsed.of_file.iter().map(|(_, problem)| problem.clone());
    of_file
        .chain(checked.map(|error| error.to_string()))
        .collect()
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|error| Error::Read {
        path: path.into(),
        why: match error.kind() {
            ErrorKind::InvalidData => "it is not text in UTF-8".into(),
            _ => error.to_string(),
        },
    })
}
