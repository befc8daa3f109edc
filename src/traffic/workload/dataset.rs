//! What a data set is: requests, each with its lengths and what it says.

use std::fmt;

use serde_json::Value;
use serde_json::value::RawValue;

use super::backend::Backend;
use super::conversation::FollowUp;

/// Where prompts come from.
pub trait Dataset: fmt::Debug + Send + Sync {
    /// How many requests it has; `None`: as many as are asked for.
    fn count(&self) -> Option<usize> {
        None
    }

    /// Request `index`, from the start again when it runs out; `drawn` are its lengths, where it says none itself.
    fn entry(&self, index: u64, drawn: Lengths) -> Entry<'_>;

    /// What of it a backend cannot send, and what to use instead.
    fn refused(&self, _: Backend) -> Option<(String, &'static str)> {
        None
    }

    /// Turns of its longest conversation, where it says itself when they are sent.
    fn most_turns(&self) -> Option<usize> {
        None
    }
}

/// A request of a data set.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// How long it is.
    pub lengths: Lengths,
    /// What it sends.
    pub content: Content<'a>,
    /// What its conversation goes on with.
    pub later: Later<'a>,
}

/// What a request will be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lengths {
    /// Words or token ids of the prompt (a trace's tokens are sent as so many words).
    pub input: u64,
    /// Tokens asked for.
    pub output: u64,
    /// The data set's own id of the entry.
    pub data_id: Option<String>,
}

/// What a request sends.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// Random words: `each` words of each of the `shared` parts, which are the same in every prompt that names them, and
    /// then its own.
    Words {
        /// The parts.
        shared: &'a [u64],
        /// Words of a part, at most.
        each: u64,
        /// The prompt's own words are a paragraph of their own.
        apart: bool,
    },
    /// Random token ids below this.
    Ids(u32),
    /// A prompt.
    Text(&'a str),
    /// A chat, sent as it stands.
    Messages(&'a [Value]),
    /// A body, sent as it was stored.
    Body(&'a RawValue),
}

/// The turns of a conversation after the first.
#[derive(Clone, Copy, Debug)]
pub enum Later<'a> {
    /// Random words, as many turns as are asked for.
    Drawn,
    /// Texts and the tokens to ask for, as far as turns are asked for.
    Said(&'a [(String, u64)]),
    /// All that there is.
    Stored(&'a [FollowUp]),
}

/// Random words of its own alone.
pub const OWN_WORDS: Content<'static> = Content::Words {
    shared: &[],
    each: 0,
    apart: false,
};

/// Random English words: their number is the prompt's length (a word is about one token).
#[derive(Clone, Copy, Debug)]
pub struct Random;

/// Random token ids: exact token counts without a tokenizer.
#[derive(Clone, Copy, Debug)]
pub struct RandomIds {
    /// Ids are below this.
    pub vocab_size: u32,
}

impl Dataset for Random {
    fn entry(&self, _: u64, lengths: Lengths) -> Entry<'_> {
        Entry {
            lengths,
            content: OWN_WORDS,
            later: Later::Drawn,
        }
    }
}

impl Dataset for RandomIds {
    fn entry(&self, _: u64, lengths: Lengths) -> Entry<'_> {
        Entry {
            lengths,
            content: Content::Ids(self.vocab_size),
            later: Later::Drawn,
        }
    }

    fn refused(&self, backend: Backend) -> Option<(String, &'static str)> {
        (backend == Backend::SglangOaiChat).then(|| {
            (
                "--dataset-name random-ids (a chat has no token ids)".to_owned(),
                "--backend sglang or sglang-oai, or --dataset-name random",
            )
        })
    }
}
