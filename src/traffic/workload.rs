//! What is sent: the request bodies of a run, from a data set, for a backend.
//!
//! Pure and seeded: request `i` is a function of the seed, `i` and the workload's own settings, so a
//! longer run sends the same requests first, and neither rate nor schedule change them.

use std::sync::Arc;

use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

use crate::request::endpoint::Endpoint;

pub mod conversation;
pub mod custom;
mod lengths;
pub mod shared_prefix;
pub mod sharegpt;
pub mod source;
pub mod stored;
pub mod trace;
mod words;

use super::error::Error;
use conversation::{FollowUp, Talks};
use custom::{Content, Entry};
pub use lengths::LengthRange;
use shared_prefix::SharedPrefix;
use stored::Stored;
use trace::{BLOCK_TOKENS, Trace};

/// Which API a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// SGLang's own `/generate`.
    Sglang,
    /// OpenAI's `/v1/completions`.
    SglangOai,
    /// OpenAI's `/v1/chat/completions`.
    SglangOaiChat,
    /// OpenAI's `/v1/responses`: for probes.
    #[value(skip)]
    Responses,
    /// Anthropic's `/v1/messages`: for probes.
    #[value(skip)]
    Messages,
}

/// Where prompts come from.
#[derive(Clone, Debug)]
pub enum Dataset {
    /// Random English words; `input_length` is their number (a word is about one token).
    Random,
    /// Random token ids: exact token counts without a tokenizer.
    RandomIds {
        /// Ids are below this.
        vocab_size: u32,
    },
    /// Prompts of a file, in order, from the start again when they run out.
    Entries(Vec<Entry>),
    /// Groups of random words that begin alike.
    SharedPrefix(SharedPrefix),
    /// The lengths of a trace, in random words; where it names blocks, the same block has the same words.
    Trace(Trace),
    /// Bodies as they were stored.
    Stored(Arc<Stored>),
}

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

/// What all bodies of a run share.
#[derive(Clone, Debug)]
pub struct BodyOptions {
    /// Ask for a stream of events.
    pub stream: bool,
    /// Ask the engine to go on past an end-of-sequence token, so that output lengths are exact.
    pub ignore_eos: bool,
    /// The `model` field; the OpenAI endpoints want one.
    pub model: Option<String>,
    /// Merged into every body, objects key by key, at the end.
    pub extra: Map<String, Value>,
}

/// The requests of a run.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The API spoken.
    pub backend: Backend,
    /// Where prompts come from.
    pub dataset: Dataset,
    /// Length of a random prompt.
    pub input: LengthRange,
    /// Tokens asked for, where the data set does not say.
    pub output: LengthRange,
    /// Seed of lengths and contents.
    pub seed: u64,
    /// What all bodies share.
    pub options: BodyOptions,
    /// What conversations are like; `None`: every request stands alone (or what is stored says so itself).
    pub talks: Option<Talks>,
}

/// What a request will be.
#[derive(Clone, Debug, PartialEq)]
pub struct Lengths {
    /// Words or token ids of the prompt (a trace's tokens are sent as so many words).
    pub input: u64,
    /// Tokens asked for.
    pub output: u64,
    /// The data set's own id of the entry.
    pub data_id: Option<String>,
}

impl Dataset {
    /// How many requests it has, if it says.
    pub fn count(&self) -> Option<usize> {
        match self {
            Dataset::Random | Dataset::RandomIds { .. } => None,
            Dataset::Entries(entries) => Some(entries.len()),
            Dataset::SharedPrefix(shared) => Some(shared.count()),
            Dataset::Trace(trace) => Some(trace.count()),
            Dataset::Stored(stored) => Some(stored.requests.len()),
        }
    }
}

impl Backend {
    /// Where it is sent.
    pub const fn endpoint(self) -> Endpoint {
        match self {
            Backend::Sglang => Endpoint::Generate,
            Backend::SglangOai => Endpoint::Completions,
            Backend::SglangOaiChat => Endpoint::Chat,
            Backend::Responses => Endpoint::Responses,
            Backend::Messages => Endpoint::Messages,
        }
    }

    /// The name on the command line, SGLang's own.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Sglang => "sglang",
            Backend::SglangOai => "sglang-oai",
            Backend::SglangOaiChat => "sglang-oai-chat",
            Backend::Responses => "responses",
            Backend::Messages => "messages",
        }
    }
}

