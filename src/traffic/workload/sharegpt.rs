//! ShareGPT's conversations, sampled as in SGLang's benchmark: the first turn is the prompt, the length of the second is the number of
//! tokens to ask for. With several turns, the user's are sent, and the lengths of the replies are the numbers of tokens.
//!
//! The file of 670 MB is read once, one entry at a time; only the sample is kept in memory.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::Arc;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::traffic::args::SharegptArgs;

use super::custom::count_words;
use super::dataset::{Content, Dataset, Entry, LaterTurns, id};
use super::records;

/// The random stream of the sample; the schedule and the requests use others.
const SAMPLE_STREAM: u64 = 1 << 60;
/// Shorter prompts and replies are left out, as in SGLang's benchmark.
const MIN_TOKENS: u64 = 2;

/// Estimates the number of tokens of a text, without a tokenizer: four bytes are one token.
pub fn estimated_tokens(text: &str) -> u64 {
    (text.len() as u64).div_ceil(4)
}

/// A conversation of the file.
#[derive(Debug, serde::Deserialize)]
struct Conversation {
    #[serde(default)]
    id: Value,
    #[serde(default, alias = "conversation")]
    conversations: Vec<Turn>,
}

#[derive(Debug, serde::Deserialize)]
struct Turn {
    #[serde(default)]
    value: Value,
}

/// Reads a random sample of a file: the `count` conversations with the lowest random numbers, in that order, with up to `max_turns` turns
/// of the user. So a larger sample of the same seed begins with a smaller one.
///
/// # Errors
/// What is wrong with the file, and where; to be appended to its name.
pub fn read(
    file: impl BufRead,
    lengths: &SharegptArgs,
    count: usize,
    max_turns: usize,
    seed: u64,
) -> Result<Dataset, String> {
    const EXPECTED: &str =
        "must be a JSON list of {\"id\", \"conversations\": [{\"from\", \"value\"}, …]}";
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(SAMPLE_STREAM);
    // The sample, by random number and index in the file.
    let (mut drawn, mut index) = (BTreeMap::new(), 0_u64);
    records::read(file, &[], EXPECTED, |conversation| {
        // Every conversation gets a number, so that those left out do not change the others' numbers.
        let rank = (rng.next_u64(), index);
        index += 1;
        if let Some(entry) = lengths.entry(conversation, max_turns) {
            drawn.insert(rank, Arc::new(entry));
        }
        if drawn.len() > count {
            drawn.pop_last();
        }
        Ok(true)
    })?;
    match drawn.is_empty() {
        true => Err(format!(
            ": none of its {index} conversations can be sent: one must have two turns, each of {MIN_TOKENS} tokens or \
             more, and fit --sharegpt-context-len"
        )),
        false => Ok(Dataset::of(drawn.into_values())),
    }
}

impl SharegptArgs {
    /// Returns the turns of a conversation up to the first that cannot be sent; `None` if that is the first turn.
    fn entry(&self, conversation: Conversation, max_turns: usize) -> Option<Entry> {
        let mut context = 0;
        let (pairs, _) = conversation.conversations.as_chunks();
        let turns = pairs.iter().take(max_turns);
        let mut turns = turns.map_while(|[prompt, reply]| {
            let (prompt, reply) = (prompt.value.as_str()?, reply.value.as_str()?);
            let input = estimated_tokens(prompt);
            let output = self.sharegpt_output_len;
            let output = output.unwrap_or(estimated_tokens(reply));
            context += input + output;
            let is_long_enough = input >= MIN_TOKENS && output >= MIN_TOKENS;
            let max = self.sharegpt_context_len;
            (is_long_enough && max.is_none_or(|max| context <= max))
                .then(|| (prompt.to_owned(), output))
        });
        let (text, output) = turns.next()?;
        Some(Entry {
            input: Some(count_words(&text)),
            output: Some(output),
            data_id: id(conversation.id),
            content: Content::Text(text),
            later: LaterTurns::Given(turns.collect()),
        })
    }
}

#[cfg(test)]
mod tests;
