//! The formats of files of data sets: the user's own, ShareGPT, and published traces of real services (times and lengths of requests).

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use serde_json::Value;

use crate::clock::NANOS;
use crate::traffic::args::SharegptArgs;

use super::dataset::{Content, Dataset, Entry, LaterTurns};
use super::records;

/// An entry of a file of the user's own.
#[derive(Debug, Deserialize)]
struct Prompt {
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    completion: Option<String>,
    #[serde(default)]
    id: Value,
}

/// A conversation of ShareGPT.
#[derive(Debug, Deserialize)]
struct Conversation {
    #[serde(default)]
    id: Value,
    #[serde(default, alias = "conversation")]
    conversations: Vec<Turn>,
}

#[derive(Debug, Deserialize)]
struct Turn {
    #[serde(default)]
    value: Value,
}

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

/// What a file of the user's own must be.
const CUSTOM: &str =
    "must be a JSON array or JSON lines of {\"prompt\", \"completion\", \"id\"} or {\"messages\"}";

/// The random stream of the sample; the schedule and the requests use others.
const SAMPLE_STREAM: u64 = 1 << 60;
/// Shorter prompts and replies are left out, as in SGLang's benchmark.
const MIN_TOKENS: u64 = 2;

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

/// Reads the user's own data set: a JSON array or JSON lines of `{"prompt": "…", "completion": "…", "id": "…"}` or
/// `{"messages": […]}`.
///
/// # Errors
/// What is wrong with it, and where; to be appended to its name.
pub fn read_custom(file: impl BufRead) -> Result<Dataset, String> {
    let mut entries = Vec::new();
    records::read(file, &[], CUSTOM, |line: Prompt| {
        let messages = line.messages.filter(|messages| !messages.is_empty());
        let (input, content) = match (line.prompt, messages) {
            (None, None) => return Err("has neither `prompt` nor `messages`".to_owned()),
            (Some(_), Some(_)) => return Err("has both `prompt` and `messages`".to_owned()),
            (None, Some(messages)) => {
                let words = messages.iter().map(words_of).sum();
                (words, Content::Messages(messages))
            }
            (Some(prompt), _) if prompt.trim().is_empty() => {
                return Err("`prompt` must not be empty".to_owned());
            }
            (Some(prompt), _) => (count_words(&prompt), Content::Text(prompt)),
        };
        entries.push(Arc::new(Entry {
            input: Some(input),
            output: line.completion.map(|text| count_words(&text).max(1)),
            data_id: id(line.id),
            ..Entry::random(content)
        }));
        Ok(true)
    })?;
    match entries.is_empty() {
        true => Err(format!(": holds no entries; {CUSTOM}")),
        false => Ok(Dataset::of(entries)),
    }
}

/// The id of an entry as a text; `None` if it has none.
fn id(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    }
}

/// Counts the words of a message of a chat. What else it holds is the server's to judge.
fn words_of(message: &Value) -> u64 {
    match &message["content"] {
        Value::String(text) => count_words(text),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.map(count_words).sum()
        }
        _ => 0,
    }
}

/// Counts the words of a text as rows do: they are separated by ASCII white space.
pub(super) fn count_words(text: &str) -> u64 {
    text.split_ascii_whitespace().count() as u64
}

/// Reads a random sample of ShareGPT's conversations, as in SGLang's benchmark: the first turn is the prompt, the length of the
/// second is the number of tokens to ask for. With several turns, the user's are sent, and the lengths of the replies are the
/// numbers of tokens.
///
/// The file of 670 MB is read once, one entry at a time; only the sample is kept in memory: the `count` conversations with the lowest
/// random numbers, in that order, with up to `max_turns` turns of the user. So a larger sample of the same seed begins with a smaller
/// one.
///
/// # Errors
/// What is wrong with the file, and where; to be appended to its name.
pub fn read_sharegpt(
    file: impl BufRead,
    lengths: &SharegptArgs,
    count: usize,
    max_turns: usize,
    seed: u64,
) -> Result<Dataset, String> {
    const EXPECTED: &str =
        "must be a JSON list of {\"id\", \"conversations\": [{\"from\", \"value\"}, …]}";
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(SAMPLE_STREAM);
    // The sample, by random number and index in the file.
    let (mut drawn, mut index) = (BTreeMap::new(), 0_u64);
    records::read(file, &[], EXPECTED, |conversation| {
        // Every conversation gets a number, so that those left out do not change the others' numbers.
        let rank = (rng.next_u64(), index);
        index += 1;
        if let Some(entry) = lengths.entry(conversation, max_turns) {
            drawn.insert(rank, Arc::new(entry));
        }
        if drawn.len() > count {
            drawn.pop_last();
        }
        Ok(true)
    })?;
    match drawn.is_empty() {
        true => Err(format!(
            ": none of its {index} conversations can be sent: one must have two turns, each of {MIN_TOKENS} tokens or \
             more, and fit --sharegpt-context-len"
        )),
        false => Ok(Dataset::of(drawn.into_values())),
    }
}

/// Estimates the number of tokens of a text, without a tokenizer: four bytes are one token.
fn estimated_tokens(text: &str) -> u64 {
    (text.len() as u64).div_ceil(4)
}

impl SharegptArgs {
    /// Returns the turns of a conversation up to the first that cannot be sent; `None` if that is the first turn.
    fn entry(&self, conversation: Conversation, max_turns: usize) -> Option<Entry> {
        let mut context = 0;
        let (pairs, _) = conversation.conversations.as_chunks();
        let turns = pairs.iter().take(max_turns);
        let mut turns = turns.map_while(|[prompt, reply]| {
            let (prompt, reply) = (prompt.value.as_str()?, reply.value.as_str()?);
            let input = estimated_tokens(prompt);
            let output = self.sharegpt_output_len;
            let output = output.unwrap_or(estimated_tokens(reply));
            context += input + output;
            let is_long_enough = input >= MIN_TOKENS && output >= MIN_TOKENS;
            let max = self.sharegpt_context_len;
            (is_long_enough && max.is_none_or(|max| context <= max))
                .then(|| (prompt.to_owned(), output))
        });
        let (text, output) = turns.next()?;
        Some(Entry {
            input: Some(count_words(&text)),
            output: Some(output),
            data_id: id(conversation.id),
            content: Content::Text(text),
            later: LaterTurns::Given(turns.collect()),
        })
    }
}

/// Reads a trace: JSON lines of Mooncake, or CSV of Azure, of 2023 (`2023-11-16 18:15:46.6805900`) or 2024
/// (`2024-05-10 00:00:00.009930+00:00`), or of BurstGPT, with or without sessions.
///
/// # Errors
/// What is wrong with the file, and where; to be appended to its name.
pub fn read_trace(file: impl BufRead, is_csv: bool, limits: Limits) -> Result<Dataset, String> {
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
