//! What a client asks for: request bodies of `/generate` and the OpenAI endpoints.
//!
//! Read as far as the simulation needs; unknown fields are fine, as they are to the real server.

use std::fmt::Display;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
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

/// What a body gives once, or once a prompt.
#[derive(Deserialize)]
#[serde(untagged, expecting = "must be one value or a list of such values")]
pub(super) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

#[derive(Deserialize)]
struct GenerateBody {
    text: Option<OneOrMany<String>>,
    input_ids: Option<OneOrMany<Vec<i64>>>,
    sampling_params: Option<OneOrMany<Sampling>>,
    stream: Option<bool>,
    rid: Option<OneOrMany<String>>,
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
        match endpoint {
            Endpoint::Generate => generate(parse(body, endpoint)?, config),
            _ => openai(endpoint, parse(body, endpoint)?, config),
        }
    }

    /// A call for `n` answers to each of the prompts, of which `asked` says how many tokens and under which id,
    /// where the client did. `field` is where it says how many.
    fn new(
        endpoint: Endpoint,
        config: &Config,
        (prompts, n): (Vec<Vec<u32>>, Option<i64>),
        field: &str,
        asked: impl Fn(usize, bool) -> (Option<i64>, Option<String>),
    ) -> Result<Call, String> {
        let n = at_least_one("n", n)?;
        check_count(prompts.len(), n)?;
        let is_single = prompts.len() * n == 1;
        let mut sequences = Vec::new();
        for (place, tokens) in prompts.into_iter().enumerate() {
            let (wanted, rid) = asked(place, is_single);
            let (prompt, wanted) = fit(field, tokens, wanted, config)?;
            for _ in 0..n {
                // As the real one does: several answers to a prompt get ids of the server's own.
                let rid = rid.clone().filter(|_| n == 1).unwrap_or_else(new_rid);
                sequences.push(Sequence::new(sequences.len(), rid, prompt.clone(), wanted));
            }
        }
        Ok(Call {
            endpoint,
            stream: false,
            include_usage: false,
            return_meta_info: endpoint == Endpoint::Generate,
            model: config.model.clone(),
            listed: !is_single,
            n,
            sequences,
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

fn parse<T: DeserializeOwned>(body: &[u8], endpoint: Endpoint) -> Result<T, Refusal> {
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
        let wrong =
            format!("'type': '{kind}', 'loc': ('body',), 'msg': 'Input should be {wanted}'");
        return Err(invalid(false, &wrong));
    }
    let wrong = |error: &serde_json::Error, what: &dyn Display| {
        // Wrong JSON is told before `stream` could be read.
        let place = body.len().min(error.column());
        let what = what.to_string().replace('\'', "`");
        let wrong = format!(
            "'type': 'json_invalid', 'loc': ('body', {place}), 'msg': 'JSON decode error', 'input': {{}}, \
             'ctx': {{'error': '{what}'}}"
        );
        invalid(false, &wrong)
    };
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(&mut json);
    let read = read.map_err(|error| wrong(error.inner(), &error))?;
    json.end().map_err(|error| wrong(&error, &error))?;
    Ok(read)
}

/// What FastAPI says of a body that is not of the schema.
fn invalid(stream: bool, wrong: &str) -> Refusal {
    let message = format!("1 validation error:\n  {{{wrong}}}");
    Refusal::new(stream, RefusalKind::Invalid, message)
}

fn generate(body: GenerateBody, config: &Config) -> Result<Call, Refusal> {
    let stream = body.stream.unwrap_or(false);
    let unfit = |message: String| Refusal::new(stream, RefusalKind::Unfit, message);
    let (is_batch, prompts) = match (&body.text, &body.input_ids) {
        (Some(texts), None) => (texts.is_many(), texts.tokens()),
        (None, Some(ids)) => (ids.is_many(), ids.tokens()),
        (Some(_), Some(_)) => {
            let message = "Either text or input_ids should be provided, not both.";
            return Err(unfit(message.to_owned()));
        }
        (None, None) => {
            let message = "Either text, input_ids or input_embeds should be provided.";
            return Err(unfit(message.to_owned()));
        }
    };
    let default = Sampling::default();
    let sampling = |prompt: usize| match &body.sampling_params {
        Some(given) => given.at(prompt).unwrap_or(&default),
        None => &default,
    };
    let asked = |place: usize, _| {
        let rid = match &body.rid {
            Some(OneOrMany::One(rid)) if is_batch => Some(format!("{rid}_{place}")),
            Some(given) => given.at(place).cloned(),
            None => None,
        };
        (sampling(place).max_new_tokens, rid)
    };
    let asked_for = (prompts, sampling(0).n);
    let call = Call::new(
        Endpoint::Generate,
        config,
        asked_for,
        "max_new_tokens",
        asked,
    );
    let call = call.map_err(unfit)?;
    Ok(Call {
        stream,
        listed: call.listed || is_batch,
        ..call
    })
}

fn openai(endpoint: Endpoint, body: OpenAiBody, config: &Config) -> Result<Call, Refusal> {
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
        _ => match body.prompt.ok_or_else(|| missing(stream, "prompt"))? {
            Prompt::Texts(texts) => texts.tokens(),
            Prompt::Ids(ids) => ids.tokens(),
        },
    };
    let wanted = body.max_completion_tokens.or(body.max_tokens);
    let asked = |_, is_single| (wanted, body.rid.clone().filter(|_| is_single));
    let call = Call::new(endpoint, config, (prompts, body.n), "max_tokens", asked);
    let call = call.map_err(unfit)?;
    let options = body
        .stream_options
        .and_then(|options| options.include_usage);
    Ok(Call {
        stream,
        include_usage: options.unwrap_or(false),
        return_meta_info,
        model: body.model.unwrap_or_else(|| config.model.clone()),
        ..call
    })
}

fn missing(stream: bool, field: &str) -> Refusal {
    let wrong = format!("'type': 'missing', 'loc': ('body', '{field}'), 'msg': 'Field required'");
    invalid(stream, &wrong)
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

/// A request id of the server's own: 32 hexadecimal digits.
fn new_rid() -> String {
    format!("{:032x}", rand::random::<u128>())
}

impl<T> OneOrMany<T> {
    /// Of so many, the one at a place.
    pub(super) fn at(&self, place: usize) -> Option<&T> {
        match self {
            OneOrMany::One(one) => Some(one),
            OneOrMany::Many(many) => many.get(place),
        }
    }

    pub(super) fn is_many(&self) -> bool {
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

impl Refusal {
    pub(super) fn new(stream: bool, kind: RefusalKind, message: String) -> Refusal {
        Refusal {
            stream,
            kind,
            message,
        }
    }
}

#[cfg(test)]
mod tests;
