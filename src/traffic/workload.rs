//! What is sent: the request bodies of a run, from a data set, for a backend.
//!
//! Pure and seeded: request `i` is a function of the seed, `i` and the workload's own settings, so a
//! longer run sends the same requests first, and neither rate nor schedule change them.

use std::sync::Arc;

use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use ring::digest;
use serde_json::{Map, Value, json};

pub mod backend;
pub mod conversation;
pub mod custom;
pub mod dataset;
pub mod records;
pub mod shared_prefix;
pub mod sharegpt;
pub mod source;
pub mod trace;
pub mod words;

use super::args::name;
use super::error::Error;
use super::plan::RunPlan;
pub use backend::Backend;
use conversation::FollowUp;
use dataset::{Content, Entry, Later, Lengths};
use source::hex;

/// Random streams of a seed from here on are those of parts that prompts share: a group's words, a block's.
const PARTS: u64 = 1 << 62;
/// The same for warm-ups, which must not put the run's parts into a cache.
const WARMUP_PARTS: u64 = PARTS | (PART_MASK + 1);
/// The bits that tell parts apart.
const PART_MASK: u64 = (1 << 61) - 1;
/// Random streams from here on are those of turns after the first (warm-ups draw from the far end).
const TURNS: u64 = 1 << 63;
/// The bits of a turn; [`conversation::MOST_TURNS`] fit.
const TURN_BITS: u32 = 10;

impl RunPlan {
    /// Checks that every entry can be sent through the backend.
    ///
    /// # Errors
    /// [`Error::Usage`] names the data set and the backend that would take it.
    pub fn check(&self) -> Result<(), Error> {
        use Backend::{OpenaiChat, Sglang, SglangOai, SglangOaiChat};
        let refused = |(at, entry): (usize, &Arc<Entry>)| match (&entry.content, self.args.backend)
        {
            (Content::Ids(_), SglangOaiChat | OpenaiChat) => Some((
                "--dataset-name random-ids (a chat has no token ids)".to_owned(),
                "--backend sglang or sglang-oai, or --dataset-name random",
            )),
            (Content::Messages(_), Sglang | SglangOai) => Some((
                format!("the `messages` of data set entry {}", at + 1),
                "--backend sglang-oai-chat or openai-chat",
            )),
            _ => None,
        };
        let mut entries = self.dataset.entries.iter().enumerate();
        let Some((what, takes)) = entries.find_map(refused) else {
            return Ok(());
        };
        let backend = name(self.args.backend);
        Err(Error::Usage(format!(
            "--backend {backend} cannot send {what}: use {takes}"
        )))
    }

    /// The JSON body of request `index` of the run.
    pub fn request(&self, index: u64) -> Bytes {
        // Stream 0 is the schedule's.
        self.draft(index, index.wrapping_add(1), PARTS)
    }

    /// The body of warm-up request `index`: drawn from the far end, so that it warms no cache for the run (but a
    /// file of prompts has only its own entries).
    pub fn warmup(&self, index: u64) -> Bytes {
        self.draft(index, u64::MAX.wrapping_sub(index), WARMUP_PARTS)
    }

    /// What request `index` will be, without its contents.
    pub fn lengths(&self, index: u64) -> Lengths {
        self.entry(index, &mut self.rng(index.wrapping_add(1))).1
    }

    /// Turns of conversation `number`; a request that stands alone is one turn.
    pub fn turns(&self, number: u64) -> usize {
        match &self.dataset.entry(number).later {
            Later::Drawn => self.most_turns,
            Later::Said(texts) => self.most_turns.min(1 + texts.len()),
        }
    }

    /// A turn of conversation `number` after the first (which is 0), if it has it.
    pub fn follow_up(&self, number: u64, turn: usize) -> Option<FollowUp> {
        if turn >= self.turns(number) {
            return None;
        }
        let nth = turn.checked_sub(1)?;
        let later = &self.dataset.entry(number).later;
        let mut rng = self.rng(TURNS | number << TURN_BITS | turn as u64);
        let think_ns = self.args.talk.think(&mut rng);
        let (text, output_length) = match later {
            Later::Said(texts) => texts.get(nth)?.clone(),
            Later::Drawn => {
                let words = self.drawn(self.args.talk.follow_up_len, &mut rng);
                let output = self.drawn(self.args.random_output_len, &mut rng);
                let mut text = String::new();
                words::append(&mut text, words, &mut rng);
                (text, output)
            }
        };
        Some(FollowUp {
            think_ns,
            text,
            output_length,
        })
    }

    /// What a turn of conversation `number` will be: of a later one, what it adds to what was said before.
    pub fn turn_lengths(&self, number: u64, turn: usize) -> Lengths {
        let mut lengths = self.lengths(number);
        if self.most_turns > 1 {
            let name = lengths.data_id;
            let name = name.unwrap_or_else(|| format!("conversation-{number}"));
            lengths.data_id = Some(format!("{name}/turn-{}", turn + 1));
        }
        if let Some(next) = self.follow_up(number, turn) {
            lengths.input = custom::words(&next.text);
            lengths.output = next.output_length;
        }
        lengths
    }

