//! Summaries, comparisons and pages of recorded runs. Reading and writing files is in `reader`, `merge` and `command`; the rest
//! is pure.

pub mod command;
pub mod compare;
pub mod figures;
pub mod files;
pub mod findings;
pub mod grid;
pub mod load;
pub mod merge;
pub mod outputs;
pub mod page;
pub mod phases;
pub mod reader;
pub mod render;
pub mod runs;
mod sanitize;
pub mod timeline;
pub mod why;

#[cfg(test)]
pub(crate) use crate::request::sample;

/// A text that begins with a capital.
pub fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}
