//! The offsets of many clocks.

use std::collections::HashMap;

use crate::clock::Stamp;

use super::bound::{Offset, OffsetBound};
use super::filter::OffsetFilter;

/// The offsets of many clocks, by name (an engine's host, a process's clock). Of a bounded number: a new clock beyond that replaces
/// the one that was updated longest ago.
#[derive(Clone, Debug, Default)]
pub struct OffsetTable {
    /// The number of the last update of each clock, and its filter, which is boxed so that the map moves little when it grows.
    clocks: HashMap<String, (u64, Box<OffsetFilter>)>,
    updates: u64,
}

/// The most clocks, which take under 2 MB.
const CAPACITY: usize = 1024;

impl OffsetTable {
    /// Adds bounds on the offset of the clock `key`; without any, there is no entry.
    pub fn add(&mut self, key: &str, bounds: &[OffsetBound]) {
        if bounds.is_empty() {
            return;
        }
        self.updates += 1;
        if self.clocks.len() >= CAPACITY && !self.clocks.contains_key(key) {
            let oldest = self.clocks.iter().min_by_key(|(_, (updated, _))| *updated);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.clocks.remove(&oldest));
        }
        let (updated, filter) = self.clocks.entry(key.to_owned()).or_default();
        *updated = self.updates;
        bounds.iter().for_each(|bound| filter.add(*bound));
    }

    /// The offset of the clock `key` at `now`; see [`OffsetFilter::offset`].
    pub fn get(&self, key: &str, now: Stamp) -> Option<Offset> {
        self.clocks.get(key)?.1.offset(now)
    }

    /// The offset of the clock `key` from one time to another; see [`OffsetFilter::offset_over`].
    pub fn get_over(&self, key: &str, (from, to): (Stamp, Stamp)) -> Option<Offset> {
        self.clocks.get(key)?.1.offset_over(from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_updated_longest_ago_is_replaced() {
        let mut table = OffsetTable::default();
        let known = OffsetBound {
            at: Stamp::from_nanos(10),
            at_least: Some(-1000),
            at_most: Some(1000),
        };
        let all = (0..CAPACITY).chain([0, CAPACITY]);
        all.for_each(|key| table.add(&key.to_string(), &[known]));
        table.add("nothing is known of it", &[]);
        let held = |key: usize| table.get(&key.to_string(), Stamp::from_nanos(10)).is_some();
        assert_eq!(table.clocks.len(), CAPACITY);
        assert_eq!([0, 1, 2, CAPACITY].map(held), [true, false, true, true]);
    }
}
