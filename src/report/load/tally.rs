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

    /// How many there were.
    pub fn get(&self, what: &K) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// How many different ones there were.
    pub(in crate::report) fn len(&self) -> usize {
        self.0.len()
    }

    /// Each with its count, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, u64)> {
        self.0.iter().map(|(what, count)| (what, *count))
    }

    /// Each with its count, most frequent first.
    pub fn most_frequent(&self) -> impl Iterator<Item = (&K, u64)> {
        let mut all: Vec<(&K, u64)> = self.iter().collect();
        all.sort_by_key(|(_, count)| Reverse(*count));
        all.into_iter()
    }

    /// Adds the counts of others.
    pub fn add(&mut self, more: Tally<K>) {
        for (what, count) in more.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

impl<K> Default for Tally<K> {
    fn default() -> Tally<K> {
        Tally(BTreeMap::new())
    }
}

impl<K: Ord> FromIterator<K> for Tally<K> {
    fn from_iter<I: IntoIterator<Item = K>>(all: I) -> Tally<K> {
        let mut tally = Tally::default();
        all.into_iter().for_each(|what| tally.count(what));
        tally
    }
}
