//! Values by key, of which a bounded number is held: the oldest go.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use crate::clock::{NANOS, Stamp};

/// Values by key.
#[derive(Debug)]
pub struct Fifo<K, V> {
    slots: HashMap<K, Vec<Held<V>>>,
    /// Values of all keys.
    pub(crate) len: usize,
    most: usize,
    /// The number of the last that came.
    last: u64,
    /// When all of it is looked at the next time.
    due: Stamp,
}

/// A value, and when it came.
#[derive(Debug)]
pub struct Held<V> {
    /// No two have the same, and later ones a higher.
    pub number: u64,
    /// On our clock.
    pub came: Stamp,
    /// What came.
    pub value: V,
}

/// How long nothing is looked at while there is room for all, nanoseconds.
const PAUSE: i64 = 5 * NANOS;
/// Where there is too much, this part goes at once: to look at all for each that comes would cost too much.
const SPARE: usize = 8;

impl<K: Hash + Eq, V> Fifo<K, V> {
    /// An empty one of so many values at most.
    pub fn new(most: usize) -> Fifo<K, V> {
        Fifo {
            slots: HashMap::new(),
            len: 0,
            most,
            last: 0,
            due: Stamp::from_nanos(i64::MIN),
        }
    }

    /// What came under `key`.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> &[Held<V>]
    where
        K: Borrow<Q>,
    {
        self.slots.get(key).map_or(&[], Vec::as_slice)
    }

    /// Something came at `now`. Of one key the last `most` stay.
    pub fn add(&mut self, key: K, value: V, now: Stamp, most: usize) {
        self.last += 1;
        let slot = self.slots.entry(key).or_default();
        slot.push(Held {
            number: self.last,
            came: now,
            value,
        });
        match slot.len() > most {
            true => drop(slot.remove(0)),
            false => self.len += 1,
        }
    }

    /// Lets go what is not kept of a key.
    pub fn retain(&mut self, key: &K, is_kept: impl FnMut(&Held<V>) -> bool) {
        let Some(slot) = self.slots.get_mut(key) else {
            return;
        };
        let before = slot.len();
        slot.retain(is_kept);
        self.len -= before - slot.len();
        if slot.is_empty() {
            self.slots.remove(key);
        }
    }

    /// Lets keys go: now and then those that are not kept; where there is too much, the oldest of these first, and of the others then
    /// (`is_kept` is given whether there is). Gives what went.
    pub fn forget(&mut self, now: Stamp, is_kept: impl Fn(&[Held<V>], bool) -> bool) -> Vec<V> {
        let is_full = self.len > self.most;
        if !is_full && now < self.due {
            return Vec::new();
        }
        self.due = now.plus_nanos(PAUSE);
        let turn = |slot: &[Held<V>]| {
            let first = slot.first().map(|held| held.number);
            (is_kept(slot, is_full), first)
        };
        let slots = self.slots.values();
        let mut turns: Vec<_> = slots.map(|slot| (turn(slot), slot.len())).collect();
        turns.sort_unstable();
        let (mut left, enough) = (self.len, self.most - self.most / SPARE);
        let last = turns.into_iter().take_while(|((is_kept, _), many)| {
            let goes = if is_full { left > enough } else { !is_kept };
            left -= many;
            goes
        });
        let Some((last, _)) = last.last() else {
            return Vec::new();
        };
        let gone = self.slots.extract_if(|_, slot| turn(slot) <= last);
        let gone: Vec<V> = gone
            .flat_map(|(_, slot)| slot)
            .map(|held| held.value)
            .collect();
        self.len -= gone.len();
        gone
    }
}
