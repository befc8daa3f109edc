//! Published traces of real services: when requests came and how long they were.

use std::io::Read;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::clock::NANOS;
use crate::traffic::error::Error;

use super::dataset::{Content, Dataset, Entry};
use super::jsonl::{Named, json, lines};

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
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// How a trace is written.
#[derive(Clone, Copy, Debug)]
pub enum Format {
    /// Mooncake's JSON lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.
    Mooncake,
    /// CSV of Azure, of 2023 (`2023-11-16 18:15:46.6805900`) or 2024 (`2024-05-10 00:00:00.009930+00:00`), or of BurstGPT,
    /// with or without sessions.
    Csv,
}

/// The columns of [`Format::Csv`]: time, tokens of the prompt, tokens of the answer; Azure's name and BurstGPT's.
const COLUMNS: [[&str; 2]; 3] = [
    ["TIMESTAMP", "Timestamp"],
    ["ContextTokens", "Request tokens"],
    ["GeneratedTokens", "Response tokens"],
];

/// Where the columns stand in a file of [`Format::Csv`], with their names there.
type Head = [(usize, String); 3];

impl Format {
    /// What is right.
    fn right(self) -> &'static str {
        match self {
            Format::Mooncake => {
                "must be JSON lines of {\"timestamp\": ms, \"input_length\", \"output_length\", \"hash_ids\": […]}"
            }
            Format::Csv => {
                "must be CSV with the columns TIMESTAMP (such as 2023-11-16 18:15:46.6805900), ContextTokens and \
                 GeneratedTokens, or Timestamp (seconds), Request tokens and Response tokens"
            }
        }
    }
}

/// Tokens of a block of Mooncake's: prompts that name the same block have the same text there.
const BLOCK_TOKENS: u64 = 512;
/// No line stands further than this behind one of a later time: what follows such a line is not read.
const DISORDER_NANOS: i64 = 60 * NANOS;
/// A trace of more requests (150 bytes each) or blocks (8 bytes each) is not held in memory.
const MOST: (usize, usize) = (5_000_000, 30_000_000);
/// No line of the published ones has more than some thousand bytes: a file of one endless line must not be held whole.
const LONGEST_LINE: u64 = 1 << 20;
/// Tokens of a prompt or an answer: a prompt is held in memory.
const MOST_TOKENS: u32 = 10_000_000;

/// Reads a trace, its requests in order of time, and says in words what of it.
///
/// # Errors
/// [`Error::Usage`] names the file, the line, the column or field, and what would be right.
pub fn read(
    format: Format,
    file: impl Read,
    named: Named<'_>,
    limits: Limits,
) -> Result<(Dataset, String), Error> {
    read_most(format, file, named, limits, MOST)
}

fn read_most(
    format: Format,
    file: impl Read,
    named: Named<'_>,
    limits: Limits,
    most: (usize, usize),
) -> Result<(Dataset, String), Error> {
    let mut lines = lines(file, named, LONGEST_LINE);
    let right = format.right();
    let wrong = |number, what: String| named.wrong_line(number, &format!("{what}; {right}"));
    let first = match format {
        Format::Csv => lines.next().transpose()?,
        Format::Mooncake => None,
    };
    let head = first.map(|(number, line)| head(&line).map_err(|what| wrong(number, what)));
    let head = head.transpose()?;
    let requests = lines.map(|line| {
        let (number, line) = line?;
        let read = match &head {
            None => mooncake(&line),
            Some(head) => cells(&line, head),
        };
        read.map_err(|what| wrong(number, what))
    });
    gather(requests, named, limits, most)
}

/// No cell of the published files holds a comma or a quote.
fn split(line: &str) -> Vec<&str> {
    line.split(',').map(str::trim).collect()
}

/// Where the columns stand, by a file's first line.
fn head(line: &str) -> Result<Head, String> {
    let found = split(line);
    let place = |names: [&str; 2]| {
        let at = found.iter().position(|name| names.contains(name));
        at.map(|at| (at, found[at].to_owned()))
            .ok_or_else(|| format!("has no column {}", names.join(" or ")))
    };
    let [time, prompt, answer] = COLUMNS.map(place);
    Ok([time?, prompt?, answer?])
}

