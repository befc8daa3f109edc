//! Random text of short common words, each of which is one token for most tokenizers; and the ranges of random lengths.

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

const WORDS: &str = include_str!("words.txt");

static LIST: LazyLock<Vec<&str>> = LazyLock::new(|| WORDS.split_ascii_whitespace().collect());

/// Appends `count` words to a text, each after a blank but at the beginning of a paragraph.
pub(super) fn append(text: &mut String, count: u64, rng: &mut ChaCha8Rng) {
    for _ in 0..count {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push(' ');
        }
        text.push_str(LIST[rng.random_range(0..LIST.len())]);
    }
}

/// Returns the range of uniformly drawn lengths, as in SGLang's bench_serving: from `ratio` × `max` (rounded down, at least 1) to
/// `max`. A `max` of 0 counts as 1; a ratio outside of 0 to 1 as the nearer of them.
pub fn length_range(max: u64, ratio: f64) -> RangeInclusive<u64> {
    let high = max.max(1);
    let low = (max as f64 * ratio) as u64;
    low.clamp(1, high)..=high
}
