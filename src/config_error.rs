//! A value that cannot be used.

use std::fmt::Display;

/// Names the key, the value and what would be right.
#[derive(Debug, thiserror::Error)]
#[error("{key} = {value}: {problem}")]
pub struct ConfigError {
    /// The key, as in the file; the flag has the same words.
    pub key: String,
    /// The value as given.
    pub value: String,
    /// What is wrong with it, and what would be right.
    pub problem: String,
}

impl ConfigError {
    /// `value` under `key` cannot be used, because.
    pub fn new(key: &str, value: impl Display, problem: impl Into<String>) -> ConfigError {
        ConfigError {
            key: key.into(),
            value: value.to_string(),
            problem: problem.into(),
        }
    }

    /// The same of a text, which stands in quotes.
    pub fn text(key: &str, value: impl Display, problem: impl Into<String>) -> ConfigError {
        ConfigError::new(key, format_args!("\"{value}\""), problem)
    }
}
