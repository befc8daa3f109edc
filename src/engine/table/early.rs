//! What was told before its row came, or of which nobody knows yet whose it is.

use std::collections::{HashMap, VecDeque};

use crate::clock::Stamp;
use crate::request::told::Told;

/// What was told and not taken, by all that a row may be found by. Bounded.
#[derive(Debug, Default)]
pub(super) struct Early {
    next: u64,
    all: HashMap<u64, Found>,
    by_key: HashMap<Key, Vec<u64>>,
    order: VecDeque<(Stamp, u64)>,
    /// Those that were dropped, for their age or for want of room.
    pub dropped: usize,
}

/// Something told, and when it came, on our clock.
pub(super) type Found = (Stamp, Told);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Rid(String),
    Trace(u128),
    Request(String),
}

/// Of what has the same trace or request id so many are found by it: one request has no more.
const ALIKE: usize = 256;
/// Of what has the same engine id the last so many are kept: a client uses its own again, one after the other.
const SAME_RID: usize = 8;

impl Early {
    /// What came at `came`; `most` may be held.
    pub fn add(&mut self, (came, told): Found, most: usize) {
        if let Some(rid) = &told.rid {
            let same = self.by_key.get(&Key::Rid(rid.clone()));
            let oldest = same.filter(|ids| ids.len() >= SAME_RID);
            if let Some(oldest) = oldest.and_then(|ids| ids.first().copied()) {
                self.dropped += usize::from(self.remove(oldest).is_some());
            }
        }
        while self.all.len() >= most {
            let Some((_, oldest)) = self.order.pop_front() else {
                break;
            };
            self.dropped += usize::from(self.remove(oldest).is_some());
        }
        let id = self.next;
        self.next += 1;
        for key in Key::all(&told) {
            let ids = self.by_key.entry(key).or_default();
            if ids.len() < ALIKE {
                ids.push(id);
            }
        }
        self.order.push_back((came, id));
        self.all.insert(id, (came, told));
        if self.order.len() > 2 * most {
            // Those that were taken left their place.
            self.order.retain(|(_, id)| self.all.contains_key(id));
        }
    }

    /// Forgets the same without the name that a router gave it: it is told once more, with it.
    pub fn withdraw(&mut self, told: &Told) {
        let (Some(rid), Some(_)) = (&told.rid, &told.request_id) else {
            return;
        };
        let is_same = |other: &Told| {
            other.request_id.is_none()
                && (other.source, other.trace, other.parent)
                    == (told.source, told.trace, told.parent)
        };
        let key = Key::Rid(rid.clone());
        let mut found = self.find(&key);
        let same = found.find(|(_, (_, other))| is_same(other));
        let same = same.map(|(id, _)| id);
        drop(found);
        same.and_then(|id| self.remove(id));
    }

    /// What is found by `key`, the oldest first.
    pub fn find(&self, key: &Key) -> impl Iterator<Item = (u64, &Found)> {
        let ids = self.by_key.get(key).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.all.get(id)?)))
    }

    /// Takes all that is found by `key`.
    pub fn take(&mut self, key: &Key) -> Vec<Found> {
        let ids = self.by_key.get(key).cloned().unwrap_or_default();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    pub fn remove(&mut self, id: u64) -> Option<Found> {
        let (came, told) = self.all.remove(&id)?;
        for key in Key::all(&told) {
            if let Some(ids) = self.by_key.get_mut(&key) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
        Some((came, told))
    }

    pub fn forget(&mut self, before: Stamp) {
        while let Some((_, oldest)) = self.order.front().copied().filter(|(at, _)| *at < before) {
            self.order.pop_front();
            self.dropped += usize::from(self.remove(oldest).is_some());
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> (usize, usize) {
        (self.all.len(), self.by_key.len())
    }
}

impl Key {
    fn all(told: &Told) -> impl Iterator<Item = Key> {
        let rid = told.rid.clone().map(Key::Rid);
        let trace = told.trace.map(Key::Trace);
        let request = told.request_id.clone().map(Key::Request);
        [rid, trace, request].into_iter().flatten()
    }
}
