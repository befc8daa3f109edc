//! Published traces of real services: when requests came and how long they were.

use std::io::Read;

use crate::clock::NANOS;
use crate::traffic::error::Error;

mod lines;
mod mooncake;
mod table;
mod time;

use mooncake::mooncake;
use table::{AZURE, BURST_GPT, table};

/// Whose trace it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Mooncake's JSON lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.
    Mooncake,
    /// Azure's CSV of 2023 and 2024: `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.
    Azure,
    /// BurstGPT's CSV: `Timestamp` (s), `Request tokens`, `Response tokens` and others.
    BurstGpt,
}

/// How much of a trace is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Requests.
    pub count: Option<usize>,
    /// Nanoseconds of the trace's own time from its first request.
    pub end: Option<i64>,
}

/// The requests of a trace, in order of time.
#[derive(Clone, Debug)]
pub struct Trace {
    requests: Vec<Request>,
    /// The blocks of all requests, one request's behind another's.
    blocks: Vec<u64>,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Nanoseconds from the first request.
    pub at_nanos: i64,
    /// Tokens of its prompt.
    pub input: u32,
    /// Tokens of its answer.
    pub output: u32,
    first_block: u32,
    blocks: u32,
}

/// A line of a trace.
#[derive(Debug, Default)]
struct Line {
    /// Nanoseconds from the trace's own beginning of time.
    at_nanos: i64,
    input: u32,
    output: u32,
    blocks: Vec<u64>,
}

/// Tokens of a block of Mooncake's: prompts that name the same block have the same text there.
pub const BLOCK_TOKENS: u64 = 512;

/// No line stands further than this behind one of a later time: what follows such a line is not read.
const DISORDER_NANOS: i64 = 60 * NANOS;
/// A trace of more requests (24 bytes each) or blocks (8 bytes each) is not held in memory.
const MOST: (usize, usize) = (5_000_000, 30_000_000);

impl Trace {
    /// Reads a trace, and says in words what of it.
    ///
    /// # Errors
    /// [`Error::Usage`] names the file, the line, the column or field, and what would be right.
    pub fn read(
        format: Format,
        file: impl Read,
        path: &str,
        limits: Limits,
    ) -> Result<(Trace, String), Error> {
        match format {
            Format::Mooncake => Trace::gather(mooncake(file, path), path, limits, MOST),
            Format::Azure => Trace::gather(table(&AZURE, file, path)?, path, limits, MOST),
            Format::BurstGpt => Trace::gather(table(&BURST_GPT, file, path)?, path, limits, MOST),
        }
    }

    fn gather(
        lines: impl Iterator<Item = Result<Line, Error>>,
        path: &str,
        limits: Limits,
        (most_requests, most_blocks): (usize, usize),
    ) -> Result<(Trace, String), Error> {
        let usage = |wrong: String| Err(Error::Usage(format!("--dataset-path {path}: {wrong}")));
        let mut trace = Trace {
            requests: Vec::new(),
            blocks: Vec::new(),
        };
        // The earliest request so far: the trace's own first may still come, so times stay as read until all are there.
        let (mut earliest, mut left_out) = (None, 0_u64);
        let mut is_whole = true;
        for line in lines {
            let line = line?;
            let at_nanos = line.at_nanos;
            let from_earliest = at_nanos.saturating_sub(earliest.unwrap_or(at_nanos));
            let is_enough = limits
                .count
                .is_some_and(|most| trace.requests.len() >= most);
            let beyond = limits.end.map(|end| from_earliest.saturating_sub(end));
            if is_enough || beyond.is_some_and(|beyond| beyond > DISORDER_NANOS) {
                is_whole = false;
                break;
            }
            if beyond.is_some_and(|beyond| beyond >= 0) {
                is_whole = false;
                continue;
            }
            if line.input == 0 || line.output == 0 {
                left_out += 1;
                continue;
            }
            let blocks = trace.blocks.len() + line.blocks.len();
            if trace.requests.len() == most_requests || blocks > most_blocks {
                return usage(format!(
                    "holds more requests than are kept in memory ({most_requests}, or {most_blocks} blocks): say how \
                     many with --num-prompts, or with --arrival trace how long with --duration"
                ));
            }
            earliest = Some(earliest.map_or(at_nanos, |earliest: i64| earliest.min(at_nanos)));
            trace.requests.push(Request {
                at_nanos,
                input: line.input,
                output: line.output,
                first_block: trace.blocks.len() as u32,
                blocks: line.blocks.len() as u32,
            });
            trace.blocks.extend(line.blocks);
        }
        if trace.requests.is_empty() {
            return usage("holds no request with a prompt and an answer".to_owned());
        }
        is_whole &= trace.put_in_order(limits.end);
        let mut taken = match (is_whole, trace.requests.len()) {
            (true, count) => format!("its {count} requests"),
            (false, count) => format!("its first {count} requests"),
        };
        if left_out > 0 {
            taken += &format!(", {left_out} without tokens left out");
        }
        Ok((trace, taken))
    }

    /// Lets times begin with the first request, and leaves out what is at `end` or later; whether that was nothing.
    fn put_in_order(&mut self, end: Option<i64>) -> bool {
        self.requests.sort_by_key(|request| request.at_nanos);
        let first = self.requests.first().map_or(0, |first| first.at_nanos);
        for request in &mut self.requests {
            request.at_nanos = request.at_nanos.saturating_sub(first);
        }
        let read = self.requests.len();
        self.requests
            .retain(|request| end.is_none_or(|end| request.at_nanos < end));
        self.requests.len() == read
    }

    /// How many requests there are.
    pub fn count(&self) -> usize {
        self.requests.len()
    }

    /// Request `index`; after the last comes the first again.
    pub fn request(&self, index: u64) -> Request {
        let place = index as usize % self.requests.len().max(1);
        self.requests[place]
    }

    /// The blocks that a request's prompt begins with.
    pub fn blocks(&self, request: Request) -> &[u64] {
        let first = request.first_block as usize;
        let blocks = self.blocks.get(first..first + request.blocks as usize);
        blocks.unwrap_or_default()
    }

    /// When requests are due if the trace is run `speed` times as fast as it was: nanoseconds from the first.
    pub fn offsets(&self, speed: f64) -> impl Iterator<Item = i64> {
        let times = self.requests.iter().map(|request| request.at_nanos);
        times.map(move |at| (at as f64 / speed).round() as i64)
    }
}

#[cfg(test)]
mod tests;
