//! Data sets of the user's own: a JSON array or JSON lines of
//! `{"prompt": "…", "completion": "…", "id": "…"}` or `{"messages": […]}`.

use std::io::Read;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::traffic::error::Error;

use super::backend::Backend;
use super::dataset::{Content, Dataset, Entry, Later, Lengths};
use super::jsonl::{Named, json, lines, problem};

/// Prompts of a file, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompts(pub Vec<Prompt>);

/// One prompt of a data set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// What is sent, or else `messages`.
    pub text: String,
    /// A chat, sent as it stands.
    pub messages: Vec<Value>,
    /// Words of it, split at white space.
    pub input_words: u64,
    /// Tokens to ask for: the words of its `completion`.
    pub output_tokens: Option<u64>,
    /// Its `id`.
    pub id: Option<String>,
    /// What the user says after the first reply and later ones, and the tokens to ask for then.
    pub follow_ups: Vec<(String, u64)>,
}

/// An entry as it stands in the file.
#[derive(Deserialize)]
struct Line {
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    completion: Option<String>,
    id: Option<Value>,
}

impl Dataset for Prompts {
    fn count(&self) -> Option<usize> {
        Some(self.0.len())
    }

    fn entry(&self, index: u64, drawn: Lengths) -> Entry<'_> {
        // A data set without entries is refused where it is read.
        let prompt = &self.0[index as usize % self.0.len()];
        Entry {
            lengths: Lengths {
                input: prompt.input_words,
                output: prompt.output_tokens.unwrap_or(drawn.output),
                data_id: prompt.id.clone(),
            },
            content: match prompt.messages.as_slice() {
                [] => Content::Text(&prompt.text),
                messages => Content::Messages(messages),
            },
            later: Later::Said(&prompt.follow_ups),
        }
    }

    fn refused(&self, backend: Backend) -> Option<(String, &'static str)> {
        let mut prompts = self.0.iter();
        let at = prompts.position(|prompt| !prompt.messages.is_empty())?;
        let what = format!("the `messages` of data set entry {}", at + 1);
        matches!(backend, Backend::Sglang | Backend::SglangOai)
            .then_some((what, "--backend sglang-oai-chat"))
    }
}

/// Reads a data set, and says in words how much it is.
///
/// # Errors
/// [`Error::Usage`] names the file, the line and the field.
pub fn read(mut file: impl Read, named: Named<'_>) -> Result<(Prompts, String), Error> {
    let mut text = String::new();
    let read = file.read_to_string(&mut text);
    read.map_err(|cause| named.wrong(&format!(": {cause}")))?;
    let text = text.trim_start_matches('\u{feff}');
    let prompts: Vec<Prompt> = if text.trim_start().starts_with('[') {
        let entries: Result<Vec<&RawValue>, _> = serde_json::from_str(text);
        let entries = entries.map_err(|error| named.wrong_line(error.line(), &problem(&error)))?;
        let read = |(number, entry): (usize, &RawValue)| {
            prompt(entry.get()).map_err(|what| {
                // The entry is a piece of the text.
                let before = entry.get().as_ptr().addr() - text.as_ptr().addr();
                let line = text[..before].matches('\n').count() + 1;
                named.wrong_line(line, &format!("entry {number}: {what}"))
            })
        };
        (1..).zip(entries).map(read).collect::<Result<_, _>>()?
    } else {
        let read = |line: Result<(usize, String), Error>| {
            let (number, line) = line?;
            prompt(&line).map_err(|what| named.wrong_line(number, &what))
        };
        let lines = lines(text.as_bytes(), named, u64::MAX);
        lines.map(read).collect::<Result<_, _>>()?
    };
    if prompts.is_empty() {
        return Err(named.wrong(
            ": holds no entries; must be a JSON array or JSON lines of {\"prompt\", \"completion\", \"id\"} or \
             {\"messages\"}",
        ));
    }
    let taken = format!("its {} entries", prompts.len());
    Ok((Prompts(prompts), taken))
}

/// Reads an entry; else the field that is wrong, and what would be right.
fn prompt(text: &str) -> Result<Prompt, String> {
    let line: Line = json(text)?;
    let messages = line.messages.unwrap_or_default();
    let input_words = match &line.prompt {
        Some(prompt) if messages.is_empty() && !prompt.trim().is_empty() => words(prompt),
        Some(_) if messages.is_empty() => return Err("`prompt` must not be empty".to_owned()),
        Some(_) => return Err("has both `prompt` and `messages`: must have one".to_owned()),
        None if messages.is_empty() => {
            return Err("has neither `prompt` nor `messages`".to_owned());
        }
        None => words_of(&messages)?,
    };
    Ok(Prompt {
        text: line.prompt.unwrap_or_default(),
        messages,
        input_words,
        output_tokens: line.completion.map(|text| words(&text).max(1)),
        id: match line.id {
            None => None,
            Some(Value::String(id)) => Some(id),
            Some(Value::Number(id)) => Some(id.to_string()),
            Some(_) => return Err("`id` must be a string or number".to_owned()),
        },
        follow_ups: Vec::new(),
    })
}

/// The words of all text of a chat.
fn words_of(messages: &[Value]) -> Result<u64, String> {
    let mut count = 0;
    for (at, message) in messages.iter().enumerate() {
        if !message.get("role").is_some_and(Value::is_string) {
            return Err(format!("`messages[{at}].role` must be a string"));
        }
        count += match message.get("content") {
            Some(Value::String(text)) => words(text),
            Some(Value::Array(parts)) => {
                let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                texts.map(words).sum()
            }
            // An assistant's tool call has no content.
            None | Some(Value::Null) => 0,
            Some(_) => {
                return Err(format!(
                    "`messages[{at}].content` must be a string or an array of parts"
                ));
            }
        };
    }
    Ok(count)
}

/// Words of a text, split at white space.
pub(super) fn words(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}
