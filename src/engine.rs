//! What the engine tells of its requests outside of their responses, joined to their rows.

pub mod span;
pub mod table;
