//! A file line by line, each with its number.

use std::io::{BufRead, BufReader, Read};

use crate::traffic::error::Error;

/// A line without its end; never one of blanks alone.
pub(super) struct Numbered {
    /// From 1.
    pub(super) number: u64,
    pub(super) text: String,
}

/// No line of the published ones has more than some thousand bytes: a file of one endless line must not be held whole.
const LONGEST: u64 = 1 << 20;
/// Tokens of a prompt or an answer: a prompt is held in memory.
pub(super) const MOST_TOKENS: u32 = 10_000_000;

/// The lines of a file.
pub(super) fn numbered(
    file: impl Read,
    path: &str,
) -> impl Iterator<Item = Result<Numbered, Error>> {
    let mut file = BufReader::new(file);
    let mut number = 0_u64;
    std::iter::from_fn(move || {
        loop {
            number += 1;
            let mut text = String::new();
            match file.by_ref().take(LONGEST).read_line(&mut text) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(cause) => return Some(Err(wrong(path, number, &format!(": {cause}")))),
            }
            if number == 1 && text.starts_with('\u{feff}') {
                text.remove(0);
            }
            text.truncate(text.trim_end().len());
            if !text.is_empty() {
                return Some(Ok(Numbered { number, text }));
            }
        }
    })
}

/// What is wrong with a line.
pub(super) fn wrong(path: &str, number: u64, what: &str) -> Error {
    Error::Usage(format!("--dataset-path {path}, line {number}{what}"))
}