impl Workload {
    /// Checks that every entry can be sent through the backend.
    ///
    /// # Errors
    /// [`Error::Usage`] names the data set and the backend that would take it.
    pub fn check(&self) -> Result<(), Error> {
        let mismatch = |what: &str, takes: &str| {
            let backend = self.backend.name();
            Err(Error::Usage(format!(
                "--backend {backend} cannot send {what}: use {takes}"
            )))
        };
        match (&self.dataset, self.backend) {
            (Dataset::RandomIds { .. }, Backend::SglangOaiChat) => mismatch(
                "--dataset-name random-ids (a chat has no token ids)",
                "--backend sglang or sglang-oai, or --dataset-name random",
            ),
            (Dataset::Entries(entries), Backend::Sglang | Backend::SglangOai) => {
                match entries.iter().position(Entry::is_chat) {
                    Some(at) => mismatch(
                        &format!("the `messages` of data set entry {}", at + 1),
                        "--backend sglang-oai-chat",
                    ),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
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
        self.drawn(index, &mut self.rng(index.wrapping_add(1)))
    }

    /// Turns of the longest conversation. 1: there are none.
    pub fn most_turns(&self) -> usize {
        match &self.dataset {
            Dataset::Stored(stored) => stored.header.turns,
            _ => self.talks.map_or(1, |talks| talks.turns),
        }
    }

    /// Turns of conversation `number`; a request that stands alone is one turn.
    pub fn turns(&self, number: u64) -> usize {
        let Some(talks) = self.talks else {
            return match &self.dataset {
                Dataset::Stored(stored) => {
                    1 + of(&stored.requests, number).map_or(0, |it| it.turns.len())
                }
                _ => 1,
            };
        };
        match &self.dataset {
            Dataset::Entries(entries) => {
                let more = of(entries, number).map_or(0, |entry| entry.follow_ups.len());
                talks.turns.min(1 + more)
            }
            _ => talks.turns,
        }
    }

    /// A turn of conversation `number` after the first (which is 0), if it has it.
    pub fn follow_up(&self, number: u64, turn: usize) -> Option<FollowUp> {
        if turn >= self.turns(number) {
            return None;
        }
        let later = turn.checked_sub(1)?;
        if let Dataset::Stored(stored) = &self.dataset {
            return of(&stored.requests, number)?.turns.get(later).cloned();
        }
        let talks = self.talks?;
        let mut rng = self.rng(TURNS | number << TURN_BITS | turn as u64);
        let think_ns = talks.think(&mut rng);
        if let Dataset::Entries(entries) = &self.dataset {
            let (text, output_length) = of(entries, number)?.follow_ups.get(later)?.clone();
            return Some(FollowUp {
                think_ns,
                text,
                output_length,
            });
        }
        let (input, output_length) = (talks.follow_up.draw(&mut rng), self.output.draw(&mut rng));
        Some(FollowUp {
            think_ns,
            text: words::sentence(input, &mut rng),
            output_length,
        })
    }

    /// What a turn of conversation `number` will be: of a later one, what it adds to what was said before.
    pub fn turn_lengths(&self, number: u64, turn: usize) -> Lengths {
        let mut lengths = self.lengths(number);
        if self.most_turns() > 1 {
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

    fn rng(&self, stream: u64) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(stream);
        rng
    }

    fn drawn(&self, index: u64, rng: &mut ChaCha8Rng) -> Lengths {
        let (input, output) = (self.input.draw(rng), self.output.draw(rng));
        let lengths = |input, output, data_id| Lengths {
            input,
            output,
            data_id,
        };
        match &self.dataset {
            Dataset::Random | Dataset::RandomIds { .. } => lengths(input, output, None),
            Dataset::Stored(stored) => match of(&stored.requests, index) {
                Some(stored) => lengths(
                    stored.input_length,
                    stored.output_length,
                    stored.data_id.clone(),
                ),
                None => lengths(input, output, None),
            },
            Dataset::Entries(entries) => match of(entries, index) {
                Some(entry) => lengths(
                    entry.input_words,
                    entry.output_tokens.unwrap_or(output),
                    entry.id.clone(),
                ),
                None => lengths(input, output, None),
            },
            Dataset::SharedPrefix(shared) => {
                let (shape, group) = (shared.shape(), shared.group(index));
                let id = Some(format!("group-{group}"));
                lengths(shape.prefix + shape.question, shape.output, id)
            }
            Dataset::Trace(trace) => {
                let request = trace.request(index);
                lengths(request.input.into(), request.output.into(), None)
            }
        }
    }

    /// `stream` is the random stream of the request alone; `parts` begins those of what it shares with others.
    fn draft(&self, index: u64, stream: u64, parts: u64) -> Bytes {
        let mut rng = self.rng(stream);
        let lengths = self.drawn(index, &mut rng);
        let shared = |part: u64| self.rng(parts | (part & PART_MASK));
        let prompt = match &self.dataset {
            Dataset::Random => Prompt::Text(words::sentence(lengths.input, &mut rng)),
            Dataset::RandomIds { vocab_size } => {
                Prompt::Ids(ids(lengths.input, *vocab_size, &mut rng))
            }
            Dataset::Entries(entries) => match of(entries, index).map(|entry| &entry.content) {
                Some(Content::Prompt(text)) => Prompt::Text(text.clone()),
                Some(Content::Messages(messages)) => Prompt::Messages(messages.clone()),
                // A data set without entries is refused where it is read.
                None => Prompt::Text(String::new()),
            },
            Dataset::SharedPrefix(groups) => {
                let shape = groups.shape();
                let mut group = shared(groups.group(index).into());
                let prefix = words::sentence(shape.prefix, &mut group);
                let question = words::sentence(shape.question, &mut rng);
                Prompt::Text(format!("{prefix}\n\n{question}"))
            }
            Dataset::Trace(trace) => {
                let mut text = String::with_capacity(lengths.input as usize * 6);
                let mut left = lengths.input;
                for block in trace.blocks(trace.request(index)) {
                    let count = left.min(BLOCK_TOKENS);
                    words::append(&mut text, count, &mut shared(*block));
                    left -= count;
                }
                words::append(&mut text, left, &mut rng);
                Prompt::Text(text)
            }
            Dataset::Stored(stored) => {
                let model = self.options.model.as_deref();
                let stored = of(&stored.requests, index);
                return stored.map_or_else(Bytes::new, |stored| stored.body(model));
            }
        };
        self.body(prompt, lengths.output)
    }

    fn body(&self, prompt: Prompt, output: u64) -> Bytes {
        let BodyOptions {
            stream, ignore_eos, ..
        } = self.options;
        let mut body = Map::new();
        let mut set = |key: &str, value| body.insert(key.to_owned(), value);
        match self.backend {
            Backend::Sglang => {
                let sampling = json!({
                    "temperature": 0.0, "max_new_tokens": output, "ignore_eos": ignore_eos,
                });
                set("sampling_params", sampling);
            }
            Backend::SglangOai | Backend::SglangOaiChat => {
                set("temperature", json!(0.0));
                set("max_tokens", json!(output));
                set("ignore_eos", json!(ignore_eos));
                if stream {
                    // Without it a stream never says how many tokens it brought.
                    set("stream_options", json!({"include_usage": true}));
                }
            }
            Backend::Responses => {
                set("max_output_tokens", json!(output));
            }
            Backend::Messages => {
                set("max_tokens", json!(output));
            }
        }
        let (field, value) = match (prompt, self.backend) {
            (Prompt::Text(text), Backend::Sglang) => ("text", Value::String(text)),
            (Prompt::Text(text), Backend::SglangOai) => ("prompt", Value::String(text)),
            (Prompt::Text(text), Backend::Responses) => ("input", Value::String(text)),
            (Prompt::Text(text), Backend::SglangOaiChat | Backend::Messages) => {
                ("messages", json!([{"role": "user", "content": text}]))
            }
            (Prompt::Ids(ids), Backend::Sglang) => ("input_ids", json!(ids)),
            (Prompt::Ids(ids), _) => ("prompt", json!(ids)),
            (Prompt::Messages(messages), _) => ("messages", Value::Array(messages)),
        };
        body.insert(field.to_owned(), value);
        body.insert("stream".to_owned(), Value::Bool(stream));
        if let Some(model) = &self.options.model {
            body.insert("model".to_owned(), Value::String(model.clone()));
        }
        merge(&mut body, &self.options.extra);
        Bytes::from(Value::Object(body).to_string())
    }
}

/// What a request sends of a data set, from the start again when it runs out.
fn of<T>(entries: &[T], index: u64) -> Option<&T> {
    entries.get(index as usize % entries.len().max(1))
}

enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Messages(Vec<Value>),
}

/// Ids below `vocab`, leaving out the first ones, where vocabularies keep bytes and special tokens.
fn ids(count: u64, vocab: u32, rng: &mut ChaCha8Rng) -> Vec<u32> {
    let high = vocab.max(1);
    let low = 1000.min(high / 2);
    (0..count).map(|_| rng.random_range(low..high)).collect()
}

/// Puts `extra` over `body`; where both have an object, key by key.
fn merge(body: &mut Map<String, Value>, extra: &Map<String, Value>) {
    for (key, value) in extra {
        match (body.get_mut(key), value) {
            (Some(Value::Object(ours)), Value::Object(theirs)) => merge(ours, theirs),
            _ => {
                body.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
