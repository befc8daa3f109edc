//! Data sets of the user's own: a JSON array or JSON lines of
//! `{"prompt": "…", "completion": "…", "id": "…"}` or `{"messages": […]}`.

use std::io::Read;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::traffic::error::Error;

use super::dataset::{Content, Dataset, Entry, Later};
use super::jsonl::{Named, json, problem};

/// An entry as it stands in the file.
#[derive(Deserialize)]
struct Line {
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    completion: Option<String>,
    id: Option<Value>,
}

/// Reads a data set, and says in words how much it is.
///
/// # Errors
/// [`Error::Usage`] names the file, the line and the field.
pub fn read(mut file: impl Read, named: Named<'_>) -> Result<(Dataset, String), Error> {
    let mut text = String::new();
    let read = file.read_to_string(&mut text);
    read.map_err(|cause| named.wrong(&format!(": {cause}")))?;
    let pieces: Vec<&str> = if text.trim_start().starts_with('[') {
        let entries: Result<Vec<&RawValue>, _> = serde_json::from_str(&text);
        let entries = entries.map_err(|error| named.wrong_line(error.line(), &problem(&error)))?;
        entries.into_iter().map(RawValue::get).collect()
    } else {
        let lines = text.lines().map(str::trim_end);
        lines.filter(|line| !line.is_empty()).collect()
    };
    if pieces.is_empty() {
        return Err(named.wrong(
            ": holds no entries; must be a JSON array or JSON lines of {\"prompt\", \"completion\", \"id\"} or \
             {\"messages\"}",
        ));
    }
    let read = |piece: &&str| {
        entry(piece).map(Arc::new).map_err(|what| {
            // The entry is a piece of the text.
            let before = piece.as_ptr().addr() - text.as_ptr().addr();
            named.wrong_line(text[..before].matches('\n').count() + 1, &what)
        })
    };
    let entries: Vec<Arc<Entry>> = pieces.iter().map(read).collect::<Result<_, _>>()?;
    let taken = format!("its {} entries", entries.len());
    Ok((Dataset::of(entries), taken))
}

/// Reads an entry; else the field that is wrong, and what would be right.
fn entry(text: &str) -> Result<Entry, String> {
    let line: Line = json(text)?;
    let (input, content) = match (line.prompt, line.messages.unwrap_or_default()) {
        (None, messages) if messages.is_empty() => {
            return Err("has neither `prompt` nor `messages`".to_owned());
        }
        (None, messages) => (words_of(&messages)?, Content::Messages(messages)),
        (Some(_), messages) if !messages.is_empty() => {
            return Err("has both `prompt` and `messages`: must have one".to_owned());
        }
        (Some(prompt), _) if prompt.trim().is_empty() => {
            return Err("`prompt` must not be empty".to_owned());
        }
        (Some(prompt), _) => (words(&prompt), Content::Text(prompt)),
    };
    Ok(Entry {
        input: Some(input),
        output: line.completion.map(|text| words(&text).max(1)),
        data_id: match line.id {
            None => None,
            Some(Value::String(id)) => Some(id),
            Some(Value::Number(id)) => Some(id.to_string()),
            Some(_) => return Err("`id` must be a string or number".to_owned()),
        },
        content,
        later: Later::Said(Vec::new()),
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
