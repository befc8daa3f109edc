//! `queuescope node`: one server, under a load.

/// The plan of `queuescope node` without a file.
pub const EXAMPLE: &str = include_str!("node/example.toml");
