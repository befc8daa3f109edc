//! Attempts by a name that is not theirs alone.

use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;

use ahash::AHashMap as HashMap;

use crate::clock::Stamp;

use super::{CAPACITY, Leg};

/// Attempts of a name: the two legs of one sending, and some that a client calls the same.
const MOST: usize = 8;

/// The attempts of each name, until they are taken or it is old.
#[derive(Debug, Default)]
pub(super) struct Named<K> {
    attempts: HashMap<K, Vec<Leg>>,
    /// Names by when they were first heard.
    since: VecDeque<(Stamp, K)>,
}

impl<K: Clone + Eq + Hash> Named<K> {
    /// An attempt has a name, as often as that is told; names are forgotten after `memory`.
    pub fn add(&mut self, name: K, attempt: &Leg, now: Stamp, memory: i64) {
        let attempts = self.attempts.entry(name.clone()).or_default();
        if attempts.is_empty() {
            self.since.push_back((now, name));
        }
        let is_new = !attempts.iter().any(|one| Arc::ptr_eq(one, attempt));
        if is_new && attempts.len() < MOST {
            attempts.push(attempt.clone());
        }
        let is_old = |(at, _): &(Stamp, K)| now.nanos_since(*at) > memory;
        while self.since.len() > CAPACITY || self.since.front().is_some_and(is_old) {
            let oldest = self.since.pop_front();
            oldest.and_then(|(_, name)| self.attempts.remove(&name));
        }
    }

    /// Those of a name.
    pub fn of(&self, name: &K) -> &[Leg] {
        self.attempts.get(name).map_or(&[], Vec::as_slice)
    }

    /// Those of a name, which is forgotten.
    pub fn take(&mut self, name: &K) -> Vec<Leg> {
        self.attempts.remove(name).unwrap_or_default()
    }
}
