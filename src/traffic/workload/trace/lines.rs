//! Mooncake's traces: a JSON object a line.

use std::io::{BufRead, BufReader, Read};

use crate::traffic::error::Error;

use super::{Line, nanos_of};

const RIGHT: &str = "must be JSON lines of {\"timestamp\": ms, \"input_length\", \"output_length\", \"hash_ids\": […]}";
/// No line of the published ones has more than some thousand bytes.
const LONGEST: u64 = 1 << 20;

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
    let mut file = BufReader::new(file);
    let mut number = 0_u64;
    std::iter::from_fn(move || {
        loop {
            number += 1;
            let wrong = |what: String| {
                Some(Err(Error::Usage(format!(
                    "--dataset-path {path}, line {number}{what}"
                ))))
            };
            let mut bytes = Vec::new();
            // A file of one endless line must not be held whole.
            match file.by_ref().take(LONGEST).read_until(b'\n', &mut bytes) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(cause) => return wrong(format!(": {cause}")),
            }
            let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            return match serde_json::from_slice::<Row>(bytes) {
                Ok(row) => match nanos_of(row.timestamp / 1e3) {
                    Some(at_nanos) => Some(Ok(Line {
                        at_nanos,
                        input: row.input_length,
                        output: row.output_length,
                        blocks: row.hash_ids,
                    })),
                    None => wrong(format!(": `timestamp` {} is no time in ms", row.timestamp)),
                },
                Err(error) => {
                    let text = error.to_string();
                    let what = text.rsplit_once(" at line ").map_or(&*text, |(what, _)| what);
                    wrong(format!(", column {}: {what}; {RIGHT}", error.column()))
                }
            };
        }
    })
}
