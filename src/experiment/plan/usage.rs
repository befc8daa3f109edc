//! What was asked for and cannot be.

/// What is wrong with a plan: the key, what is wrong, what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

impl Usage {
    /// Of a key.
    pub fn of(key: &str, wrong: impl std::fmt::Display) -> Usage {
        Usage(format!("{key}: {wrong}"))
    }
}
