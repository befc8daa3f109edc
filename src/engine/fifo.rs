//! Values by key, of which a bounded number is held: the oldest go.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use crate::clock::Stamp;

/// Values by key, in the order they came.
#[derive(Debug)]
pub struct Fifo<K, V> {
    slots: HashMap<K, Slot<V>>,
    /// Keys in the order in which they are looked at, whether still there or not.
    order: VecDeque<Turn<K>>,
    /// Values of all keys.
    pub(crate) len: usize,
    most: usize,
    next: u64,
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

#[derive(Debug)]
struct Slot<V> {
    turn: u64,
    values: Vec<Held<V>>,
}

#[derive(Debug)]
struct Turn<K> {
    number: u64,
    since: Stamp,
    key: K,
    /// How often the key was spared.
    spared: u8,
}

/// How often a key may be spared.
const SPARED: u8 = 64;
/// Turns of keys that are gone that may stand in the order.
const SPARE: usize = 64;

impl<K: Hash + Eq + Clone, V> Fifo<K, V> {
    /// An empty one of so many values at most.
    pub fn new(most: usize) -> Fifo<K, V> {
        Fifo {
            slots: HashMap::new(),
            order: VecDeque::new(),
            len: 0,
            most,
            next: 0,
        }
    }

    /// What came under `key`.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> &[Held<V>]
    where
        K: Borrow<Q>,
    {
        self.slots.get(key).map_or(&[], |slot| &slot.values)
    }

    /// Something came at `now`. Of one key the last `most` stay; gives the one that had to go.
    pub fn add(&mut self, key: K, value: V, now: Stamp, most: usize) -> Option<V> {
        self.next += 1;
        let number = self.next;
        if !self.slots.contains_key(&key) {
            let key = key.clone();
            self.order.push_back(Turn {
                number,
                since: now,
                key,
                spared: 0,
            });
        }
        let slot = self.slots.entry(key).or_insert_with(|| Slot {
            turn: number,
            values: Vec::new(),
        });
        slot.values.push(Held {
            number,
            came: now,
            value,
        });
        self.len += 1;
        let has_room = slot.values.len() <= most;
        (!has_room).then(|| {
            self.len -= 1;
            slot.values.remove(0).value
        })
    }

    /// Lets go what is not kept of a key; gives it.
    pub fn retain(&mut self, key: &K, mut is_kept: impl FnMut(&Held<V>) -> bool) -> Vec<V> {
        let Some(slot) = self.slots.get_mut(key) else {
            return Vec::new();
        };
        let gone: Vec<V> = slot
            .values
            .extract_if(.., |held| !is_kept(held))
            .map(|held| held.value)
            .collect();
        self.len -= gone.len();
        if slot.values.is_empty() {
            self.slots.remove(key);
            if self.order.len() > 2 * self.slots.len() + SPARE {
                let slots = &self.slots;
                self.order.retain(|turn| is_there(slots, turn));
            }
        }
        gone
    }

    /// Lets the oldest keys go where there is too much, and those that came before `before`, but for what is spared, given whether
    /// there is too much: that is looked at again when as much time has passed. Gives what went.
    pub fn forget(
        &mut self,
        before: Stamp,
        now: Stamp,
        is_spared: impl Fn(&[Held<V>], bool) -> bool,
    ) -> Vec<V> {
        let mut gone = Vec::new();
        while let Some(mut turn) = self.order.pop_front() {
            let is_full = self.len > self.most;
            if !is_full && turn.since >= before {
                self.order.push_front(turn);
                break;
            }
            if !is_there(&self.slots, &turn) {
                continue;
            }
            if turn.spared < SPARED && is_spared(self.get(&turn.key), is_full) {
                (turn.since, turn.spared) = (now, turn.spared + 1);
                self.order.push_back(turn);
                continue;
            }
            gone.extend(self.retain(&turn.key, |_| false));
        }
        gone
    }
}

/// Whether the key is still there, or again.
fn is_there<K: Hash + Eq, V>(slots: &HashMap<K, Slot<V>>, turn: &Turn<K>) -> bool {
    slots
        .get(&turn.key)
        .is_some_and(|slot| slot.turn == turn.number)
}
