//! What a client asks for: request bodies of `/generate` and the OpenAI endpoints.
//!
//! Read as far as the simulation needs; unknown fields are fine, as they are to the real server.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::request::endpoint::Endpoint;

/// The most sequences one request may ask for; the real one has no limit but its memory.
const MAX_SEQUENCES: usize = 4_096;

/// What the server puts in for what the client leaves out.
#[derive(Clone, Debug)]
pub(super) struct Defaults {
    pub model: String,
    pub output_len: u32,
    pub context_len: u32,
}

/// A valid request.
#[derive(Debug, PartialEq)]
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
    pub sequences: Vec<Asked>,
}

/// One answer that is asked for.
#[derive(Debug, PartialEq)]
pub(super) struct Asked {
    pub rid: String,
    /// What the prefix cache knows the prompt by.
    pub prompt: Arc<[u32]>,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
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

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "text and rid must be a string or a list of strings"
)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "sampling_params must be an object, or a list of them, with whole numbers as \
                 max_new_tokens and n"
)]
enum Samplings {
    One(Sampling),
    Many(Vec<Sampling>),
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "input_ids must be a list of token ids or a list of such lists"
)]
enum Ids {
    One(Vec<i64>),
    Many(Vec<Vec<i64>>),
}

#[derive(Deserialize)]
struct GenerateBody {
    text: Option<Texts>,
    input_ids: Option<Ids>,
    sampling_params: Option<Samplings>,
    stream: Option<bool>,
    rid: Option<Texts>,
}

#[derive(Default, Deserialize)]
struct Sampling {
    max_new_tokens: Option<i64>,
    n: Option<i64>,
}

#[derive(Deserialize)]
struct OpenAiBody {
    model: Option<String>,
    prompt: Option<Prompt>,
    messages: Option<Vec<Message>>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    n: Option<i64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    rid: Option<String>,
    return_meta_info: Option<bool>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "prompt must be a string, a list of strings, a list of token ids or a list of such lists"
)]
enum Prompt {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<i64>),
    IdLists(Vec<Vec<i64>>),
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
    pub(super) fn parse(
        endpoint: Endpoint,
        body: &[u8],
        defaults: &Defaults,
    ) -> Result<Call, Refusal> {
        match endpoint {
            Endpoint::Generate => generate(parse(body)?, defaults),
            _ => openai(endpoint, parse(body)?, defaults),
        }
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        // Wrong JSON is told before `stream` could be read.
        let place = body.len().min(error.column());
        let what = error.to_string().replace('\'', "`");
        let message = format!(
            "1 validation error:\n  {{'type': 'json_invalid', 'loc': ('body', {place}), \
             'msg': 'JSON decode error', 'input': {{}}, 'ctx': {{'error': '{what}'}}}}"
        );
        Refusal::new(false, RefusalKind::Invalid, message)
    })
}

fn generate(body: GenerateBody, defaults: &Defaults) -> Result<Call, Refusal> {
    let stream = body.stream.unwrap_or(false);
    let unfit = |message: String| Refusal::new(stream, RefusalKind::Unfit, message);
    let (batch, prompts): (bool, Vec<Vec<u32>>) = match (&body.text, &body.input_ids) {
        (Some(_), Some(_)) => {
            let message = "Either text or input_ids should be provided, not both.";
            return Err(unfit(message.to_owned()));
        }
        (Some(Texts::One(text)), _) => (false, vec![words(text).collect()]),
        (Some(Texts::Many(texts)), _) => (true, texts.iter().map(|t| words(t).collect()).collect()),
        (None, Some(Ids::One(list))) => (false, vec![ids(list)]),
        (None, Some(Ids::Many(lists))) => (true, lists.iter().map(|list| ids(list)).collect()),
        (None, None) => {
            let message = "Either text, input_ids or input_embeds should be provided.";
            return Err(unfit(message.to_owned()));
        }
    };
    let default = Sampling::default();
    let sampling = |prompt: usize| match &body.sampling_params {
        Some(Samplings::One(one)) => one,
        Some(Samplings::Many(many)) => many.get(prompt).unwrap_or(&default),
        None => &default,
    };
    let n = at_least_one("n", sampling(0).n).map_err(unfit)?;
    let mut asked = Vec::new();
    check_count(prompts.len(), n).map_err(unfit)?;
    for (place, tokens) in prompts.into_iter().enumerate() {
        let wanted = sampling(place).max_new_tokens;
        let (prompt, output_tokens) =
            fit("max_new_tokens", tokens, wanted, defaults).map_err(unfit)?;
        for _ in 0..n {
            // As the real one does: several answers to a prompt get ids of the server's own.
            let rid = match &body.rid {
                Some(Texts::One(rid)) if n == 1 && batch => Some(format!("{rid}_{place}")),
                Some(Texts::One(rid)) if n == 1 => Some(rid.clone()),
                Some(Texts::Many(rids)) if n == 1 => rids.get(place).cloned(),
                _ => None,
            };
            asked.push(Asked {
                rid: rid.unwrap_or_else(new_rid),
                prompt_tokens: prompt.len() as u32,
                prompt: prompt.clone(),
                output_tokens,
            });
        }
    }
    Ok(Call {
        endpoint: Endpoint::Generate,
        stream,
        include_usage: false,
        return_meta_info: true,
        model: defaults.model.clone(),
        listed: batch || n > 1,
        n,
        sequences: asked,
    })
}

