//! ShareGPT's conversations, as SGLang's benchmark takes them: the first turn is the prompt, the second says how long
//! the answer is to be. Of more turns the user's are sent, and the others say how long the answers are to be.
//!
//! The file has 670 MB and is read once, an entry at a time: only the sample is kept.

use std::collections::BinaryHeap;
use std::fmt;
use std::io::{BufReader, Read};

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::Value;

use crate::traffic::error::Error;

use super::custom::{Content, Entry, words};

/// What of the file is sent.
#[derive(Clone, Debug)]
pub struct Sampling {
    /// Conversations to draw.
    pub count: usize,
    /// Seed of the draw.
    pub seed: u64,
    /// Tokens to ask for, instead of the length of the second turn.
    pub output_len: Option<u64>,
    /// Conversations longer than this, prompt and answer together, are left out.
    pub context_len: Option<u64>,
    /// Turns of the user that are sent, at most; at least 1.
    pub turns: usize,
}

/// The random stream of the draw: none of a schedule's or request's.
const SAMPLE_STREAM: u64 = 1 << 60;
/// SGLang's benchmark leaves out prompts and answers of fewer tokens.
const FEWEST_TOKENS: u64 = 2;
const RIGHT: &str =
    "must be a JSON list of {\"id\", \"conversations\": [{\"from\", \"value\"}, …]}";

/// About how many tokens a text has. There is no tokenizer here: four bytes are taken for one token.
pub fn estimated_tokens(text: &str) -> u64 {
    (text.len() as u64).div_ceil(4)
}

/// A sample of the file in random order, and in words what it is of. A larger sample of the same seed begins with a
/// smaller one.
///
/// # Errors
/// [`Error::Usage`] names the file, line and column, and what would be right.
pub fn sample(
    file: impl Read,
    path: &str,
    sampling: &Sampling,
) -> Result<(Vec<Entry>, String), Error> {
    let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
    rng.set_stream(SAMPLE_STREAM);
    let mut sample = Sample {
        sampling,
        rng,
        read: 0,
        fit: 0,
        drawn: BinaryHeap::new(),
    };
    let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 16, file));
    let read = (&mut sample).deserialize(&mut json);
    read.and_then(|()| json.end()).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let what = text
            .rsplit_once(" at line ")
            .map_or(&*text, |(what, _)| what);
        let place = format!("--dataset-path {path}, line {line}, column {column}");
        Error::Usage(format!("{place}: {what}; {RIGHT}"))
    })?;
    let (fit, read) = (sample.fit, sample.read);
    if fit == 0 {
        return Err(Error::Usage(format!(
            "--dataset-path {path}: none of its {read} conversations can be sent: one must have two turns, each of \
             {FEWEST_TOKENS} tokens or more, and fit --sharegpt-context-len"
        )));
    }
    let drawn = sample.drawn.into_sorted_vec();
    let entries: Vec<Entry> = drawn.into_iter().map(|drawn| drawn.entry).collect();
    let taken = format!(
        "{} of {fit} conversations that can be sent, of {read}",
        entries.len()
    );
    Ok((entries, taken))
}

/// The conversations with the lowest random numbers.
struct Sample<'a> {
    sampling: &'a Sampling,
    rng: ChaCha8Rng,
    read: u64,
    fit: u64,
    drawn: BinaryHeap<Drawn>,
}

struct Drawn {
    /// The random number, and the place in the file.
    rank: (u64, u64),
    entry: Entry,
}

#[derive(serde::Deserialize)]
struct Conversation {
    #[serde(default)]
    id: Value,
    #[serde(default, alias = "conversation")]
    conversations: Exchanges,
}

/// Turns of the user and their answers.
#[derive(Default)]
struct Exchanges(Vec<(String, String)>);

#[derive(serde::Deserialize)]
struct Turn {
    value: String,
}

/// A turn that is passed over when it is no text.
#[derive(serde::Deserialize)]
struct LaterTurn {
    #[serde(default)]
    value: Value,
}

impl Sample<'_> {
    fn take(&mut self, conversation: Conversation) {
        // One number a conversation, so that what is left out does not change the others' numbers.
        let rank = (self.rng.next_u64(), self.read);
        self.read += 1;
        let Some(entry) = entry(conversation, self.sampling) else {
            return;
        };
        self.fit += 1;
        if self.drawn.len() < self.sampling.count {
            self.drawn.push(Drawn { rank, entry });
        } else if let Some(mut last) = self.drawn.peek_mut()
            && rank < last.rank
        {
            *last = Drawn { rank, entry };
        }
    }
}

/// What is sent of a conversation, if it fits.
fn entry(conversation: Conversation, sampling: &Sampling) -> Option<Entry> {
    let mut context = 0;
    let said = conversation.conversations.0.into_iter();
    let mut turns = said.take(sampling.turns).map_while(|(said, answer)| {
        let input = estimated_tokens(&said);
        let output = sampling.output_len.unwrap_or(estimated_tokens(&answer));
        context += input + output;
        let is_long_enough = input >= FEWEST_TOKENS && output >= FEWEST_TOKENS;
        let fits = sampling.context_len.is_none_or(|most| context <= most);
        (is_long_enough && fits).then_some((said, output))
    });
    let (prompt, output) = turns.next()?;
    Some(Entry {
        input_words: words(&prompt),
        content: Content::Prompt(prompt),
        output_tokens: Some(output),
        id: match conversation.id {
            Value::String(id) => Some(id),
            Value::Number(id) => Some(id.to_string()),
            _ => None,
        },
        follow_ups: turns.collect(),
    })
}

impl<'de> DeserializeSeed<'de> for &mut Sample<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for &mut Sample<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of conversations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(conversation) = list.next_element()? {
            self.take(conversation);
        }
        Ok(())
    }
}

impl<'de> serde::Deserialize<'de> for Exchanges {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Exchanges, D::Error> {
        struct Turns;
        impl<'de> Visitor<'de> for Turns {
            type Value = Exchanges;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of turns")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut turns: A) -> Result<Exchanges, A::Error> {
                let first = turns.next_element::<Turn>()?;
                let second = turns.next_element::<Turn>()?;
                let both = first.zip(second);
                let mut all: Vec<_> = both
                    .map(|(one, two)| (one.value, two.value))
                    .into_iter()
                    .collect();
                let mut is_whole = !all.is_empty();
                while let Some(said) = turns.next_element::<LaterTurn>()? {
                    let answer = turns.next_element::<LaterTurn>()?.map(|turn| turn.value);
                    match (said.value, answer) {
                        (Value::String(said), Some(Value::String(answer))) if is_whole => {
                            all.push((said, answer));
                        }
                        _ => is_whole = false,
                    }
                }
                Ok(Exchanges(all))
            }
        }
        json.deserialize_seq(Turns)
    }
}

impl PartialEq for Drawn {
    fn eq(&self, other: &Drawn) -> bool {
        self.rank == other.rank
    }
}

impl Eq for Drawn {}

impl PartialOrd for Drawn {
    fn partial_cmp(&self, other: &Drawn) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Drawn {
    fn cmp(&self, other: &Drawn) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
    }
}

#[cfg(test)]
mod tests;
