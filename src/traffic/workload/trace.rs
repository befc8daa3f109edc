//! Published traces of real services: times and lengths of requests.

use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use serde::Deserialize;

use crate::clock::NANOS;

use super::dataset::{Content, Dataset, Entry};
use super::records::Format;

/// How much of a trace is read.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of requests.
    pub count: usize,
    /// Nanoseconds from the first request, in the trace's own time.
    pub end: i64,
    /// By which factor its requests are sent faster; `None`: its times are not used.
    pub speed: Option<f64>,
}

/// A trace that is being read: JSON lines of Mooncake, or CSV of Azure, of 2023 (`2023-11-16 18:15:46.6805900`) or 2024
/// (`2024-05-10 00:00:00.009930+00:00`), or of BurstGPT, with or without sessions.
#[derive(Debug)]
pub struct Trace {
    is_csv: bool,
    limits: Limits,
    /// Each with its time, nanoseconds from the first; while the trace is read, as in the file.
    requests: Vec<(i64, Arc<Entry>)>,
    /// The time of the earliest request so far. Lines may be out of order, so times are made relative to it at the end.
    earliest: Option<i64>,
}

/// A line of a trace.
#[derive(Debug, Deserialize)]
pub struct Line {
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
const MAX_KEPT: usize = 5_000_000;
/// The longest prompt or response, in tokens. A prompt is held in memory.
const MAX_TOKENS: u32 = 10_000_000;

impl Trace {
    /// A trace to be read.
    pub fn new(is_csv: bool, limits: Limits) -> Trace {
        Trace {
            is_csv,
            limits,
            requests: Vec::new(),
            earliest: None,
        }
    }
}

impl Format for Trace {
    type Record = Line;

    fn columns(&self) -> Option<&'static [[&'static str; 2]]> {
        self.is_csv.then_some(&COLUMNS)
    }

    fn expected(&self) -> &'static str {
        match self.is_csv {
            true => {
                "must be CSV with the columns TIMESTAMP (such as 2023-11-16 18:15:46.6805900), ContextTokens and \
                 GeneratedTokens, or Timestamp (seconds), Request tokens and Response tokens"
            }
            false => {
                "must be JSON lines of {\"timestamp\": ms, \"input_length\", \"output_length\", \"hash_ids\": […]}"
            }
        }
    }

    fn add(&mut self, line: Line) -> Result<bool, String> {
        let unit = if self.is_csv { 1.0 } else { 1e3 };
        let (at, text) = match &line.timestamp {
            Time::Date(date) => (parse_date(date).filter(|_| self.is_csv), date.clone()),
            Time::Number(number) => (nanos(number / unit), format!("{number:?}")),
        };
        let at = at.ok_or_else(|| format!("`{text}` is no time"))?;
        let (input, output) = (line.input_length, line.output_length);
        let longest = input.max(output);
        if longest > MAX_TOKENS {
            return Err(format!(
                "a length of {longest} tokens; must be up to {MAX_TOKENS}"
            ));
        }
        let earliest = self.earliest.map_or(at, |earliest| earliest.min(at));
        let (passed, limits) = (at.saturating_sub(earliest), self.limits);
        let is_late = passed.saturating_sub(limits.end) > DISORDER_NANOS;
        if is_late || self.requests.len() == limits.count {
            return Ok(false);
        }
        if passed >= limits.end || input == 0 || output == 0 {
            return Ok(true);
        }
        if self.requests.len() == MAX_KEPT {
            return Err(format!(
                "holds more than {MAX_KEPT} requests: say how many with --num-prompts, or with --arrival trace how long with \
                 --duration"
            ));
        }
        self.earliest = Some(earliest);
        let content = Content::Words {
            shared_parts: line.hash_ids,
            words_per_part: BLOCK_TOKENS,
            has_own_paragraph: false,
        };
        let entry = Entry {
            input: Some(input.into()),
            output: Some(output.into()),
            ..Entry::random(content)
        };
        self.requests.push((at, Arc::new(entry)));
        Ok(true)
    }

    /// Sorts the requests by time.
    fn finish(self) -> Result<Dataset, String> {
        let empty = "holds no request with a prompt and an answer";
        let (first, limits) = (self.earliest.ok_or(empty)?, self.limits);
        let mut requests = self.requests;
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
mod tests;
