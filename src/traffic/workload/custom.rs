//! The user's own data sets: a JSON array or JSON lines of `{"prompt": "…", "completion": "…", "id": "…"}` or
//! `{"messages": […]}`.

use std::io::BufRead;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::dataset::{Content, Dataset, Entry, LaterTurns, id};
use super::records;

/// An entry of the file.
#[derive(Debug, Deserialize)]
struct Line {
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    completion: Option<String>,
    #[serde(default)]
    id: Value,
}

/// What a file must be.
const EXPECTED: &str =
    "must be a JSON array or JSON lines of {\"prompt\", \"completion\", \"id\"} or {\"messages\"}";

/// Reads the entries of a file.
///
/// # Errors
/// What is wrong with it, and where; to be appended to its name.
pub fn read(file: impl BufRead) -> Result<Dataset, String> {
    let mut entries = Vec::new();
    records::read(file, &[], EXPECTED, |line: Line| {
        let messages = line.messages.filter(|messages| !messages.is_empty());
        let (input, content) = match (line.prompt, messages) {
            (None, None) => return Err("has neither `prompt` nor `messages`".to_owned()),
            (Some(_), Some(_)) => return Err("has both `prompt` and `messages`".to_owned()),
            (None, Some(messages)) => {
                let words = messages.iter().map(words_of).sum();
                (words, Content::Messages(messages))
            }
            (Some(prompt), _) if prompt.trim().is_empty() => {
                return Err("`prompt` must not be empty".to_owned());
            }
            (Some(prompt), _) => (count_words(&prompt), Content::Text(prompt)),
        };
        entries.push(Arc::new(Entry {
            input: Some(input),
            output: line.completion.map(|text| count_words(&text).max(1)),
            data_id: id(line.id),
            content,
            later: LaterTurns::Given(Vec::new()),
        }));
        Ok(true)
    })?;
    match entries.is_empty() {
        true => Err(format!(": holds no entries; {EXPECTED}")),
        false => Ok(Dataset::of(entries)),
    }
}

/// Counts the words of a message of a chat. What else it holds is the server's to judge.
fn words_of(message: &Value) -> u64 {
    match &message["content"] {
        Value::String(text) => count_words(text),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.map(count_words).sum()
        }
        _ => 0,
    }
}

/// Counts the words of a text as rows do: they are separated by ASCII white space.
pub(super) fn count_words(text: &str) -> u64 {
    text.split_ascii_whitespace().count() as u64
}
