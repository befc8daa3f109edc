//! Published traces of real services: when requests came and how long they were.

use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use serde::Deserialize;

use crate::clock::NANOS;

use super::dataset::{Content, Dataset, Entry};
use super::records::Format;

/// How much of a trace is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Requests.
    pub count: Option<usize>,
    /// Nanoseconds of the trace's own time from its first request.
    pub end: Option<i64>,
    /// How many times as fast as they were its requests are sent; `None`: not at its times.
    pub speed: Option<f64>,
}

/// One request.
#[derive(Debug)]
struct Request {
    /// Nanoseconds from the first request; while it is read, from the trace's own beginning of time.
    at_nanos: i64,
    /// Tokens of its prompt.
    input: u32,
    /// Tokens of its answer.
    output: u32,
    /// The blocks that its prompt begins with.
    blocks: Box<[u64]>,
}

/// A trace that is read: Mooncake's JSON lines, or CSV of Azure, of 2023 (`2023-11-16 18:15:46.6805900`) or 2024
/// (`2024-05-10 00:00:00.009930+00:00`), or of BurstGPT, with or without sessions.
#[derive(Debug, Default)]
pub struct Trace {
    is_csv: bool,
    limits: Limits,
    /// Of so many requests (150 bytes each) or blocks (8 bytes each) at most: more is not held in memory.
    most: (usize, usize),
    requests: Vec<Request>,
    blocks: usize,
    /// The earliest request so far: the trace's own first may still come, so times stay as read until all are there.
    earliest: Option<i64>,
    left_out: usize,
    is_part: bool,
    is_too_long: bool,
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

/// When a request came.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a time must be a number, or in CSV a date")]
enum Time {
    /// JSON: milliseconds. CSV: seconds.
    Number(f64),
    Date(String),
}

/// The columns of CSV, Azure's name and BurstGPT's.
const COLUMNS: [[&str; 2]; 3] = [
    ["TIMESTAMP", "Timestamp"],
    ["ContextTokens", "Request tokens"],
    ["GeneratedTokens", "Response tokens"],
];

/// Tokens of a block of Mooncake's: prompts that name the same block have the same text there.
const BLOCK_TOKENS: u64 = 512;
/// No line stands further than this behind one of a later time: what follows such a line is not read.
const DISORDER_NANOS: i64 = 60 * NANOS;
/// Requests and blocks.
const MOST: (usize, usize) = (5_000_000, 30_000_000);
/// Tokens of a prompt or an answer: a prompt is held in memory.
const MOST_TOKENS: u32 = 10_000_000;

impl Trace {
    /// Of a file that is to be read.
    pub fn new(is_csv: bool, limits: Limits) -> Trace {
        Trace {
            is_csv,
            limits,
            most: MOST,
            ..Trace::default()
        }
    }
}

impl Format for Trace {
    type Record = Line;

    fn columns(&self) -> Option<&'static [[&'static str; 2]]> {
        self.is_csv.then_some(&COLUMNS)
    }

    fn right(&self) -> &'static str {
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

    fn take(&mut self, line: Line) -> Result<bool, String> {
        let unit = if self.is_csv { 1.0 } else { 1e3 };
        let at = match &line.timestamp {
            Time::Date(date) => of_date(date).filter(|_| self.is_csv),
            Time::Number(number) => of_seconds(number / unit),
        };
        let no_time = || match &line.timestamp {
            Time::Date(date) => format!("`{date}` is no time"),
            Time::Number(number) => format!("`{number:?}` is no time"),
        };
        let request = Request {
            at_nanos: at.ok_or_else(no_time)?,
            input: line.input_length,
            output: line.output_length,
            blocks: line.hash_ids,
        };
        let longest = request.input.max(request.output);
        if longest > MOST_TOKENS {
            return Err(format!(
                "a length of {longest} tokens; must be up to {MOST_TOKENS}"
            ));
        }
        let (at, limits) = (request.at_nanos, self.limits);
        let from_earliest = at.saturating_sub(self.earliest.unwrap_or(at));
        let beyond = limits
            .end
            .map_or(-1, |end| from_earliest.saturating_sub(end));
        let is_over = limits.count == Some(self.requests.len()) || beyond > DISORDER_NANOS;
        if is_over || beyond >= 0 {
            self.is_part = true;
            return Ok(!is_over);
        }
        if request.input == 0 || request.output == 0 {
            self.left_out += 1;
            return Ok(true);
        }
        self.blocks += request.blocks.len();
        self.is_too_long = self.requests.len() == self.most.0 || self.blocks > self.most.1;
        self.earliest = Some(self.earliest.map_or(at, |earliest| earliest.min(at)));
        self.requests.push(request);
        Ok(!self.is_too_long)
    }

    /// Its requests in order of time.
    fn finish(self) -> Result<(Dataset, String), String> {
        if self.is_too_long {
            let (requests, blocks) = self.most;
            return Err(format!(
                "holds more requests than are kept in memory ({requests}, or {blocks} blocks): say how many with \
                 --num-prompts, or with --arrival trace how long with --duration"
            ));
        }
        let none = "holds no request with a prompt and an answer";
        let (first, limits) = (self.earliest.ok_or(none)?, self.limits);
        let mut requests = self.requests;
        for request in &mut requests {
            request.at_nanos = request.at_nanos.saturating_sub(first);
        }
        let read = requests.len();
        requests.retain(|request| limits.end.is_none_or(|end| request.at_nanos < end));
        requests.sort_by_key(|request| request.at_nanos);
        let part = match self.is_part || requests.len() < read {
            true => "first ",
            false => "",
        };
        let mut taken = format!("its {part}{} requests", requests.len());
        if self.left_out > 0 {
            taken += &format!(", {} without tokens left out", self.left_out);
        }
        let times = limits.speed.map(|speed| {
            let times = requests.iter().map(|request| request.at_nanos);
            times.map(|at| (at as f64 / speed).round() as i64).collect()
        });
        let dataset = Dataset::of(requests.into_iter().map(Request::entry));
        Ok((Dataset { times, ..dataset }, taken))
    }
}

impl Request {
    fn entry(self) -> Arc<Entry> {
        let content = Content::Words {
            shared: self.blocks,
            each: BLOCK_TOKENS,
            apart: false,
        };
        Arc::new(Entry {
            input: Some(self.input.into()),
            output: Some(self.output.into()),
            ..Entry::drawn(content)
        })
    }
}

/// Nanoseconds, if it is a time at all.
fn of_seconds(seconds: f64) -> Option<i64> {
    // A century: far from what would overflow in a sum.
    let nanos = seconds * NANOS as f64;
    (nanos.abs() < 4e18).then_some(nanos.round() as i64)
}

/// Nanoseconds since the Unix epoch; a date without an offset is taken for UTC.
fn of_date(text: &str) -> Option<i64> {
    let time = text.parse::<Timestamp>().ok().or_else(|| {
        let date = text.parse::<DateTime>().ok()?;
        TimeZone::UTC.to_timestamp(date).ok()
    })?;
    i64::try_from(time.as_nanosecond()).ok()
}

#[cfg(test)]
mod tests;
