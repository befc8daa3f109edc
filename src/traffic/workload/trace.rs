//! Published traces of real services: times and lengths of requests.

use std::io::BufRead;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use serde::Deserialize;

use crate::clock::NANOS;

use super::dataset::{Content, Dataset, Entry};
use super::records;

/// How much of a trace is read.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of requests.
    pub count: usize,
    /// Nanoseconds from the first request, in the trace's own time.
    pub end: i64,
    /// The most requests that are kept in memory; more are an error.
    pub kept: usize,
    /// By which factor its requests are sent faster; `None`: its times are not used.
    pub speed: Option<f64>,
}

/// A line of a trace.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(alias = "TIMESTAMP", alias = "Timestamp")]
    timestamp: Time,
    #[serde(alias = "ContextTokens", alias = "Request tokens")]
    input_length: u32,
    #[serde(alias = "GeneratedTokens", alias = "Response tokens")]
    output_length: u32,
    #[serde(default)]
    hash_ids: Box<[u64]>,
}

/// The time of a request.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a time must be a number, or in CSV a date")]
enum Time {
    /// JSON: milliseconds. CSV: seconds.
    Number(f64),
    Date(String),
}

/// The columns of CSV: Azure's name and BurstGPT's.
const COLUMNS: [[&str; 2]; 3] = [
    ["TIMESTAMP", "Timestamp"],
    ["ContextTokens", "Request tokens"],
    ["GeneratedTokens", "Response tokens"],
];

/// Tokens of a block of Mooncake's. Prompts with the same block have the same text there.
const BLOCK_TOKENS: u64 = 512;
/// How far lines may be out of order. Reading ends at a line that is later than the limit by more than this.
const DISORDER_NANOS: i64 = 60 * NANOS;
/// The limit of requests, which are kept in memory.
pub const MAX_KEPT: usize = 5_000_000;
/// The longest prompt or response, in tokens. A prompt is held in memory.
const MAX_TOKENS: u32 = 10_000_000;

/// Reads a trace: JSON lines of Mooncake, or CSV of Azure, of 2023 (`2023-11-16 18:15:46.6805900`) or 2024
/// (`2024-05-10 00:00:00.009930+00:00`), or of BurstGPT, with or without sessions.
///
/// # Errors
/// What is wrong with the file, and where; to be appended to its name.
pub fn read(file: impl BufRead, is_csv: bool, limits: Limits) -> Result<Dataset, String> {
    let (columns, expected): (&[_], _) = match is_csv {
        true => (
            &COLUMNS,
            "must be CSV with the columns TIMESTAMP (such as 2023-11-16 18:15:46.6805900), ContextTokens and \
             GeneratedTokens, or Timestamp (seconds), Request tokens and Response tokens",
        ),
        false => (
            &[],
            "must be JSON lines of {\"timestamp\": ms, \"input_length\", \"output_length\", \"hash_ids\": […]}",
        ),
    };
    let mut requests = Vec::new();
    // Lines may be out of order, so times are made relative to the earliest at the end.
    let mut earliest = None;
    records::read(file, columns, expected, |line: Line| {
        let at = line.checked_time(is_csv)?;
        let first = at.min(earliest.unwrap_or(at));
        let passed = at.saturating_sub(first);
        let is_over = passed.saturating_sub(limits.end) > DISORDER_NANOS;
        if is_over || requests.len() == limits.count {
            return Ok(false);
        }
        if passed >= limits.end || line.input_length == 0 || line.output_length == 0 {
            return Ok(true);
        }
        if requests.len() == limits.kept {
            return Err(format!(
                "holds more than {} requests: say how many with --num-prompts, or with --arrival trace how long with \
                 --duration",
                limits.kept
            ));
        }
        earliest = Some(first);
        requests.push((at, Arc::new(line.entry())));
        Ok(true)
    })?;
    let first = earliest.ok_or(": holds no request with a prompt and an answer")?;
    for (at, _) in &mut requests {
        *at = at.saturating_sub(first);
    }
    requests.retain(|(at, _)| *at < limits.end);
    requests.sort_by_key(|(at, _)| *at);
    let times = limits.speed.map(|speed| {
        let times = requests.iter().map(|(at, _)| *at as f64 / speed);
        times.map(|at| at.round() as i64).collect()
    });
    let dataset = Dataset::of(requests.into_iter().map(|(_, entry)| entry));
    Ok(Dataset { times, ..dataset })
}

impl Line {
    /// Its time in nanoseconds, if its lengths are possible too.
    fn checked_time(&self, is_csv: bool) -> Result<i64, String> {
        let unit = if is_csv { 1.0 } else { 1e3 };
        let (at, text) = match &self.timestamp {
            Time::Date(date) => (parse_date(date).filter(|_| is_csv), date.clone()),
            Time::Number(number) => (nanos(number / unit), format!("{number:?}")),
        };
        let at = at.ok_or_else(|| format!("`{text}` is no time"))?;
        match self.input_length.max(self.output_length) {
            0..=MAX_TOKENS => Ok(at),
            longest => Err(format!(
                "a length of {longest} tokens; must be up to {MAX_TOKENS}"
            )),
        }
    }

    fn entry(self) -> Entry {
        let content = Content::Words {
            shared_parts: self.hash_ids,
            words_per_part: BLOCK_TOKENS,
            has_own_paragraph: false,
        };
        Entry {
            input: Some(self.input_length.into()),
            output: Some(self.output_length.into()),
            ..Entry::random(content)
        }
    }
}

/// Converts seconds to nanoseconds; `None` if they are no time.
fn nanos(seconds: f64) -> Option<i64> {
    // More than a century; sums of such times cannot overflow.
    let nanos = seconds * NANOS as f64;
    (nanos.abs() < 4e18).then_some(nanos.round() as i64)
}

/// Parses a date into nanoseconds since the Unix epoch. A date without an offset is UTC.
fn parse_date(text: &str) -> Option<i64> {
    let time = text.parse::<Timestamp>().ok().or_else(|| {
        let date = text.parse::<DateTime>().ok()?;
        TimeZone::UTC.to_timestamp(date).ok()
    })?;
    i64::try_from(time.as_nanosecond()).ok()
}

#[cfg(test)]
pub(super) mod tests;
