//! What a client asks for: request bodies of `/generate` and the OpenAI endpoints.
//!
//! Read as far as the simulation needs; unknown fields are fine, as they are to the real server.

use std::fmt::Display;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::request::endpoint::Endpoint;

use super::config::Config;
use super::sequence::Sequence;

/// The most sequences one request may ask for; the real one has no limit but its memory.
const MAX_SEQUENCES: usize = 4_096;

/// A valid request.
#[derive(Debug)]
pub(super) struct Call {
    pub endpoint: Endpoint,
    pub stream: bool,
    pub include_usage: bool,
    pub return_meta_info: bool,
    /// As the client named it: the real server echoes any name.
    pub model: String,
    /// Several prompts in a list or several answers: events carry `index`, replies are lists.
    pub listed: bool,
    /// Answers a prompt.
    pub n: usize,
    /// Prompt by prompt, the answers of one beside each other.
    pub sequences: Vec<Sequence>,
}

/// A request that the engine never sees.
#[derive(Debug, PartialEq)]
pub(super) struct Refusal {
    /// The client asked for a stream.
    pub stream: bool,
    pub kind: RefusalKind,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalKind {
    /// Not JSON, or not the types of the schema.
    Invalid,
    /// Nothing to generate from, too long, out of range.
    Unfit,
    /// A combination that the endpoint does not offer.
    Unsupported,
}

/// A refusal, of which it is not known whether the client asked for a stream.
type Wrong = (RefusalKind, String);

/// What a body gives once, or once a prompt.
#[derive(Deserialize)]
#[serde(untagged, expecting = "must be one value or a list of such values")]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

/// A body, of which each endpoint has its fields.
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

impl Call {
    /// Reads the body of a request to `endpoint`.
    ///
    /// # Errors
    /// What the real server would refuse before its engine sees it.
    pub(super) fn parse(endpoint: Endpoint, body: &[u8], config: &Config) -> Result<Call, Refusal> {
        let body = parse(body, endpoint).map_err(|message| Refusal {
            // Wrong JSON is told before `stream` could be read.
            stream: false,
            kind: RefusalKind::Invalid,
            message,
        })?;
        let stream = body.stream.unwrap_or(false);
        body.call(endpoint, config)
            .map_err(|(kind, message)| Refusal {
                stream,
                kind,
                message,
            })
    }

    /// Tokens of its prompts, each once however many answers it gets.
    pub(super) fn prompt_tokens(&self) -> u64 {
        let prompts = self.sequences.iter().step_by(self.n);
        prompts.map(|one| u64::from(one.prompt_tokens())).sum()
    }

    /// Tokens made so far.
    pub(super) fn made(&self) -> u64 {
        self.sequences.iter().map(|one| u64::from(one.made())).sum()
    }
}

/// Reads a body; what FastAPI says of one that is none.
fn parse(body: &[u8], endpoint: Endpoint) -> Result<Body, String> {
    // A list's values would be taken for the fields, in their order.
    let is_object = body.trim_ascii_start().starts_with(b"{");
    if !is_object && serde_json::from_slice::<IgnoredAny>(body).is_ok() {
        let (kind, wanted) = match endpoint {
            Endpoint::Generate => (
                "dataclass_type",
                "a dictionary or an instance of GenerateReqInput",
            ),
            _ => (
                "model_attributes_type",
                "a valid dictionary or object to extract fields from",
            ),
        };
        return Err(invalid(&format!(
            "'type': '{kind}', 'loc': ('body',), 'msg': 'Input should be {wanted}'"
        )));
    }
    let wrong = |error: &serde_json::Error, what: &dyn Display| {
        let place = body.len().min(error.column());
        let what = what.to_string().replace('\'', "`");
        invalid(&format!(
            "'type': 'json_invalid', 'loc': ('body', {place}), 'msg': 'JSON decode error', 'input': {{}}, \
             'ctx': {{'error': '{what}'}}"
        ))
    };
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(&mut json);
    let read = read.map_err(|error| wrong(error.inner(), &error))?;
    json.end().map_err(|error| wrong(&error, &error))?;
    Ok(read)
}

/// What FastAPI says of a body that is not of the schema.
fn invalid(wrong: &str) -> String {
    format!("1 validation error:\n  {{{wrong}}}")
}

fn missing(field: &str) -> Wrong {
    let wrong = format!("'type': 'missing', 'loc': ('body', '{field}'), 'msg': 'Field required'");
    (RefusalKind::Invalid, invalid(&wrong))
}

fn unfit(message: impl Into<String>) -> Wrong {
    (RefusalKind::Unfit, message.into())
}

impl Body {
    fn call(self, endpoint: Endpoint, config: &Config) -> Result<Call, Wrong> {
        let is_generate = endpoint == Endpoint::Generate;
        let stream = self.stream.unwrap_or(false);
        let wants_meta_info = endpoint == Endpoint::Chat && self.return_meta_info.unwrap_or(false);
        if stream && wants_meta_info {
            let message = "return_meta_info is not supported with streaming. \
                           Please set stream=false when using return_meta_info=true.";
            return Err((RefusalKind::Unsupported, message.to_owned()));
        }
        let (prompts, is_batch) = self.prompts(endpoint)?;
        let of_openai = OneOrMany::One(Sampling {
            max_new_tokens: self.max_completion_tokens.or(self.max_tokens),
            n: self.n,
        });
        let (sampling, field) = match is_generate {
            true => (self.sampling_params.as_ref(), "max_new_tokens"),
            false => (Some(&of_openai), "max_tokens"),
        };
        let sampling = |place| sampling.and_then(|sampling| sampling.at(place));
        let n = sampling(0).and_then(|sampling| sampling.n);
        let n = answers(prompts.len(), n.unwrap_or(1)).map_err(unfit)?;
        let listed = is_batch || prompts.len() * n > 1;
        let mut sequences = Vec::new();
        for (place, tokens) in prompts.into_iter().enumerate() {
            let wanted = sampling(place).and_then(|sampling| sampling.max_new_tokens);
            let (prompt, wanted) = fit(field, tokens, wanted, config).map_err(unfit)?;
            let rid = match &self.rid {
                // Several answers to a prompt get ids of the server's own.
                Some(_) if n > 1 => None,
                Some(OneOrMany::One(rid)) if is_batch => Some(format!("{rid}_{place}")),
                given => given.as_ref().and_then(|given| given.at(place)).cloned(),
            };
            for _ in 0..n {
                let rid = rid.clone().unwrap_or_else(new_rid);
                sequences.push(Sequence::new(sequences.len(), rid, prompt.clone(), wanted));
            }
        }
        let options = self.stream_options;
        let model = self.model.filter(|_| !is_generate);
        Ok(Call {
            endpoint,
            stream,
            include_usage: options.is_some_and(|options| options.include_usage.unwrap_or(false)),
            return_meta_info: is_generate || wants_meta_info,
            model: model.unwrap_or_else(|| config.model.clone()),
            listed,
            n,
            sequences,
        })
    }

