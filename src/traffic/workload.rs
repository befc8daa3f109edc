//! The workload: the request bodies of a run, from a data set, for a backend.
//!
//! Pure and seeded: request `i` is a function of the seed, `i` and the workload's settings, so a longer run begins with the requests
//! of a shorter one, and neither rate nor schedule changes them.

use std::ops::RangeInclusive;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1};
use ring::digest;
use serde_json::{Map, Value, json};

pub mod dataset;
pub mod formats;
pub mod records;
pub mod source;

use super::args::Backend;
use super::args::values::value_name;
use super::plan::RunPlan;
use crate::clock::NANOS;
use crate::error::Error;
use crate::request::Endpoint;
use dataset::{Content, Entry, LaterTurns, Lengths};
use source::hex;

/// A turn after the first.
#[derive(Clone, Debug, PartialEq)]
pub struct FollowUp {
    /// The think time: nanoseconds from the end of the reply before it.
    pub think_ns: i64,
    /// The user's message.
    pub text: String,
    /// Tokens to ask for.
    pub output_length: u64,
}

/// Short common words, each of which is one token for most tokenizers.
static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let words = include_str!("workload/words.txt");
    words.split_ascii_whitespace().collect()
});

/// The first random stream of the parts that prompts share: the words of a group, or of a trace's block.
const PART_STREAMS: u64 = 1 << 62;
/// The same for warm-up requests, which must not bring the run's parts into a prefix cache.
const WARMUP_PART_STREAMS: u64 = PART_STREAMS | (PART_MASK + 1);
/// The bits of a stream that number the parts.
const PART_MASK: u64 = (1 << 61) - 1;
/// The first random stream of later turns. (Warm-up requests use the streams from the highest one down.)
const TURN_STREAMS: u64 = 1 << 63;
/// The bits of a stream that number the turns of a conversation; enough for `MAX_TURNS` of `args.rs`.
const TURN_BITS: u32 = 10;

impl RunPlan {
    /// Checks that the backend can send every entry.
    ///
    /// # Errors
    /// [`Error::usage`] names what it cannot send, and the backends that can.
    pub fn check(&self) -> Result<(), Error> {
        let backend = self.args.backend;
        let is_chat = backend.endpoint() == Endpoint::Chat;
        let refused = |(index, entry): (usize, &Arc<Entry>)| match entry.content {
            Content::Ids(_) if is_chat => Some((
                "--dataset-name random-ids (a chat has no token ids)".to_owned(),
                "--backend sglang or sglang-oai, or --dataset-name random",
            )),
            Content::Messages(_) if !is_chat => Some((
                format!("the `messages` of data set entry {}", index + 1),
                "--backend sglang-oai-chat or openai-chat",
            )),
            _ => None,
        };
        let mut entries = self.dataset.entries.iter().enumerate();
        let Some((content, hint)) = entries.find_map(refused) else {
            return Ok(());
        };
        let backend = value_name(backend);
        Err(Error::usage(format!(
            "--backend {backend} cannot send {content}: use {hint}"
        )))
    }

    /// Builds the JSON body of request (or first turn of conversation) `number`.
    pub fn request(&self, number: u64) -> Bytes {
        let (prompt, output) = self.prompt(number);
        self.body(prompt, output)
    }

    /// Draws the prompt of request (or first turn of conversation) `number`: a text, token ids, or the messages of a chat. Also
    /// returns the tokens to ask for.
    pub fn prompt(&self, number: u64) -> (Value, u64) {
        // Stream 0 is the schedule's.
        self.draw_prompt(number, number + 1, PART_STREAMS)
    }

    /// Builds the body of warm-up request `number`. Its random words differ from the run's, so that it warms no prefix cache; prompts
    /// of a file are the same.
    pub fn warmup(&self, number: u64) -> Bytes {
        let stream = u64::MAX - number;
        let (prompt, output) = self.draw_prompt(number, stream, WARMUP_PART_STREAMS);
        self.body(prompt, output)
    }

    /// The number of turns of conversation `number`; 1 for a single request.
    pub fn turns(&self, number: u64) -> usize {
        match &self.dataset.entry(number).later {
            LaterTurns::Random => self.max_turns,
            LaterTurns::Given(texts) => self.max_turns.min(1 + texts.len()),
        }
    }

