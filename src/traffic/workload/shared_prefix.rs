//! Groups of prompts that begin with the same words, as SGLang's `generated-shared-prefix`: what a prefix cache, and a
//! router that knows of it, make of them.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

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
    order: Vec<u32>,
}

/// The random stream of the order: none of a schedule's or request's.
const ORDER_STREAM: u64 = (1 << 60) + 1;

impl SharedPrefix {
    /// All prompts of all groups, shuffled.
    pub fn new(shape: Shape, seed: u64) -> SharedPrefix {
        let groups = (0..shape.groups).flat_map(|group| (0..shape.prompts).map(move |_| group));
        let mut order: Vec<u32> = groups.collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(ORDER_STREAM);
        order.shuffle(&mut rng);
        SharedPrefix { shape, order }
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// How many prompts there are.
    pub fn count(&self) -> usize {
        self.order.len()
    }

    /// The group of request `index`. After the last prompt come new ones of the same groups in the same order.
    pub fn group(&self, index: u64) -> u32 {
        let place = index as usize % self.order.len().max(1);
        self.order.get(place).copied().unwrap_or_default()
    }
}
