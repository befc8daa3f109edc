//! Random prose, of common short words that most tokenizers know as one token each, and its lengths.

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

const WORDS: &str = include_str!("words.txt");

static LIST: LazyLock<Vec<&str>> = LazyLock::new(|| WORDS.split_ascii_whitespace().collect());

/// Adds `count` words to a text, a blank before each.
pub(super) fn append(text: &mut String, count: u64, rng: &mut ChaCha8Rng) {
    for _ in 0..count {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(LIST[rng.random_range(0..LIST.len())]);
    }
}

/// Lengths that are drawn uniformly: from `ratio` × `most` (rounded down, at least 1) to `most`, as SGLang's bench_serving draws:
/// a ratio of 1 is always `most`. A `most` of 0 is taken for 1, and a ratio beyond 0 to 1 for the nearer of them.
pub fn up_to(most: u64, ratio: f64) -> RangeInclusive<u64> {
    let high = most.max(1);
    let low = (most as f64 * ratio) as u64;
    low.clamp(1, high)..=high
}
