//! `queuescope routing`: several servers behind a router.

/// The plan of `queuescope routing` without a file.
pub const EXAMPLE: &str = include_str!("routing/example.toml");
