//! Lengths that are drawn.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// A length drawn uniformly from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthRange {
    pub(super) low: u64,
    pub(super) high: u64,
}

impl LengthRange {
    /// Uniform from `ratio` × `most` (rounded down, at least 1) to `most`, as SGLang's bench_serving draws:
    /// a ratio of 1 is always `most`. `None` unless `most` ≥ 1 and 0 ≤ `ratio` ≤ 1.
    pub fn up_to(most: u64, ratio: f64) -> Option<LengthRange> {
        if most == 0 || !(0.0..=1.0).contains(&ratio) {
            return None;
        }
        let low = (most as f64 * ratio) as u64;
        Some(LengthRange {
            low: low.clamp(1, most),
            high: most,
        })
    }

    pub(super) fn draw(self, rng: &mut ChaCha8Rng) -> u64 {
        rng.random_range(self.low..=self.high)
    }
}

impl std::fmt::Display for LengthRange {
    /// `192 to 320`, or `8`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.low == self.high {
            true => write!(f, "{}", self.high),
            false => write!(f, "{} to {}", self.low, self.high),
        }
    }
}
