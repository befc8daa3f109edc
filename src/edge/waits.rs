//! How long something was waited for, in sum.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::clock::Clock;

/// A sum of times in which something was waited for.
#[derive(Debug)]
pub(super) struct Waits {
    sum: AtomicI64,
    since: AtomicI64,
}

/// `since` while nothing is waited for.
const NOT_WAITING: i64 = i64::MIN;

impl Waits {
    pub(super) fn new() -> Waits {
        Waits {
            sum: AtomicI64::new(0),
            since: AtomicI64::new(NOT_WAITING),
        }
    }

    /// What was polled is ready or not.
    pub(super) fn polled(&self, is_ready: bool, clock: &Clock) {
        let since = self.since.load(Ordering::Relaxed);
        if !is_ready && since == NOT_WAITING {
            self.since.store(clock.now().nanos(), Ordering::Relaxed);
        } else if is_ready && since != NOT_WAITING {
            let waited = clock.now().nanos().saturating_sub(since);
            self.sum.fetch_add(waited, Ordering::Relaxed);
            self.since.store(NOT_WAITING, Ordering::Relaxed);
        }
    }

    /// Nanoseconds in all, the present wait included.
    pub(super) fn nanos(&self, clock: &Clock) -> i64 {
        let over = self.sum.load(Ordering::Relaxed);
        match self.since.load(Ordering::Relaxed) {
            NOT_WAITING => over,
            since => over.saturating_add(clock.now().nanos().saturating_sub(since)),
        }
    }
}
