//! How often each of some things was.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Counts by what is counted.
#[derive(Clone, Debug)]
pub struct Tally<K>(BTreeMap<K, u64>);

impl<K: Ord> Tally<K> {
    /// Counts one more of it.
    pub fn count(&mut self, what: K) {
        *self.0.entry(what).or_default() += 1;
    }

    /// How many different ones there were.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each with its count, most frequent first.
    pub fn most_frequent(&self) -> impl Iterator<Item = (&K, u64)> {
        let mut all: Vec<(&K, u64)> = self.0.iter().map(|(what, count)| (what, *count)).collect();
        all.sort_by_key(|(_, count)| Reverse(*count));
        all.into_iter()
    }
}

impl<K> Default for Tally<K> {
    fn default() -> Tally<K> {
        Tally(BTreeMap::new())
    }
}
