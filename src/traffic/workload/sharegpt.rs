//! ShareGPT's conversations, as SGLang's benchmark takes them: the first turn is the prompt, the second says how long
//! the answer is to be. Of more turns the user's are sent, and the others say how long the answers are to be.
//!
//! The file has 670 MB and is read once, an entry at a time: only the sample is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::traffic::args::values;

use super::custom::words;
use super::dataset::{Content, Dataset, Entry, Later, id};
use super::records::Format;

/// How ShareGPT is sampled.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Data set sharegpt")]
pub struct SharegptArgs {
    /// Tokens to ask for [default: those of the answer, four bytes each]
    #[arg(long, value_name = "N", value_parser = values::length)]
    pub sharegpt_output_len: Option<u64>,
    /// Leave out conversations of more tokens (of four bytes each)
    ///
    /// Prompt and answer together.
    #[arg(long, value_name = "N", value_parser = values::length)]
    pub sharegpt_context_len: Option<u64>,
}

/// The random stream of the draw: none of a schedule's or request's.
const SAMPLE_STREAM: u64 = 1 << 60;
/// SGLang's benchmark leaves out prompts and answers of fewer tokens.
const FEWEST_TOKENS: u64 = 2;

/// About how many tokens a text has. There is no tokenizer here: four bytes are taken for one token.
pub fn estimated_tokens(text: &str) -> u64 {
    (text.len() as u64).div_ceil(4)
}

/// A sample in random order: the conversations with the lowest random numbers. A larger sample of the same seed begins
/// with a smaller one.
#[derive(Debug)]
pub struct Sample {
    lengths: SharegptArgs,
    /// Conversations to draw.
    count: usize,
    /// Turns of the user that are sent, at most; at least 1.
    turns: usize,
    rng: ChaCha8Rng,
    read: u64,
    fit: u64,
    /// By random number and place in the file.
    drawn: BTreeMap<(u64, u64), Entry>,
}

/// A conversation as it stands in the file.
#[derive(Debug, serde::Deserialize)]
pub struct Conversation {
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

impl Sample {
    /// Of a file that is to be read: so many conversations, with so many turns of the user that are sent, at most.
    pub fn new(lengths: &SharegptArgs, count: usize, turns: usize, seed: u64) -> Sample {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(SAMPLE_STREAM);
        Sample {
            lengths: lengths.clone(),
            count,
            turns,
            rng,
            read: 0,
            fit: 0,
            drawn: BTreeMap::new(),
        }
    }

    /// What is sent of a conversation, if it fits: turns of the user with their answers, as far as they are texts.
    fn entry(&self, conversation: Conversation) -> Option<Entry> {
        let mut context = 0;
        let lengths = &self.lengths;
        let (pairs, _) = conversation.conversations.as_chunks();
        let turns = pairs.iter().take(self.turns);
        let mut turns = turns.map_while(|[said, answer]| {
            let (said, answer) = (said.value.as_str()?, answer.value.as_str()?);
            let input = estimated_tokens(said);
            let output = lengths.sharegpt_output_len;
            let output = output.unwrap_or(estimated_tokens(answer));
            context += input + output;
            let is_long_enough = input >= FEWEST_TOKENS && output >= FEWEST_TOKENS;
            let most = lengths.sharegpt_context_len;
            (is_long_enough && most.is_none_or(|most| context <= most))
                .then(|| (said.to_owned(), output))
        });
        let (text, output) = turns.next()?;
        Some(Entry {
            input: Some(words(&text)),
            output: Some(output),
            data_id: id(conversation.id).unwrap_or_default(),
            content: Content::Text(text),
            later: Later::Said(turns.collect()),
        })
    }
}

impl Format for Sample {
    type Record = Conversation;

    fn right(&self) -> &'static str {
        "must be a JSON list of {\"id\", \"conversations\": [{\"from\", \"value\"}, …]}"
    }

    fn take(&mut self, conversation: Conversation) -> Result<bool, String> {
        // One number a conversation, so that what is left out does not change the others' numbers.
        let rank = (self.rng.next_u64(), self.read);
        self.read += 1;
        if let Some(entry) = self.entry(conversation) {
            self.fit += 1;
            self.drawn.insert(rank, entry);
        }
        if self.drawn.len() > self.count {
            self.drawn.pop_last();
        }
        Ok(true)
    }

    fn finish(self) -> Result<(Dataset, String), String> {
        let (drawn, fit, read) = (self.drawn.len(), self.fit, self.read);
        if fit == 0 {
            return Err(format!(
                "none of its {read} conversations can be sent: one must have two turns, each of {FEWEST_TOKENS} tokens or \
                 more, and fit --sharegpt-context-len"
            ));
        }
        let taken = format!("{drawn} of {fit} conversations that can be sent, of {read}");
        let entries = self.drawn.into_values().map(Arc::new);
        Ok((Dataset::of(entries), taken))
    }
}

#[cfg(test)]
mod tests;
