//! The error of an invalid plan.

/// Names the key, the problem and what would be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(pub String);

impl From<anyhow::Error> for PlanError {
    fn from(error: anyhow::Error) -> PlanError {
        PlanError(error.to_string())
    }
}

impl PlanError {
    /// An error about one key.
    pub fn of(key: &str, problem: impl std::fmt::Display) -> PlanError {
        PlanError(format!("{key}: {problem}"))
    }
}
