//! A multimap of bounded size that evicts the keys that expire first.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::iter::repeat_n;

use crate::clock::{NANOS, Stamp};

/// Values by key, each with its arrival.
#[derive(Debug)]
pub struct BoundedMultimap<K, V> {
    entries: HashMap<K, Vec<Entry<V>>>,
    /// The number of values of all keys.
    pub(crate) len: usize,
    capacity: usize,
    next_sweep: Stamp,
}

/// A value and its arrival.
#[derive(Debug)]
pub struct Entry<V> {
    /// When the value was added, on our clock.
    pub arrived: Stamp,
    /// The value.
    pub value: V,
}

/// The time between two sweeps while the map is not full.
const SWEEP_INTERVAL_NANOS: i64 = 5 * NANOS;
/// A sweep of a full map frees this part of its capacity: it looks at all entries, which is too expensive for each addition.
const FREED_PART: usize = 8;

impl<K: Hash + Eq, V> BoundedMultimap<K, V> {
    /// Creates an empty map. Until the next [`BoundedMultimap::evict`] it may hold more than `capacity` values.
    pub fn new(capacity: usize) -> BoundedMultimap<K, V> {
        BoundedMultimap {
            entries: HashMap::new(),
            len: 0,
            capacity,
            next_sweep: Stamp::from_nanos(i64::MIN),
        }
    }

    /// Returns the entries of `key`, the oldest first.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> &[Entry<V>]
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).map_or(&[], Vec::as_slice)
    }

    /// Adds a value. Drops the key's oldest one if the key then has more than `max_per_key`.
    pub fn add(&mut self, key: K, value: V, now: Stamp, max_per_key: usize) {
        let entries = self.entries.entry(key).or_default();
        entries.push(Entry {
            arrived: now,
            value,
        });
        match entries.len() > max_per_key {
            true => drop(entries.remove(0)),
            false => self.len += 1,
        }
    }

    /// Removes the entries of `key` that are not to be kept.
    pub fn retain(&mut self, key: &K, is_kept: impl FnMut(&Entry<V>) -> bool) {
        let Some(entries) = self.entries.get_mut(key) else {
            return;
        };
        let before = entries.len();
        entries.retain(is_kept);
        self.len -= before - entries.len();
        if entries.is_empty() {
            self.entries.remove(key);
        }
    }

    /// Evicts keys and returns their values: every few seconds those whose last value is older than `max_age` (nanoseconds, given
    /// the key's entries); if the map is full, also those that would be next, until there is room.
    pub fn evict(&mut self, now: Stamp, max_age: impl Fn(&[Entry<V>]) -> i64) -> Vec<V> {
        let is_full = self.len > self.capacity;
        if !is_full && now < self.next_sweep {
            return Vec::new();
        }
        self.next_sweep = now.plus_nanos(SWEEP_INTERVAL_NANOS);
        let expiry = |entries: &[Entry<V>]| {
            let last = entries.last();
            last.map(|last| last.arrived.plus_nanos(max_age(entries)))
        };
        let mut until = Some(now);
        if is_full {
            let entries = self.entries.values();
            let of_values = entries.flat_map(|of_key| repeat_n(expiry(of_key), of_key.len()));
            let mut of_values: Vec<Option<Stamp>> = of_values.collect();
            let excess = self.len - (self.capacity - self.capacity / FREED_PART);
            let (_, last_freed, _) = of_values.select_nth_unstable(excess - 1);
            until = until.max(*last_freed);
        }
        let evicted = self.entries.extract_if(|_, of_key| expiry(of_key) <= until);
        let evicted: Vec<V> = evicted
            .flat_map(|(_, of_key)| of_key)
            .map(|entry| entry.value)
            .collect();
        self.len -= evicted.len();
        evicted
    }
}