    /// Returns a later turn of conversation `number` (the first is 0); `None` if it has fewer.
    pub fn follow_up(&self, number: u64, turn: usize) -> Option<FollowUp> {
        let index = turn.checked_sub(1).filter(|_| turn < self.turns(number))?;
        let later = &self.dataset.entry(number).later;
        let mut rng = self.rng(TURN_STREAMS | number << TURN_BITS | turn as u64);
        let factor: f64 = Exp1.sample(&mut rng);
        let think = self.args.conversation.think_time_s.as_secs_f64() * factor;
        let (text, output_length) = match later {
            LaterTurns::Given(texts) => texts.get(index)?.clone(),
            LaterTurns::Random => {
                let words = self.draw_length(self.args.conversation.follow_up_len, &mut rng);
                let output = self.draw_length(self.args.random_output_len, &mut rng);
                let mut text = String::new();
                append_words(&mut text, words, &mut rng);
                (text, output)
            }
        };
        Some(FollowUp {
            think_ns: (think * NANOS as f64).round() as i64,
            text,
            output_length,
        })
    }

    /// Returns the lengths of a turn of conversation `number`; of a later turn, without the turns and replies before it.
    pub fn lengths(&self, number: u64, turn: usize) -> Lengths {
        let (_, mut lengths) = self.entry(number, &mut self.rng(number + 1));
        if let Some(next) = self.follow_up(number, turn) {
            lengths.input = formats::count_words(&next.text);
            lengths.output = next.output_length;
        }
        lengths
    }

    /// Computes the SHA-256 of the load of all shards, hexadecimal. Of each request it covers the offset in nanoseconds, the length of
    /// the body, and the body; of each later turn the think time, the requested tokens, the length of the text, and the text (all
    /// numbers in eight bytes, little endian). The model's name is left out: it is no property of the load.
    pub fn workload_sha256(&self) -> String {
        let mut plan = self.clone();
        plan.args.model = None;
        let mut sum = digest::Context::new(&digest::SHA256);
        for (number, offset) in (0..).zip(&*self.offsets) {
            let body = plan.request(number);
            sum.update(&offset.to_le_bytes());
            sum.update(&(body.len() as u64).to_le_bytes());
            sum.update(&body);
            for next in (1..).map_while(|turn| plan.follow_up(number, turn)) {
                sum.update(&next.think_ns.to_le_bytes());
                sum.update(&next.output_length.to_le_bytes());
                sum.update(&(next.text.len() as u64).to_le_bytes());
                sum.update(next.text.as_bytes());
            }
        }
        hex(sum.finish().as_ref())
    }

