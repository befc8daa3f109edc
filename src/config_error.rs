//! The error of an invalid value of a key.

use std::fmt::Display;

/// Names the key, the value, the problem and what would be valid.
#[derive(Debug, thiserror::Error)]
#[error("{key} = {value}: {problem}")]
pub struct ConfigError {
    /// The key as in the file.
    pub key: String,
    /// The given value.
    pub value: String,
    /// The problem, and what would be valid.
    pub problem: String,
}

impl ConfigError {
    /// Makes an error.
    pub fn new(key: &str, value: impl Display, problem: impl Into<String>) -> ConfigError {
        ConfigError {
            key: key.into(),
            value: value.to_string(),
            problem: problem.into(),
        }
    }

    /// Makes an error of a text value, which is shown in quotes.
    pub fn text(key: &str, value: impl Display, problem: impl Into<String>) -> ConfigError {
        ConfigError::new(key, format_args!("\"{value}\""), problem)
    }
}
