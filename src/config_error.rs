//! The error of an invalid value of a key.

use std::fmt::Display;

/// Names the key, the value, the problem and what would be valid.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    /// The key as in the file.
    pub key: String,
    message: String,
}

impl ConfigError {
    /// Makes an error.
    pub fn new(key: &str, value: impl Display, problem: impl Display) -> ConfigError {
        ConfigError {
            key: key.into(),
            message: format!("{key} = {value}: {problem}"),
        }
    }

    /// Makes an error of a text value, which is shown in quotes.
    pub fn text(key: &str, value: impl Display, problem: impl Display) -> ConfigError {
        ConfigError::new(key, format_args!("\"{value}\""), problem)
    }
}
