//! Data sets of the user's own: a JSON array or JSON lines of
//! `{"prompt": "…", "completion": "…", "id": "…"}` or `{"messages": […]}`.

use std::io::Read;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::traffic::error::Error;

/// One prompt of a data set.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(try_from = "Value")]
pub struct Entry {
    /// What is sent.
    pub content: Content,
    /// Words of it, split at white space.
    pub input_words: u64,
    /// Tokens to ask for: the words of its `completion`.
    pub output_tokens: Option<u64>,
    /// Its `id`.
    pub id: Option<String>,
    /// What the user says after the first reply and later ones, and the tokens to ask for then.
    pub follow_ups: Vec<(String, u64)>,
}

/// What an entry sends.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A prompt.
    Prompt(String),
    /// A chat, sent as it stands.
    Messages(Vec<Value>),
}

impl Entry {
    /// Whether only a chat endpoint takes it.
    pub fn is_chat(&self) -> bool {
        matches!(self.content, Content::Messages(_))
    }
}

/// Reads a data set, and says in words how much it is.
///
/// # Errors
/// [`Error::Usage`] names the file, the line and the field.
pub fn read(mut file: impl Read, path: &str) -> Result<(Vec<Entry>, String), Error> {
    let mut text = String::new();
    let read = file.read_to_string(&mut text);
    read.map_err(|cause| Error::Usage(format!("--dataset-path {path}: {cause}")))?;
    let entries = parse(&text, path)?;
    let taken = format!("its {} entries", entries.len());
    Ok((entries, taken))
}

/// Reads a data set from `text`, the contents of `path`.
///
/// # Errors
/// [`Error::Usage`] names the file, the line and the field.
pub fn parse(text: &str, path: &str) -> Result<Vec<Entry>, Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let wrong = |line: usize, problem: String| {
        Error::Usage(format!("--dataset-path {path}, line {line}: {problem}"))
    };
    let entries: Vec<Entry> = if text.trim_start().starts_with('[') {
        let entries: Result<Vec<&RawValue>, _> = serde_json::from_str(text);
        let entries = entries.map_err(|error| wrong(error.line(), problem(&error)))?;
        let read = |(number, entry): (usize, &RawValue)| {
            serde_json::from_str(entry.get()).map_err(|error| {
                // The entry is a piece of the text.
                let before = entry.get().as_ptr().addr() - text.as_ptr().addr();
                let line = text[..before].matches('\n').count() + 1;
                wrong(line, format!("entry {number}: {}", problem(&error)))
            })
        };
        (1..).zip(entries).map(read).collect::<Result<_, _>>()?
    } else {
        let lines = (1..).zip(text.lines());
        let filled = lines.filter(|(_, line)| !line.trim().is_empty());
        let read = |(at, line)| serde_json::from_str(line).map_err(|e| wrong(at, problem(&e)));
        filled.map(read).collect::<Result<_, _>>()?
    };
    if entries.is_empty() {
        return Err(Error::Usage(format!(
            "--dataset-path {path}: holds no entries; must be a JSON array or JSON lines of \
             {{\"prompt\", \"completion\", \"id\"}} or {{\"messages\"}}"
        )));
    }
    Ok(entries)
}

/// What is wrong with an entry, without its place.
fn problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text
        .rsplit_once(" at line ")
        .map_or(&*text, |(what, _)| what);
    match error.is_data() {
        true => what.to_owned(),
        false => format!("is not JSON: {what}"),
    }
}

impl TryFrom<Value> for Entry {
    type Error = String;

    /// What is wrong is told with the field and what would be right.
    fn try_from(value: Value) -> Result<Entry, String> {
        let Value::Object(mut fields) = value else {
            return Err(format!("must be an object, not {}", kind(&value)));
        };
        let (content, input_words) = match (fields.remove("prompt"), fields.remove("messages")) {
            (Some(Value::String(prompt)), None) if !prompt.trim().is_empty() => {
                let count = words(&prompt);
                (Content::Prompt(prompt), count)
            }
            (Some(Value::String(_)), None) => return Err("`prompt` must not be empty".to_owned()),
            (Some(other), None) => {
                return Err(format!("`prompt` must be a string, not {}", kind(&other)));
            }
            (None, Some(messages)) => chat(messages)?,
            (Some(_), Some(_)) => {
                return Err("has both `prompt` and `messages`: must have one of them".to_owned());
            }
            (None, None) => return Err("has neither `prompt` nor `messages`".to_owned()),
        };
        let output_tokens = match fields.get("completion") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(words(text).max(1)),
            Some(other) => {
                return Err(format!(
                    "`completion` must be a string, not {}",
                    kind(other)
                ));
            }
        };
        let id = match fields.get("id") {
            None | Some(Value::Null) => None,
            Some(Value::String(id)) => Some(id.clone()),
            Some(Value::Number(id)) => Some(id.to_string()),
            Some(other) => {
                return Err(format!(
                    "`id` must be a string or number, not {}",
                    kind(other)
                ));
            }
        };
        Ok(Entry {
            content,
            input_words,
            output_tokens,
            id,
            follow_ups: Vec::new(),
        })
    }
}

/// A chat's messages and the words of all its text.
fn chat(messages: Value) -> Result<(Content, u64), String> {
    let Value::Array(messages) = messages else {
        return Err(format!(
            "`messages` must be an array, not {}",
            kind(&messages)
        ));
    };
    if messages.is_empty() {
        return Err("`messages` must not be empty".to_owned());
    }
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
            Some(other) => {
                return Err(format!(
                    "`messages[{at}].content` must be a string or an array of parts, not {}",
                    kind(other)
                ));
            }
        };
    }
    Ok((Content::Messages(messages), count))
}

/// Words of a text, split at white space.
pub(super) fn words(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
