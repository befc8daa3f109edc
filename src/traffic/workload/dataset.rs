//! What a data set is: requests, each with its lengths and what it says.

use std::sync::Arc;

use serde_json::Value;

/// Where prompts come from.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// At least one. One may stand at several places.
    pub(super) entries: Vec<Arc<Entry>>,
    /// How many requests it has; `None`: as many as are asked for.
    pub count: Option<usize>,
    /// When its requests are sent, if it says so: nanoseconds from the start of the run, in order.
    pub times: Option<Arc<[i64]>>,
}

/// A request of a data set.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Words or token ids of the prompt (a trace's tokens are sent as so many words); `None`: drawn.
    pub input: Option<u64>,
    /// Tokens to ask for; `None`: drawn.
    pub output: Option<u64>,
    /// The data set's own id of it.
    pub data_id: Option<String>,
    /// What it sends.
    pub content: Content,
    /// What its conversation goes on with.
    pub later: Later,
}

/// What a request will be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lengths {
    /// Words or token ids of the prompt.
    pub input: u64,
    /// Tokens asked for.
    pub output: u64,
    /// The data set's own id of the entry.
    pub data_id: Option<String>,
}

/// What a request sends.
#[derive(Clone, Debug)]
pub enum Content {
    /// Random words: `each` words of each of the `shared` parts, which are the same in every prompt that names them, and
    /// then its own.
    Words {
        /// The parts.
        shared: Box<[u64]>,
        /// Words of a part, at most.
        each: u64,
        /// The prompt's own words are a paragraph of their own.
        apart: bool,
    },
    /// Random token ids below this: exact token counts without a tokenizer.
    Ids(u32),
    /// A prompt.
    Text(String),
    /// A chat, sent as it stands.
    Messages(Vec<Value>),
}

/// The turns of a conversation after the first.
#[derive(Clone, Debug, PartialEq)]
pub enum Later {
    /// Random words, as many turns as are asked for.
    Drawn,
    /// Texts and the tokens to ask for, as far as turns are asked for.
    Said(Vec<(String, u64)>),
}

impl Content {
    /// Random English words of its own alone: their number is the prompt's length (a word is about one token).
    pub fn words() -> Content {
        Content::Words {
            shared: Box::default(),
            each: 0,
            apart: false,
        }
    }
}

impl Entry {
    /// One of drawn lengths and turns.
    pub fn drawn(content: Content) -> Entry {
        Entry {
            input: None,
            output: None,
            data_id: None,
            content,
            later: Later::Drawn,
        }
    }
}

/// An id as data sets have it, if there is one.
///
/// # Errors
/// It is none.
pub(super) fn id(value: Value) -> Result<Option<String>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        Value::Number(number) => Ok(Some(number.to_string())),
        _ => Err("`id` must be a string or number".to_owned()),
    }
}

impl Dataset {
    /// These entries, one request each.
    pub fn of(entries: impl IntoIterator<Item = Arc<Entry>>) -> Dataset {
        let entries: Vec<_> = entries.into_iter().collect();
        Dataset {
            count: Some(entries.len()),
            entries,
            times: None,
        }
    }

    /// As many requests of this kind as are asked for.
    pub fn endless(content: Content) -> Dataset {
        Dataset {
            count: None,
            ..Dataset::of([Arc::new(Entry::drawn(content))])
        }
    }

    /// Request `index`, from the start again when they run out.
    pub fn entry(&self, index: u64) -> &Entry {
        &self.entries[index as usize % self.entries.len()]
    }
}
