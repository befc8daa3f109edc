//! The config: its file with the flags over it, or all that is wrong with them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use self::args::Args;
use self::proxy::Config;
use self::read::Reading;
use self::topology::Topology;
use crate::config_error::ConfigError;

pub mod args;
pub mod check;
pub mod engine;
pub mod keys;
pub mod otlp;
pub mod proxy;
mod read;
pub mod sections;
pub mod topology;
pub mod values;

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
    /// A value that does not go with the others, or with what is there.
    #[error(transparent)]
    Value(#[from] ConfigError),
}

/// Reads a file and the flags over it, checks the config and draws what it makes. Absent keys have their defaults.
///
/// # Errors
/// All that is wrong: in the order of the file, of the flags, then of the check. Of a file that is no TOML its lines alone.
pub fn load(path: Option<&Path>, flags: &Args) -> Result<(Config, Topology), Vec<Error>> {
    let text = path.map(read).transpose().map_err(|error| vec![error])?;
    load_text(
        &text.unwrap_or_default(),
        path.unwrap_or(Path::new("")),
        flags,
    )
}

fn load_text(text: &str, path: &Path, flags: &Args) -> Result<(Config, Topology), Vec<Error>> {
    let mut reading = Reading::of(text);
    reading.put(flags);
    let Reading {
        config,
        of_file,
        of_flags,
        keys,
        is_unread,
        ..
    } = reading;
    let of_file = of_file.into_iter();
    let of_file = of_file.map(|(line, problem)| Error::Content {
        path: path.into(),
        line,
        problem,
    });
    let mut wrong: Vec<Error> = of_file
        .chain(of_flags.into_iter().map(Error::Flag))
        .collect();
    match topology::check(&config) {
        Ok(topology) if wrong.is_empty() => return Ok((config, topology)),
        Err(others) if !is_unread => {
            let is_new = |other: &ConfigError| !keys.contains(&other.key);
            wrong.extend(others.into_iter().filter(is_new).map(Error::Value));
        }
        _ => {}
    }
    Err(wrong)
}

/// What is wrong with the text of a config that is in no file yet.
pub fn wrong(text: &str) -> Vec<String> {
    let wrong = load_text(text, Path::new(""), &Args::default())
        .err()
        .unwrap_or_default();
    let words = wrong.into_iter().map(|error| match error {
        Error::Content { problem, .. } => problem,
        other => other.to_string(),
    });
    words.collect()
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
