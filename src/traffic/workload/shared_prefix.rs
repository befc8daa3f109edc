//! Groups of prompts that begin with the same words, as SGLang's `generated-shared-prefix`: what a prefix cache, and a
//! router that knows of it, make of them.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::dataset::{Content, Dataset, Entry, Later, Lengths};

/// How many groups of how many prompts, and how long they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Groups; at least 1.
    pub groups: u32,
    /// Prompts of each; at least 1.
    pub prompts: u32,
    /// Words that a group shares.
    pub prefix: u64,
    /// Words of each prompt's own, behind them.
    pub question: u64,
    /// Tokens to ask for.
    pub output: u64,
}

/// The prompts in the order in which they are sent.
#[derive(Clone, Debug)]
pub struct SharedPrefix {
    shape: Shape,
    /// The group of each prompt.
    order: Vec<u64>,
}

/// The random stream of the order: none of a schedule's or request's.
const ORDER_STREAM: u64 = (1 << 60) + 1;

impl SharedPrefix {
    /// All prompts of all groups, shuffled.
    pub fn new(shape: Shape, seed: u64) -> SharedPrefix {
        let groups =
            (0..u64::from(shape.groups)).flat_map(|group| (0..shape.prompts).map(move |_| group));
        let mut order: Vec<u64> = groups.collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(ORDER_STREAM);
        order.shuffle(&mut rng);
        SharedPrefix { shape, order }
    }
}

impl Dataset for SharedPrefix {
    fn count(&self) -> Option<usize> {
        Some(self.order.len())
    }

    /// After the last prompt come new ones of the same groups in the same order.
    fn entry(&self, index: u64, _: Lengths) -> Entry<'_> {
        let Shape {
            prefix,
            question,
            output,
            ..
        } = self.shape;
        let group = &self.order[index as usize % self.order.len()];
        Entry {
            lengths: Lengths {
                input: prefix + question,
                output,
                data_id: Some(format!("group-{group}")),
            },
            content: Content::Words {
                shared: std::slice::from_ref(group),
                each: prefix,
                apart: true,
            },
            later: Later::Drawn,
        }
    }
}
