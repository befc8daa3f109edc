//! Mooncake's traces: a JSON object a line.

use std::io::Read;

use crate::traffic::error::Error;

use super::Line;
use super::lines::{MOST_TOKENS, numbered, wrong};
use super::time::nanos_of;

const RIGHT: &str = "must be JSON lines of {\"timestamp\": ms, \"input_length\", \"output_length\", \"hash_ids\": […]}";

#[derive(serde::Deserialize)]
struct Row {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

/// The lines of a file.
pub(super) fn mooncake(file: impl Read, path: &str) -> impl Iterator<Item = Result<Line, Error>> {
    numbered(file, path).map(move |line| {
        let line = line?;
        let row: Row = serde_json::from_str(&line.text).map_err(|error| {
            let text = error.to_string();
            let what = text
                .rsplit_once(" at line ")
                .map_or(&*text, |(what, _)| what);
            let what = format!(", column {}: {what}; {RIGHT}", error.column());
            wrong(path, line.number, &what)
        })?;
        let at_nanos = nanos_of(row.timestamp / 1e3).ok_or_else(|| {
            let what = format!(": `timestamp` {} is no time in ms", row.timestamp);
            wrong(path, line.number, &what)
        })?;
        let longest = row.input_length.max(row.output_length);
        if longest > MOST_TOKENS {
            let what = format!(": a length of {longest} tokens; must be up to {MOST_TOKENS}");
            return Err(wrong(path, line.number, &what));
        }
        Ok(Line {
            at_nanos,
            input: row.input_length,
            output: row.output_length,
            blocks: row.hash_ids,
        })
    })
}
