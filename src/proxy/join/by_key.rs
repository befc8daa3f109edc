//! Attempts by a key that several may share.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;

use ahash::AHashMap as HashMap;

use crate::clock::Stamp;

use super::{CAPACITY, SharedAttempt};

/// The most attempts of a key: the two legs of one request, and some more if a client reuses it.
const MAX_ATTEMPTS: usize = 8;

/// The attempts of each key, until they are taken or the key is old.
#[derive(Debug, Default)]
pub(super) struct AttemptsBy<K> {
    attempts: HashMap<K, Vec<SharedAttempt>>,
    /// Keys by when they were first added.
    since: VecDeque<(Stamp, K)>,
}

impl<K: Clone + Eq + Hash> AttemptsBy<K> {
    /// Adds an attempt, once however often it is added; drops keys that are older than `memory` nanoseconds.
    pub fn add(&mut self, key: K, attempt: &SharedAttempt, now: Stamp, memory: i64) {
        let attempts = self.attempts.entry(key.clone()).or_default();
        if attempts.is_empty() {
            self.since.push_back((now, key));
        }
        let is_new = !attempts.iter().any(|one| Arc::ptr_eq(one, attempt));
        if is_new && attempts.len() < MAX_ATTEMPTS {
            attempts.push(attempt.clone());
        }
        let is_old = |(at, _): &(Stamp, K)| now.nanos_since(*at) > memory;
        while self.since.len() > CAPACITY || self.since.front().is_some_and(is_old) {
            let oldest = self.since.pop_front();
            oldest.and_then(|(_, key)| self.attempts.remove(&key));
        }
    }

    /// Returns the attempts of a key.
    pub fn get(&self, key: &K) -> &[SharedAttempt] {
        self.attempts.get(key).map_or(&[], Vec::as_slice)
    }

    /// Takes the attempts of a key.
    pub fn take<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Vec<SharedAttempt>
    where
        K: Borrow<Q>,
    {
        self.attempts.remove(key).unwrap_or_default()
    }
}
