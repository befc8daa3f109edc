//! The config file: the modules' own sections, put together.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::proxy;

mod faults;

pub use faults::Loaded;

/// A whole config file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[proxy]`.
    pub proxy: proxy::Config,
    /// `[[worker]]`, each a hop of the proxy.
    pub worker: Vec<proxy::Worker>,
}

/// Why a config file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("cannot read config file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It does not say what it may say.
    #[error("{path}, line {line}: {problem}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 0 when it is the whole.
        line: usize,
        /// What is wrong, and what would be right.
        problem: String,
    },
}

impl Config {
    /// Reads a file. Absent keys have their defaults.
    ///
    /// # Errors
    /// The file, the line and the key that is wrong.
    pub fn load(path: &Path) -> Result<Config, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.into(),
            source,
        })?;
        Config::parse(&text).map_err(|(line, problem)| Error::Content {
            path: path.into(),
            line,
            problem,
        })
    }

    /// Reads a file's text; an error is the line and the problem.
    fn parse(text: &str) -> Result<Config, (usize, String)> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = line_of(text, at);
            let key = text
                .lines()
                .nth(line - 1)
                .and_then(|line| line.split_once('='));
            (
                line,
                explain(error.message(), key.map(|(key, _)| key.trim())),
            )
        })
    }

    /// The proxy's part, with its hops.
    pub fn into_proxy(self) -> proxy::Config {
        proxy::Config {
            workers: self.worker,
            ..self.proxy
        }
    }
}

/// The line, from 1, of a place in a text.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// Serde's message as one line, with the key of the line it is about; an unknown key gets the nearest known
/// one.
fn explain(message: &str, key: Option<&str>) -> String {
    let message = message.lines().next().unwrap_or("not valid TOML");
    match key {
        _ if message.starts_with("missing field") => {
            return format!("a section that begins here: {message}; give it");
        }
        Some(key) if message.starts_with("invalid") || message.starts_with("unknown variant") => {
            return format!("{key}: {message}");
        }
        _ => {}
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    if !message.starts_with("unknown field") {
        return message.to_owned();
    }
    let unknown = quoted.next().unwrap_or_default();
    let nearest = quoted.min_by_key(|known| distance(unknown, known));
    match nearest {
        Some(known) => format!("unknown key `{unknown}`; did you mean `{known}`?"),
        None => format!("unknown key `{unknown}`"),
    }
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_gets_the_nearest_known_one() {
        let (line, problem) =
            Config::parse("[proxy]\nlisten = \"a\"\nupstraem = []\n").unwrap_err();
        assert_eq!(line, 3);
        assert_eq!(problem, "unknown key `upstraem`; did you mean `upstream`?");
        let (_, problem) = Config::parse("[poxy]\n").unwrap_err();
        assert_eq!(problem, "unknown key `poxy`; did you mean `proxy`?");
    }

    #[test]
    fn a_wrong_type_or_word_is_one_line() {
        for (text, piece) in [
            ("[proxy]\nthreads = \"two\"\n", "invalid type"),
            ("[proxy]\nstamps = \"always\"\n", "unknown variant `always`"),
            ("[[worker]]\nname = \"w\"\n", "missing field"),
            ("[proxy\n", ""),
        ] {
            let (_, problem) = Config::parse(text).unwrap_err();
            assert!(problem.contains(piece), "{problem}");
            assert!(!problem.contains('\n'), "{problem}");
        }
    }

    #[test]
    fn the_workers_go_to_the_proxy() {
        let text = "[[worker]]\nname = \"w\"\nlisten = \"127.0.0.1:0\"\nupstream = \"a:1\"\n";
        let config = Config::parse(text).unwrap().into_proxy();
        assert_eq!(config.workers[0].name, "w");
    }
}
