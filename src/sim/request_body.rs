//! Parses request bodies of `/generate` and the OpenAI endpoints, as far as the simulation needs. Unknown fields are ignored, as
//! by SGLang.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::request::endpoint::Endpoint;

use super::config::Config;
use super::disaggregation::{Bootstrap, Mode};
use super::sequence::Sequence;

/// The most sequences of one request. SGLang has no limit but its memory.
const MAX_SEQUENCES: usize = 4_096;
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
    pub return_meta_info: bool,
    /// The client's name for it, which SGLang echoes.
    pub model: String,
    /// Whether there is a list of prompts or several sequences: events then have an `index`, and responses are lists.
    pub is_list: bool,
    /// Sequences per prompt.
    pub n: usize,
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
    text: Option<OneOrMany<String>>,
    input_ids: Option<OneOrMany<Vec<i64>>>,
    sampling_params: Option<OneOrMany<Sampling>>,
    model: Option<String>,
    prompt: Option<Prompt>,
    messages: Option<Vec<Message>>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    n: Option<i64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    rid: Option<OneOrMany<String>>,
    return_meta_info: Option<bool>,
    bootstrap_host: Option<OneOrMany<String>>,
    bootstrap_port: Option<OneOrMany<Option<u16>>>,
    bootstrap_room: Option<OneOrMany<u64>>,
}

#[derive(Deserialize)]
struct Sampling {
    max_new_tokens: Option<i64>,
    n: Option<i64>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "prompt must be a string, a list of strings, a list of token ids or a list of such lists"
)]
enum Prompt {
    Texts(OneOrMany<String>),
    Ids(OneOrMany<Vec<i64>>),
}

#[derive(Deserialize)]
struct Message {
    content: Option<Value>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
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
        let body = parse_body(body).map_err(|message| Refusal {
            // Invalid JSON is refused before `stream` is known.
            stream: false,
            message,
        })?;
        let stream = body.stream.unwrap_or(false);
        body.validate(endpoint, config)
            .map_err(|message| Refusal { stream, message })
    }

    /// The number of tokens of its prompts, each prompt counted once.
    pub(super) fn prompt_tokens(&self) -> u64 {
        let prompts = self.sequences.iter().step_by(self.n);
        prompts.map(|one| u64::from(one.prompt_tokens())).sum()
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
        let openai = OneOrMany::One(Sampling {
            max_new_tokens: self.max_completion_tokens.or(self.max_tokens),
            n: self.n,
        });
        let (sampling, field) = match is_generate {
            true => (self.sampling_params.as_ref(), "max_new_tokens"),
            false => (Some(&openai), "max_tokens"),
        };
        let sampling = |prompt| sampling.and_then(|sampling| sampling.get(prompt));
        let n = sampling(0).and_then(|sampling| sampling.n);
        let n = sequences_per_prompt(prompts.len(), n.unwrap_or(1))?;
        let is_list = is_batch || prompts.len() * n > 1;
        let mut sequences = Vec::new();
        for (index, tokens) in prompts.into_iter().enumerate() {
            let max_tokens = sampling(index).and_then(|sampling| sampling.max_new_tokens);
            let (prompt, max_tokens) = fit_context(field, tokens, max_tokens, config)?;
            let rid = match &self.rid {
                // With several sequences per prompt the server makes its own ids.
                Some(_) if n > 1 => None,
                Some(OneOrMany::One(rid)) if is_batch => Some(format!("{rid}_{index}")),
                rid => rid.as_ref().and_then(|rid| rid.get(index)).cloned(),
            };
            for _ in 0..n {
                let rid = rid.clone().unwrap_or_else(new_rid);
                let index = sequences.len();
                sequences.push(Sequence::new(index, rid, prompt.clone(), max_tokens));
            }
        }
        if config.disaggregation.disaggregation_mode != Mode::Null {
            let rooms = self.bootstrap_room.as_ref();
            // One room for several sequences would be one KV cache for all.
            let has_rooms = sequences.len() == 1 || rooms.is_some_and(OneOrMany::is_many);
            for sequence in &mut sequences {
                let found = self.bootstrap(sequence.index).filter(|_| has_rooms);
                sequence.bootstrap = Some(found.ok_or(NO_ROOM)?);
            }
        }
        let options = self.stream_options;
        let model = self.model.filter(|_| !is_generate);
        Ok(GenerationRequest {
            endpoint,
            stream,
            include_usage: options.is_some_and(|options| options.include_usage.unwrap_or(false)),
            return_meta_info: is_generate || wants_meta_info,
            model: model.unwrap_or_else(|| config.model.clone()),
            is_list,
            n,
            sequences,
        })
    }

    /// Returns the room of a sequence; each of its parts is one value for all sequences, or one a sequence.
    fn bootstrap(&self, index: usize) -> Option<Bootstrap> {
        Some(Bootstrap {
            host: self.bootstrap_host.as_ref()?.get(index)?.clone(),
            port: (*self.bootstrap_port.as_ref()?.get(index)?)?,
            room: *self.bootstrap_room.as_ref()?.get(index)?,
        })
    }

    /// Returns the tokens of each prompt, and whether the prompts are a list.
    fn prompts(&self, endpoint: Endpoint) -> Result<(Vec<Vec<u32>>, bool), &'static str> {
        match endpoint {
            Endpoint::Generate => match (&self.text, &self.input_ids) {
                (Some(texts), None) => Ok((texts.tokens(), texts.is_many())),
                (None, Some(ids)) => Ok((ids.tokens(), ids.is_many())),
                (Some(_), Some(_)) => Err("Either text or input_ids should be provided, not both."),
                (None, None) => Err("Either text, input_ids or input_embeds should be provided."),
            },
            Endpoint::Chat => match self.messages.as_deref() {
                None | Some([]) => Err("Messages cannot be empty."),
                Some(messages) => {
                    let tokens = messages.iter().flat_map(Message::tokens);
                    Ok((vec![tokens.collect()], false))
                }
            },
            _ => match &self.prompt {
                None => Err("A prompt should be provided."),
                Some(Prompt::Texts(texts)) => Ok((texts.tokens(), texts.is_many())),
                Some(Prompt::Ids(ids)) => Ok((ids.tokens(), ids.is_many())),
            },
        }
    }
}

