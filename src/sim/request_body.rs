//! Parses request bodies of `/generate` and the OpenAI endpoints, as far as the simulation needs. Unknown fields are ignored, as
//! by SGLang.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::request::Endpoint;

use super::config::{Config, Mode};
use super::sequence::{Bootstrap, Sequence};

/// The most sequences of one request. SGLang has no limit but its memory.
const MAX_SEQUENCES: i64 = 4_096;
/// The tokens of an answer whose length was not asked for, as SGLang's `max_new_tokens`.
const DEFAULT_OUTPUT_TOKENS: i64 = 128;
/// The message for a body without a room.
const NO_ROOM: &str = "A server with --disaggregation-mode needs bootstrap_host, bootstrap_port and bootstrap_room in the body, \
                       one a sequence: send it through a router of prefill and decode servers";

/// A valid generation request.
#[derive(Debug)]
pub(super) struct GenerationRequest {
    pub endpoint: Endpoint,
    pub stream: bool,
    pub include_usage: bool,
    /// Whether the choices of a chat have `meta_info`. That of `/generate` always has.
    pub return_meta_info: bool,
    /// The client's name for it, which SGLang echoes.
    pub model: String,
    /// Whether there is a list of prompts or several sequences: events then have an `index`, and responses are lists.
    pub is_list: bool,
    /// The number of tokens of its prompts, each prompt counted once.
    pub prompt_tokens: u64,
    /// Ordered by prompt.
    pub sequences: Vec<Sequence>,
}

/// The refusal of an invalid request, which the engine never sees.
#[derive(Debug, PartialEq)]
pub(super) struct Refusal {
    /// Whether the client requested a stream.
    pub stream: bool,
    pub message: String,
}

/// A field with one value, or with one value per prompt or sequence.
#[derive(Deserialize)]
#[serde(untagged, expecting = "must be one value or a list of such values")]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

/// A request body, with the fields of all endpoints.
#[derive(Deserialize)]
struct Body {
    text: Option<Prompts>,
    input_ids: Option<Prompts>,
    sampling_params: Option<Sampling>,
    model: Option<String>,
    prompt: Option<Prompts>,
    messages: Option<Vec<Value>>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    n: Option<i64>,
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Value,
    rid: Option<OneOrMany<String>>,
    return_meta_info: Option<bool>,
    bootstrap_host: Option<OneOrMany<String>>,
    bootstrap_port: Option<OneOrMany<Option<u16>>>,
    bootstrap_room: Option<OneOrMany<u64>>,
}

#[derive(Clone, Copy, Default, Deserialize)]
struct Sampling {
    max_new_tokens: Option<i64>,
    n: Option<i64>,
}

/// The prompts of a request, in all their forms.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "must be a string, a list of strings, a list of token ids or a list of such lists"
)]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<i64>),
    IdLists(Vec<Vec<i64>>),
}

impl GenerationRequest {
    /// Parses the body of a request to `endpoint`.
    ///
    /// # Errors
    /// If SGLang would refuse the request before its engine sees it.
    pub(super) fn parse(
        endpoint: Endpoint,
        body: &[u8],
        config: &Config,
    ) -> Result<GenerationRequest, Refusal> {
        let refusal = |stream| move |message| Refusal { stream, message };
        // Invalid JSON is refused before `stream` is known.
        let body = parse_body(body).map_err(refusal(false))?;
        let refusal = refusal(body.stream.unwrap_or(false));
        body.validate(endpoint, config).map_err(refusal)
    }

    /// The number of tokens generated so far.
    pub(super) fn generated(&self) -> u64 {
        let sequences = self.sequences.iter();
        sequences.map(|one| u64::from(one.generated())).sum()
    }
}

fn parse_body(body: &[u8]) -> Result<Body, String> {
    // Serde would take a list's values for the fields, in their order.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err("The body must be a JSON object.".to_owned());
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| error.to_string())?;
    json.end().map_err(|error| error.to_string())?;
    Ok(parsed)
}

impl Body {
    fn validate(self, endpoint: Endpoint, config: &Config) -> Result<GenerationRequest, String> {
        let is_generate = endpoint == Endpoint::Generate;
        let stream = self.stream.unwrap_or(false);
        let wants_meta_info = endpoint == Endpoint::Chat && self.return_meta_info.unwrap_or(false);
        if stream && wants_meta_info {
            let message = "return_meta_info is not supported with streaming. \
                           Please set stream=false when using return_meta_info=true.";
            return Err(message.to_owned());
        }
        let (prompts, is_batch) = self.prompts(endpoint)?;
        let sampling = match is_generate {
            true => self.sampling_params.unwrap_or_default(),
            false => Sampling {
                max_new_tokens: self.max_completion_tokens.or(self.max_tokens),
                n: self.n,
            },
        };
        let n = sampling.n.unwrap_or(1);
        let count = n.saturating_mul(prompts.len() as i64);
        if !(1..=MAX_SEQUENCES).contains(&count) {
            return Err(format!(
                "n times the number of prompts must be from 1 to {MAX_SEQUENCES} here, got {count}."
            ));
        }
        let is_list = is_batch || count > 1;
        let (mut sequences, mut prompt_tokens) = (Vec::new(), 0);
        for (index, tokens) in prompts.into_iter().enumerate() {
            let (prompt, max_tokens) = fit_context(tokens, sampling.max_new_tokens, config)?;
            prompt_tokens += prompt.len() as u64;
            let rid = match &self.rid {
                // With several sequences per prompt the server makes its own ids.
                Some(_) if n > 1 => None,
                Some(OneOrMany::One(rid)) if is_batch => Some(format!("{rid}_{index}")),
                rid => rid.as_ref().and_then(|rid| rid.get(index)).cloned(),
            };
            // Of the server's own: 32 hexadecimal digits.
            let made = || format!("{:032x}", rand::random::<u128>());
            for _ in 0..n {
                let rid = rid.clone().unwrap_or_else(made);
                let index = sequences.len();
                sequences.push(Sequence::new(index, rid, prompt.clone(), max_tokens));
            }
        }
        if config.disaggregation.disaggregation_mode != Mode::Null {
            for sequence in &mut sequences {
                sequence.bootstrap = Some(self.bootstrap(sequence.index).ok_or(NO_ROOM)?);
            }
        }
        let model = self.model.filter(|_| !is_generate);
        Ok(GenerationRequest {
            endpoint,
            stream,
            include_usage: self.stream_options["include_usage"] == true,
            return_meta_info: wants_meta_info,
            model: model.unwrap_or_else(|| config.model.clone()),
            is_list,
            prompt_tokens,
            sequences,
        })
    }