    /// The random stream `stream` of the run's seed.
    fn rng(&self, stream: u64) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.args.seed);
        rng.set_stream(stream);
        rng
    }

    /// Draws a length of at most `max`; `--random-range-ratio` gives the minimum.
    fn draw_length(&self, max: u64, rng: &mut ChaCha8Rng) -> u64 {
        rng.random_range(length_range(max, self.args.random_range_ratio))
    }

    /// Returns the entry of request `number`, and its lengths; those that the entry does not set are drawn, before anything else.
    fn entry(&self, number: u64, rng: &mut ChaCha8Rng) -> (&Entry, Lengths) {
        let input = self.draw_length(self.args.random_input_len, rng);
        let output = self.draw_length(self.args.random_output_len, rng);
        let entry = self.dataset.entry(number);
        let lengths = Lengths {
            input: entry.input.unwrap_or(input),
            output: entry.output.unwrap_or(output),
            data_id: entry.data_id.clone(),
        };
        (entry, lengths)
    }

    /// Draws a prompt. `stream` is the request's own random stream, `part_streams` the first of those of shared parts.
    fn draw_prompt(&self, number: u64, stream: u64, part_streams: u64) -> (Value, u64) {
        let mut rng = self.rng(stream);
        let (entry, lengths) = self.entry(number, &mut rng);
        let text = match &entry.content {
            Content::Words {
                shared_parts,
                words_per_part,
                has_own_paragraph,
            } => {
                let mut text = String::with_capacity(lengths.input as usize * 6);
                let mut left = lengths.input;
                for part in shared_parts {
                    let count = left.min(*words_per_part);
                    let mut part_rng = self.rng(part_streams | (part & PART_MASK));
                    append_words(&mut text, count, &mut part_rng);
                    left -= count;
                }
                if *has_own_paragraph {
                    text.push_str("\n\n");
                }
                append_words(&mut text, left, &mut rng);
                text
            }
            Content::Ids(vocabulary) => {
                let ids = ids(lengths.input, *vocabulary, &mut rng);
                return (json!(ids), lengths.output);
            }
            Content::Text(text) => text.clone(),
            Content::Messages(messages) => return (json!(messages), lengths.output),
        };
        let prompt = match self.args.backend.endpoint() {
            Endpoint::Chat => json!([{"role": "user", "content": text}]),
            _ => Value::String(text),
        };
        (prompt, lengths.output)
    }

    /// Wraps a prompt into the body of the backend's API, which asks for `output` tokens.
    pub fn body(&self, prompt: Value, output: u64) -> Bytes {
        let args = &self.args;
        let (stream, ignore_eos) = (!args.disable_stream, !args.disable_ignore_eos);
        let mut body = match args.backend {
            Backend::Sglang => json!({"sampling_params": {
                "temperature": 0.0, "max_new_tokens": output, "ignore_eos": ignore_eos,
            }}),
            _ => json!({"temperature": 0.0, "max_tokens": output}),
        };
        if let Backend::SglangOai | Backend::SglangOaiChat = args.backend {
            body["ignore_eos"] = json!(ignore_eos);
        }
        if stream && args.backend != Backend::Sglang {
            // Without it a stream does not report its number of tokens.
            body["stream_options"] = json!({"include_usage": true});
        }
        let field = match args.backend {
            Backend::Sglang if prompt.is_string() => "text",
            Backend::Sglang => "input_ids",
            Backend::SglangOai => "prompt",
            Backend::SglangOaiChat | Backend::OpenaiChat => "messages",
        };
        body[field] = prompt;
        body["stream"] = json!(stream);
        if let Some(model) = &args.model {
            body["model"] = json!(model);
        }
        if let Some((body, extra)) = body.as_object_mut().zip(args.extra_request_body.as_ref()) {
            merge(body, extra);
        }
        Bytes::from(body.to_string())
    }
}

impl FollowUp {
    /// Appends a reply and this turn to a prompt: to the messages of a chat, or to a text.
    pub fn append_to(&self, prompt: &mut Value, reply: &str) {
        match prompt {
            Value::Array(messages) => messages.extend([
                json!({"role": "assistant", "content": reply}),
                json!({"role": "user", "content": self.text}),
            ]),
            Value::String(text) => text.extend([reply, "\n\n", &self.text]),
            _ => {}
        }
    }
}

/// Appends `count` words to a text, each after a blank but at the beginning of a paragraph.
fn append_words(text: &mut String, count: u64, rng: &mut ChaCha8Rng) {
    for _ in 0..count {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push(' ');
        }
        text.push_str(WORDS[rng.random_range(0..WORDS.len())]);
    }
}

/// Returns the range of uniformly drawn lengths, as in SGLang's bench_serving: from `ratio` × `max` (rounded down, at least 1) to
/// `max`. A `max` of 0 counts as 1; a ratio outside of 0 to 1 as the nearer of them.
fn length_range(max: u64, ratio: f64) -> RangeInclusive<u64> {
    let high = max.max(1);
    let low = (max as f64 * ratio) as u64;
    low.clamp(1, high)..=high
}

/// Draws token ids below `vocabulary`, without the first ones, which are mostly bytes and special tokens.
fn ids(count: u64, vocabulary: u32, rng: &mut ChaCha8Rng) -> Vec<u32> {
    let high = vocabulary.max(1);
    let low = 1000.min(high / 2);
    (0..count).map(|_| rng.random_range(low..high)).collect()
}

/// Merges `extra` into `body` as a JSON merge patch (RFC 7396): objects key by key, null removes a key.
fn merge(body: &mut Map<String, Value>, extra: &Map<String, Value>) {
    for (key, value) in extra {
        match (body.get_mut(key), value) {
            (Some(Value::Object(ours)), Value::Object(theirs)) => merge(ours, theirs),
            (_, Value::Null) => {
                body.remove(key);
            }
            _ => {
                body.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
