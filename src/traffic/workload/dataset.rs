//! Data sets: entries with their lengths and contents; those that are generated.

use std::sync::Arc;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::error::Error;
use crate::traffic::args::SharedPrefixArgs;

/// A data set.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// At least one. The same entry may occur several times.
    pub(super) entries: Vec<Arc<Entry>>,
    /// The number of requests; `None`: as many as are asked for.
    pub count: Option<usize>,
    /// The offsets of its requests in nanoseconds, in order; `None` if their times are not used.
    pub times: Option<Arc<[i64]>>,
    /// The SHA-256, hexadecimal, of the whole file that it was read from; `None` if it is generated.
    pub sha256: Option<String>,
}

/// An entry of a data set: a request, or a conversation.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Words or token ids of the prompt (of a trace: its tokens, each sent as a word); `None`: drawn at random.
    pub input: Option<u64>,
    /// Tokens to ask for; `None`: drawn at random.
    pub output: Option<u64>,
    /// Its id in the data set.
    pub data_id: Option<String>,
    /// The prompt.
    pub content: Content,
    /// The turns after the first.
    pub later: LaterTurns,
}

/// The lengths of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lengths {
    /// Words or token ids of the prompt.
    pub input: u64,
    /// Tokens asked for.
    pub output: u64,
    /// The id of its entry in the data set.
    pub data_id: Option<String>,
}

/// The prompt of a request.
#[derive(Clone, Debug)]
pub enum Content {
    /// Random words: first those of shared parts, which are the same in every prompt that contains the part, then the prompt's own.
    Words {
        /// The numbers of the parts.
        shared_parts: Box<[u64]>,
        /// Words of a part, at most.
        words_per_part: u64,
        /// Whether the prompt's own words are a paragraph of their own.
        has_own_paragraph: bool,
    },
    /// Random token ids below this number: exact token counts without a tokenizer.
    Ids(u32),
    /// A text.
    Text(String),
    /// The messages of a chat, sent unchanged.
    Messages(Vec<Value>),
}

/// The turns of a conversation after the first.
#[derive(Clone, Debug, PartialEq)]
pub enum LaterTurns {
    /// Random words, in as many turns as are asked for.
    Random,
    /// These texts, each with the tokens to ask for; at most as many turns as are asked for.
    Given(Vec<(String, u64)>),
}

/// The random stream of the order; the schedule and the requests use others.
const ORDER_STREAM: u64 = (1 << 60) + 1;
/// More prompts are taken for a typing error.
const MAX_PROMPTS: u64 = 10_000_000;

impl Content {
    /// Random English words without shared parts. Their number is the prompt's length; a word is about one token.
    pub fn words() -> Content {
        Content::Words {
            shared_parts: Box::default(),
            words_per_part: 0,
            has_own_paragraph: false,
        }
    }
}

impl Entry {
    /// An entry with random lengths and turns.
    pub fn random(content: Content) -> Entry {
        Entry {
            input: None,
            output: None,
            data_id: None,
            content,
            later: LaterTurns::Random,
        }
    }
}

impl Dataset {
    /// A data set of these entries, one request each.
    pub fn of(entries: impl IntoIterator<Item = Arc<Entry>>) -> Dataset {
        let entries: Vec<_> = entries.into_iter().collect();
        Dataset {
            count: Some(entries.len()),
            entries,
            times: None,
            sha256: None,
        }
    }

    /// A data set of as many requests with this content as are asked for.
    pub fn endless(content: Content) -> Dataset {
        Dataset {
            count: None,
            ..Dataset::of([Arc::new(Entry::random(content))])
        }
    }

    /// The entry of request `number`; starts again after the last.
    pub fn entry(&self, number: u64) -> &Entry {
        &self.entries[number as usize % self.entries.len()]
    }
}

impl SharedPrefixArgs {
    /// Generates the prompts of all groups, shuffled. Those of a group begin with the same words, as in SGLang's
    /// `generated-shared-prefix`: to test prefix caches, and routers that know of them. After the last, new ones of the same groups follow in the same order.
    ///
    /// # Errors
    /// [`Error::usage`]: there would be too many.
    pub fn dataset(&self, seed: u64) -> Result<Dataset, Error> {
        let (groups, prompts) = (self.gsp_num_groups, self.gsp_prompts_per_group);
        if u64::from(groups) * u64::from(prompts) > MAX_PROMPTS {
            return Err(Error::usage(format!(
                "--gsp-num-groups {groups} × --gsp-prompts-per-group {prompts}: must be {MAX_PROMPTS} prompts at most"
            )));
        }
        let all = (0..u64::from(groups)).flat_map(|group| {
            let content = Content::Words {
                shared_parts: [group].into(),
                words_per_part: self.gsp_system_prompt_len,
                has_own_paragraph: true,
            };
            let entry = Entry {
                input: Some(self.gsp_system_prompt_len + self.gsp_question_len),
                output: Some(self.gsp_output_len),
                data_id: Some(format!("group-{group}")),
                ..Entry::random(content)
            };
            std::iter::repeat_n(Arc::new(entry), prompts as usize)
        });
        let mut order: Vec<Arc<Entry>> = all.collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(ORDER_STREAM);
        order.shuffle(&mut rng);
        Ok(Dataset::of(order))
    }
}