    /// SHA-256 of when all shards send what, hexadecimal: of each request its offset in nanoseconds, the length of its
    /// body, the body; and of each further turn of its conversation think time, tokens asked for, length of the text,
    /// the text (numbers of eight bytes, the lowest first). The model's name is left out: it says who answers, not what
    /// is asked.
    ///
    /// # Errors
    /// As [`RunPlan::schedule`].
    pub fn workload_sha256(&self) -> Result<String, Error> {
        let mut plan = self.clone();
        plan.args.model = None;
        let mut sum = digest::Context::new(&digest::SHA256);
        for (number, offset) in (0..).zip(self.starts()?) {
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
        Ok(hex(sum.finish().as_ref()))
    }

    fn rng(&self, stream: u64) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.args.seed);
        rng.set_stream(stream);
        rng
    }

    /// A length of `most`, or as much less as may be.
    fn drawn(&self, most: u64, rng: &mut ChaCha8Rng) -> u64 {
        rng.random_range(words::up_to(most, self.args.random_range_ratio))
    }

    /// Request `index`, and its lengths: those that it leaves open are the first that its random stream gives.
    fn entry(&self, index: u64, rng: &mut ChaCha8Rng) -> (&Entry, Lengths) {
        let input = self.drawn(self.args.random_input_len, rng);
        let output = self.drawn(self.args.random_output_len, rng);
        let entry = self.dataset.entry(index);
        let lengths = Lengths {
            input: entry.input.unwrap_or(input),
            output: entry.output.unwrap_or(output),
            data_id: entry.data_id.clone(),
        };
        (entry, lengths)
    }

    /// `stream` is the random stream of the request alone; `parts` begins those of what it shares with others.
    fn draft(&self, index: u64, stream: u64, parts: u64) -> Bytes {
        let mut rng = self.rng(stream);
        let (entry, lengths) = self.entry(index, &mut rng);
        let prompt = match &entry.content {
            Content::Words {
                shared,
                each,
                apart,
            } => {
                let mut text = String::with_capacity(lengths.input as usize * 6);
                let mut left = lengths.input;
                for part in shared {
                    let count = left.min(*each);
                    let mut part = self.rng(parts | (part & PART_MASK));
                    words::append(&mut text, count, &mut part);
                    left -= count;
                }
                if *apart {
                    let mut own = String::new();
                    words::append(&mut own, left, &mut rng);
                    text = format!("{text}\n\n{own}");
                } else {
                    words::append(&mut text, left, &mut rng);
                }
                Value::String(text)
            }
            Content::Ids(below) => json!(ids(lengths.input, *below, &mut rng)),
            Content::Text(text) => text.as_str().into(),
            Content::Messages(messages) => messages.as_slice().into(),
        };
        self.body(prompt, lengths.output)
    }

    fn body(&self, prompt: Value, output: u64) -> Bytes {
        let args = &self.args;
        let (stream, ignore_eos) = (!args.disable_stream, !args.disable_ignore_eos);
        let mut body = Map::new();
        let mut set = |key: &str, value| body.insert(key.to_owned(), value);
        match args.backend {
            Backend::Sglang => {
                let sampling = json!({
                    "temperature": 0.0, "max_new_tokens": output, "ignore_eos": ignore_eos,
                });
                set("sampling_params", sampling);
            }
            Backend::SglangOai | Backend::SglangOaiChat | Backend::OpenaiChat => {
                set("temperature", json!(0.0));
                set("max_tokens", json!(output));
                if args.backend != Backend::OpenaiChat {
                    set("ignore_eos", json!(ignore_eos));
                }
                if stream {
                    // Without it a stream never says how many tokens it brought.
                    set("stream_options", json!({"include_usage": true}));
                }
            }
        }
        let (field, value) = match (args.backend, prompt) {
            (Backend::Sglang, Value::String(text)) => ("text", text.into()),
            (Backend::Sglang, ids) => ("input_ids", ids),
            (Backend::SglangOai, prompt) => ("prompt", prompt),
            (_, Value::String(text)) => ("messages", json!([{"role": "user", "content": text}])),
            (_, messages) => ("messages", messages),
        };
        body.insert(field.to_owned(), value);
        body.insert("stream".to_owned(), Value::Bool(stream));
        if let Some(model) = &args.model {
            body.insert("model".to_owned(), Value::String(model.clone()));
        }
        if let Some(extra) = &args.extra_request_body {
            merge(&mut body, extra);
        }
        Bytes::from(Value::Object(body).to_string())
    }
}

/// Ids below `vocab`, leaving out the first ones, where vocabularies keep bytes and special tokens.
fn ids(count: u64, vocab: u32, rng: &mut ChaCha8Rng) -> Vec<u32> {
    let high = vocab.max(1);
    let low = 1000.min(high / 2);
    (0..count).map(|_| rng.random_range(low..high)).collect()
}

/// Puts `extra` over `body`; where both have an object, key by key. Null takes a key out, as in a JSON merge patch (RFC 7396).
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