/// A request, by its line of CSV.
fn cells(line: &str, [time, prompt, answer]: &Head) -> Result<Request, String> {
    let cells = split(line);
    let cell = |(at, name): &(usize, String)| {
        let cell = cells.get(*at).copied();
        cell.ok_or_else(|| format!("has no cell of the column {name}"))
    };
    let tokens = |column: &(usize, String)| {
        let text = cell(column)?;
        let name = &column.1;
        let wrong = |_| format!("`{name}`: `{text}` is no number of tokens");
        text.parse::<u32>().map_err(wrong)
    };
    let text = cell(time)?;
    let seconds = text.parse().ok().and_then(of_seconds);
    let at_nanos = seconds.or_else(|| of_date(text));
    let at_nanos = at_nanos.ok_or_else(|| format!("`{text}` is no time"))?;
    Request::new(at_nanos, tokens(prompt)?, tokens(answer)?, Box::default())
}

fn gather(
    lines: impl Iterator<Item = Result<Request, Error>>,
    named: Named<'_>,
    limits: Limits,
    (most_requests, most_blocks): (usize, usize),
) -> Result<(Dataset, String), Error> {
    let (mut requests, mut blocks) = (Vec::new(), 0);
    // The earliest request so far: the trace's own first may still come, so times stay as read until all are there.
    let mut earliest = None;
    let (mut left_out, mut is_whole) = (0, true);
    for request in lines {
        let request = request?;
        let at = request.at_nanos;
        let from_earliest = at.saturating_sub(earliest.unwrap_or(at));
        let beyond = limits
            .end
            .map_or(-1, |end| from_earliest.saturating_sub(end));
        if limits.count == Some(requests.len()) || beyond > DISORDER_NANOS {
            is_whole = false;
            break;
        }
        if beyond >= 0 {
            is_whole = false;
            continue;
        }
        if request.input == 0 || request.output == 0 {
            left_out += 1;
            continue;
        }
        blocks += request.blocks.len();
        if requests.len() == most_requests || blocks > most_blocks {
            return Err(named.wrong(&format!(
                    ": holds more requests than are kept in memory ({most_requests}, or {most_blocks} blocks): say how \
                     many with --num-prompts, or with --arrival trace how long with --duration"
                )));
        }
        earliest = Some(earliest.map_or(at, |earliest: i64| earliest.min(at)));
        requests.push(request);
    }
    let first =
        earliest.ok_or_else(|| named.wrong(": holds no request with a prompt and an answer"))?;
    for request in &mut requests {
        request.at_nanos = request.at_nanos.saturating_sub(first);
    }
    let read = requests.len();
    requests.retain(|request| limits.end.is_none_or(|end| request.at_nanos < end));
    requests.sort_by_key(|request| request.at_nanos);
    let part = match is_whole && requests.len() == read {
        true => "",
        false => "first ",
    };
    let mut taken = format!("its {part}{} requests", requests.len());
    if left_out > 0 {
        taken += &format!(", {left_out} without tokens left out");
    }
    let times = limits.speed.map(|speed| {
        let times = requests.iter().map(|request| request.at_nanos);
        times.map(|at| (at as f64 / speed).round() as i64).collect()
    });
    let dataset = Dataset::of(requests.into_iter().map(Request::entry));
    Ok((Dataset { times, ..dataset }, taken))
}

impl Request {
    fn new(at_nanos: i64, input: u32, output: u32, blocks: Box<[u64]>) -> Result<Request, String> {
        match input.max(output) {
            longest if longest > MOST_TOKENS => Err(format!(
                "a length of {longest} tokens; must be up to {MOST_TOKENS}"
            )),
            _ => Ok(Request {
                at_nanos,
                input,
                output,
                blocks,
            }),
        }
    }

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

fn mooncake(line: &str) -> Result<Request, String> {
    #[derive(serde::Deserialize)]
    struct Row {
        timestamp: f64,
        input_length: u32,
        output_length: u32,
        #[serde(default)]
        hash_ids: Box<[u64]>,
    }
    let row: Row = json(line)?;
    let at_nanos = of_seconds(row.timestamp / 1e3)
        .ok_or_else(|| format!("`timestamp` {} is no time in ms", row.timestamp))?;
    Request::new(at_nanos, row.input_length, row.output_length, row.hash_ids)
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
