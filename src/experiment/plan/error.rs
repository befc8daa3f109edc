//! What is wrong with a plan.

/// An invalid plan: the key, what is wrong with it, what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(pub String);

impl From<anyhow::Error> for PlanError {
    fn from(wrong: anyhow::Error) -> PlanError {
        PlanError(wrong.to_string())
    }
}

impl PlanError {
    /// Of a key.
    pub fn of(key: &str, wrong: impl std::fmt::Display) -> PlanError {
        PlanError(format!("{key}: {wrong}"))
    }
}
