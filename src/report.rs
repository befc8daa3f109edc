//! Summaries, comparisons and pages of recorded runs. Reading and writing files is in `reader`, `merge` and `command`; the rest
//! is pure.

mod believed;
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
pub mod runs;
pub mod series;
pub mod timeline;
pub mod verdict;
pub mod why;
pub mod words;

#[cfg(test)]
pub(crate) use crate::request::sample;

/// A text that begins with a capital.
pub fn upper(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// Seconds as a person reads them: `1.52 s`, `0.33 s`, `4.2 ms`, `80 µs`.
pub fn duration(seconds: f64) -> String {
    match seconds.abs() {
        size if size >= 0.0995 => format!("{seconds:.2} s"),
        size if size >= 0.000_995 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{:.0} µs", seconds * 1e6),
    }
}
