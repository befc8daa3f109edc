//! The offsets of many clocks.

use std::collections::HashMap;

use crate::clock::Stamp;

use super::filter::{Offset, OffsetBound, OffsetFilter};

/// The offsets of many clocks, by name (an engine's host, a process's clock). Of a bounded number: a new clock beyond that replaces
/// any other, whose offset is then learned anew.
#[derive(Clone, Debug, Default)]
pub struct OffsetTable {
    /// The filters are boxed, so that the map moves little when it grows.
    clocks: HashMap<String, Box<OffsetFilter>>,
}

/// The most clocks, which take under 2 MB.
const CAPACITY: usize = 1024;

impl OffsetTable {
    /// Adds bounds on the offset of the clock `key`; without any, there is no entry.
    pub fn add(&mut self, key: &str, bounds: &[OffsetBound]) {
        if bounds.is_empty() {
            return;
        }
        if self.clocks.len() >= CAPACITY && !self.clocks.contains_key(key) {
            let other = self.clocks.keys().next().cloned();
            other.and_then(|other| self.clocks.remove(&other));
        }
        let filter = self.clocks.entry(key.to_owned()).or_default();
        bounds.iter().for_each(|bound| filter.add(*bound));
    }

    /// The offset of the clock `key` from one time to another; see [`OffsetFilter::offset_over`].
    pub fn get_over(&self, key: &str, (from, to): (Stamp, Stamp)) -> Option<Offset> {
        self.clocks.get(key)?.offset_over(from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_clocks_than_that_and_the_newest_is_one_of_them() {
        let mut table = OffsetTable::default();
        let at = Stamp::from_nanos(10);
        let known = [
            OffsetBound::of_sent(at, at),
            OffsetBound::of_received(at, at),
        ];
        (0..CAPACITY).for_each(|key| table.add(&key.to_string(), &known));
        table.add("nothing is known of it", &[]);
        for key in ["0", "new"] {
            table.add(key, &known);
            assert!(table.get_over(key, (at, at)).is_some(), "{key}");
            assert_eq!(table.clocks.len(), CAPACITY);
        }
    }
}