/// Returns the prompt and the number of output tokens of one sequence, limited by the context length.
fn fit_context(
    field: &str,
    mut prompt: Vec<u32>,
    max_tokens: Option<i64>,
    config: &Config,
) -> Result<(Arc<[u32]>, u32), String> {
    let context = config.max_sequence_tokens();
    if prompt.len() >= context as usize {
        let tokens = prompt.len();
        return Err(format!(
            "The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."
        ));
    }
    let max_tokens = max_tokens.unwrap_or(DEFAULT_OUTPUT_TOKENS);
    if max_tokens < 0 {
        return Err(format!("{field} must be at least 0, got {max_tokens}."));
    }
    // An empty text still has its beginning-of-sequence token.
    if prompt.is_empty() {
        prompt.push(0);
    }
    let free = i64::from(context.saturating_sub(prompt.len() as u32).max(1));
    Ok((prompt.into(), max_tokens.clamp(1, free) as u32))
}

/// Checks `n`.
fn sequences_per_prompt(prompts: usize, n: i64) -> Result<usize, String> {
    if n < 1 {
        return Err(format!("n must be at least 1, got {n}."));
    }
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    match prompts.saturating_mul(n) {
        0 => Err("The list of prompts is empty.".to_owned()),
        count if count <= MAX_SEQUENCES => Ok(n),
        count => Err(format!(
            "{count} sequences in one request; this simulator takes at most {MAX_SEQUENCES}."
        )),
    }
}

/// The simulated tokenizer: a token per word, whose id is the word's hash (FNV-1a).
fn tokenize(text: &str) -> impl Iterator<Item = u32> {
    text.split_whitespace().map(|word| {
        word.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        })
    })
}

/// Returns a request id of the server's own: 32 hexadecimal digits.
fn new_rid() -> String {
    format!("{:032x}", rand::random::<u128>())
}

impl<T> OneOrMany<T> {
    /// The value of the prompt or sequence at `index`.
    fn get(&self, index: usize) -> Option<&T> {
        match self {
            OneOrMany::One(one) => Some(one),
            OneOrMany::Many(many) => many.get(index),
        }
    }

    fn is_many(&self) -> bool {
        matches!(self, OneOrMany::Many(_))
    }

    fn all(&self) -> &[T] {
        match self {
            OneOrMany::One(one) => std::slice::from_ref(one),
            OneOrMany::Many(many) => many,
        }
    }
}

impl OneOrMany<String> {
    fn tokens(&self) -> Vec<Vec<u32>> {
        let texts = self.all().iter();
        texts.map(|text| tokenize(text).collect()).collect()
    }
}

impl OneOrMany<Vec<i64>> {
    /// The client's token ids, cut to 32 bits; real ones have fewer.
    fn tokens(&self) -> Vec<Vec<u32>> {
        let ids = |list: &Vec<i64>| list.iter().map(|id| *id as u32).collect();
        self.all().iter().map(ids).collect()
    }
}

impl Message {
    /// The tokens of a string, or of the text parts of a list.
    fn tokens(&self) -> Vec<u32> {
        match &self.content {
            Some(Value::String(text)) => tokenize(text).collect(),
            Some(Value::Array(parts)) => parts
                .iter()
                .filter_map(|part| part.get("text")?.as_str())
                .flat_map(tokenize)
                .collect(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