    /// The tokens of each prompt, and whether they came in a list.
    fn prompts(&self, endpoint: Endpoint) -> Result<(Vec<Vec<u32>>, bool), Wrong> {
        match endpoint {
            Endpoint::Generate => match (&self.text, &self.input_ids) {
                (Some(texts), None) => Ok((texts.tokens(), texts.is_many())),
                (None, Some(ids)) => Ok((ids.tokens(), ids.is_many())),
                (Some(_), Some(_)) => Err(unfit(
                    "Either text or input_ids should be provided, not both.",
                )),
                (None, None) => Err(unfit(
                    "Either text, input_ids or input_embeds should be provided.",
                )),
            },
            Endpoint::Chat => match self.messages.as_deref() {
                None => Err(missing("messages")),
                Some([]) => Err(unfit("Messages cannot be empty.")),
                Some(messages) => {
                    let words = messages.iter().flat_map(Message::words);
                    Ok((vec![words.collect()], false))
                }
            },
            _ => match &self.prompt {
                None => Err(missing("prompt")),
                Some(Prompt::Texts(texts)) => Ok((texts.tokens(), texts.is_many())),
                Some(Prompt::Ids(ids)) => Ok((ids.tokens(), ids.is_many())),
            },
        }
    }
}

/// Prompt and output tokens of one sequence, within the context.
fn fit(
    field: &str,
    mut prompt: Vec<u32>,
    wanted: Option<i64>,
    config: &Config,
) -> Result<(Arc<[u32]>, u32), String> {
    let context = config.most_tokens();
    if prompt.len() >= context as usize {
        let tokens = prompt.len();
        return Err(format!(
            "The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."
        ));
    }
    let wanted = wanted.unwrap_or(i64::from(config.default_output_len));
    if wanted < 0 {
        return Err(format!("{field} must be at least 0, got {wanted}."));
    }
    // A text without words still has its beginning-of-sequence token.
    if prompt.is_empty() {
        prompt.push(0);
    }
    let room = i64::from(context.saturating_sub(prompt.len() as u32).max(1));
    Ok((prompt.into(), wanted.clamp(1, room) as u32))
}

/// Answers to each of the prompts.
fn answers(prompts: usize, n: i64) -> Result<usize, String> {
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

/// The simulated tokenizer: a token a word, its id a hash of it (FNV-1a).
fn words(text: &str) -> impl Iterator<Item = u32> {
    text.split_whitespace().map(|word| {
        word.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        })
    })
}

/// A request id of the server's own: 32 hexadecimal digits.
fn new_rid() -> String {
    format!("{:032x}", rand::random::<u128>())
}

impl<T> OneOrMany<T> {
    /// Of so many, the one at a place.
    fn at(&self, place: usize) -> Option<&T> {
        match self {
            OneOrMany::One(one) => Some(one),
            OneOrMany::Many(many) => many.get(place),
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
        texts.map(|text| words(text).collect()).collect()
    }
}

impl OneOrMany<Vec<i64>> {
    /// Token ids as the client gives them; real ones have fewer bits.
    fn tokens(&self) -> Vec<Vec<u32>> {
        let ids = |list: &Vec<i64>| list.iter().map(|id| *id as u32).collect();
        self.all().iter().map(ids).collect()
    }
}

impl Message {
    /// Words of a string, or of the text parts of a list.
    fn words(&self) -> Vec<u32> {
        match &self.content {
            Some(Value::String(text)) => words(text).collect(),
            Some(Value::Array(parts)) => parts
                .iter()
                .filter_map(|part| part.get("text")?.as_str())
                .flat_map(words)
                .collect(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