    /// Returns the room of a sequence, its own: one for several would be one KV cache for all. Host and port may be the same for all.
    fn bootstrap(&self, index: usize) -> Option<Bootstrap> {
        let room = self.bootstrap_room.as_ref()?;
        let is_own = index == 0 || matches!(room, OneOrMany::Many(_));
        Some(Bootstrap {
            host: self.bootstrap_host.as_ref()?.get(index)?.clone(),
            port: (*self.bootstrap_port.as_ref()?.get(index)?)?,
            room: *room.get(index).filter(|_| is_own)?,
        })
    }

    /// Returns the tokens of each prompt, and whether the prompts are a list.
    fn prompts(&self, endpoint: Endpoint) -> Result<(Vec<Vec<u32>>, bool), &'static str> {
        let prompts = match endpoint {
            Endpoint::Chat => {
                let messages = self.messages.as_ref().filter(|all| !all.is_empty());
                let messages = messages.ok_or("Messages cannot be empty.")?;
                let tokens = messages.iter().flat_map(message_tokens).collect();
                return Ok((vec![tokens], false));
            }
            Endpoint::Generate if self.text.is_some() && self.input_ids.is_some() => {
                return Err("Either text or input_ids should be provided, not both.");
            }
            Endpoint::Generate => (self.text.as_ref().or(self.input_ids.as_ref()))
                .ok_or("Either text, input_ids or input_embeds should be provided."),
            _ => self.prompt.as_ref().ok_or("A prompt should be provided."),
        };
        prompts.map(Prompts::tokens)
    }
}

/// Returns the prompt and the number of output tokens of one sequence, limited by the context length.
fn fit_context(
    mut prompt: Vec<u32>,
    max_tokens: Option<i64>,
    config: &Config,
) -> Result<(Arc<[u32]>, u32), String> {
    // The most tokens of one sequence: limited by the context length and the KV cache.
    let cache = u32::try_from(config.profile.max_total_tokens - 1).unwrap_or(u32::MAX);
    let context = config.context_len.min(cache);
    if prompt.len() >= context as usize {
        let tokens = prompt.len();
        return Err(format!(
            "The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."
        ));
    }
    let max_tokens = max_tokens.unwrap_or(DEFAULT_OUTPUT_TOKENS);
    if max_tokens < 0 {
        return Err(format!(
            "max_new_tokens (OpenAI: max_tokens) must be at least 0, got {max_tokens}."
        ));
    }
    // An empty text still has its beginning-of-sequence token.
    if prompt.is_empty() {
        prompt.push(0);
    }
    let free = i64::from(context.saturating_sub(prompt.len() as u32).max(1));
    Ok((prompt.into(), max_tokens.clamp(1, free) as u32))
}

/// The simulated tokenizer: a token per word, whose id is the word's hash (FNV-1a).
fn tokenize(text: &str) -> impl Iterator<Item = u32> {
    text.split_whitespace().map(|word| {
        word.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        })
    })
}

impl<T> OneOrMany<T> {
    /// The value of the prompt or sequence at `index`.
    fn get(&self, index: usize) -> Option<&T> {
        match self {
            OneOrMany::One(one) => Some(one),
            OneOrMany::Many(many) => many.get(index),
        }
    }
}

impl Prompts {
    /// The tokens of each prompt, and whether the prompts are a list. Token ids are cut to 32 bits; real ones have fewer.
    fn tokens(&self) -> (Vec<Vec<u32>>, bool) {
        let of_text = |text: &String| tokenize(text).collect();
        let of_ids = |ids: &Vec<i64>| ids.iter().map(|id| *id as u32).collect();
        match self {
            Prompts::Text(text) => (vec![of_text(text)], false),
            Prompts::Texts(texts) => (texts.iter().map(of_text).collect(), true),
            Prompts::Ids(ids) => (vec![of_ids(ids)], false),
            Prompts::IdLists(lists) => (lists.iter().map(of_ids).collect(), true),
        }
    }
}

/// The tokens of a message's content: a string, or the text parts of a list.
fn message_tokens(message: &Value) -> Vec<u32> {
    let texts = match &message["content"] {
        Value::Array(parts) => parts.iter().map(|part| &part["text"]).collect(),
        content => vec![content],
    };
    let texts = texts.into_iter().filter_map(Value::as_str);
    texts.flat_map(tokenize).collect()
}

#[cfg(test)]
mod tests;
