//! What the engine tells of its requests outside of their responses, joined to their rows.

pub mod assembly;
pub mod forward;
pub mod otlp;
pub mod receiver;
pub mod span;