fn openai(endpoint: Endpoint, body: OpenAiBody, defaults: &Defaults) -> Result<Call, Refusal> {
    let stream = body.stream.unwrap_or(false);
    let unfit = |message: String| Refusal::new(stream, RefusalKind::Unfit, message);
    let return_meta_info = endpoint == Endpoint::Chat && body.return_meta_info.unwrap_or(false);
    if stream && return_meta_info {
        let message = "return_meta_info is not supported with streaming. \
                       Please set stream=false when using return_meta_info=true.";
        let message = message.to_owned();
        return Err(Refusal::new(stream, RefusalKind::Unsupported, message));
    }
    let prompts = match endpoint {
        Endpoint::Chat => {
            let messages = body.messages.ok_or_else(|| missing(stream, "messages"))?;
            if messages.is_empty() {
                return Err(unfit("Messages cannot be empty.".to_owned()));
            }
            vec![messages.iter().flat_map(Message::words).collect()]
        }
        _ => body
            .prompt
            .ok_or_else(|| missing(stream, "prompt"))?
            .tokens(),
    };
    let n = at_least_one("n", body.n).map_err(unfit)?;
    check_count(prompts.len(), n).map_err(unfit)?;
    let wanted = body.max_completion_tokens.or(body.max_tokens);
    let single = prompts.len() * n == 1;
    let mut asked = Vec::new();
    for tokens in prompts {
        let (prompt, output_tokens) = fit("max_tokens", tokens, wanted, defaults).map_err(unfit)?;
        for _ in 0..n {
            asked.push(Asked {
                rid: body.rid.clone().filter(|_| single).unwrap_or_else(new_rid),
                prompt_tokens: prompt.len() as u32,
                prompt: prompt.clone(),
                output_tokens,
            });
        }
    }
    Ok(Call {
        endpoint,
        stream,
        include_usage: body
            .stream_options
            .is_some_and(|options| options.include_usage.unwrap_or(false)),
        return_meta_info,
        model: body.model.unwrap_or_else(|| defaults.model.clone()),
        listed: asked.len() > 1,
        n,
        sequences: asked,
    })
}

fn missing(stream: bool, field: &str) -> Refusal {
    let message = format!(
        "1 validation error:\n  {{'type': 'missing', 'loc': ('body', '{field}'), \
         'msg': 'Field required'}}"
    );
    Refusal::new(stream, RefusalKind::Invalid, message)
}

/// Prompt and output tokens of one sequence, within the context.
fn fit(
    field: &str,
    mut prompt: Vec<u32>,
    wanted: Option<i64>,
    defaults: &Defaults,
) -> Result<(Arc<[u32]>, u32), String> {
    let context = defaults.context_len;
    if prompt.len() >= context as usize {
        let tokens = prompt.len();
        return Err(format!(
            "The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."
        ));
    }
    let wanted = wanted.unwrap_or(i64::from(defaults.output_len));
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

fn at_least_one(field: &str, value: Option<i64>) -> Result<usize, String> {
    match value.unwrap_or(1) {
        value if value >= 1 => Ok(usize::try_from(value).unwrap_or(usize::MAX)),
        value => Err(format!("{field} must be at least 1, got {value}.")),
    }
}

fn check_count(prompts: usize, n: usize) -> Result<(), String> {
    match prompts.saturating_mul(n) {
        0 => Err("The list of prompts is empty.".to_owned()),
        count if count <= MAX_SEQUENCES => Ok(()),
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

/// Token ids as the client gives them; real ones have fewer bits.
fn ids(list: &[i64]) -> Vec<u32> {
    list.iter().map(|id| *id as u32).collect()
}

/// A request id of the server's own: 32 hexadecimal digits.
fn new_rid() -> String {
    format!("{:032x}", rand::random::<u128>())
}

impl Prompt {
    fn tokens(&self) -> Vec<Vec<u32>> {
        match self {
            Prompt::Text(text) => vec![words(text).collect()],
            Prompt::Texts(texts) => texts.iter().map(|text| words(text).collect()).collect(),
            Prompt::Ids(list) => vec![ids(list)],
            Prompt::IdLists(lists) => lists.iter().map(|list| ids(list)).collect(),
        }
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

impl Refusal {
    fn new(stream: bool, kind: RefusalKind, message: String) -> Refusal {
        Refusal {
            stream,
            kind,
            message,
        }
    }
}

#[cfg(test)]
mod tests;
