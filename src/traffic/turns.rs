//! The turns of conversations after the first: their times are known only when the replies before them have ended, so
//! a thread of its own waits for them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::clock::{Clock, Stamp};

use super::slots::Due;

/// Who waits for its time, and who may still come.
#[derive(Debug)]
pub(super) struct Turns {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug)]
struct Waiting {
    /// Time, place in the schedule and body; the earliest first.
    due: BinaryHeap<Reverse<(Stamp, usize, Bytes)>>,
    /// Conversations that are not over.
    open: usize,
    /// Turns of the conversations that have begun that have not been due.
    not_due: usize,
}

/// The thread looks at least this often whether the run was stopped.
const LOOK: Duration = Duration::from_millis(50);

impl Turns {
    /// Of so many conversations, none of which has begun.
    pub(super) fn new(conversations: usize) -> Turns {
        Turns {
            waiting: Mutex::new(Waiting {
                due: BinaryHeap::new(),
                open: conversations,
                not_due: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// The turn at this place is due at `at`.
    pub(super) fn add(&self, at: Stamp, place: usize, body: Bytes) {
        self.waiting.lock().due.push(Reverse((at, place, body)));
        self.changed.notify_one();
    }

    /// A turn is due: the first of a conversation of `begun` turns, or (0) a later one.
    pub(super) fn handed_over(&self, begun: usize) {
        let mut waiting = self.waiting.lock();
        waiting.not_due = (waiting.not_due + begun).saturating_sub(1);
    }

    /// A conversation is over, at its end or before.
    pub(super) fn over(&self) {
        let mut waiting = self.waiting.lock();
        waiting.open = waiting.open.saturating_sub(1);
        drop(waiting);
        self.changed.notify_one();
    }

    /// Waits for the next turn's time. `None` once all conversations are over, or the run `is_stopped`.
    pub(super) fn next(&self, clock: &Clock, is_stopped: impl Fn() -> bool) -> Option<Due> {
        let mut waiting = self.waiting.lock();
        while waiting.open > 0 && !is_stopped() {
            let first = waiting.due.peek();
            let wait = first.map(|Reverse((at, ..))| at.nanos_since(clock.now()));
            match wait {
                Some(..=0) => {
                    let Reverse((at, place, body)) = waiting.due.pop()?;
                    let draft = Some(body);
                    return Some(Due { place, at, draft });
                }
                Some(wait) => {
                    let wait = Duration::from_nanos(wait.unsigned_abs()).min(LOOK);
                    self.changed.wait_for(&mut waiting, wait);
                }
                None => {
                    self.changed.wait_for(&mut waiting, LOOK);
                }
            }
        }
        None
    }

    /// How many turns of the conversations that have begun were never due, whatever kept them.
    pub(super) fn not_due(&self) -> usize {
        self.waiting.lock().not_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order_of_time_until_all_conversations_are_over() {
        let at = |nanos| Stamp::from_nanos(nanos);
        let (clock, _) = Clock::manual(at(100));
        let turns = Turns::new(2);
        for (nanos, place) in [(30, 7), (10, 5), (20, 1)] {
            turns.add(at(nanos), place, Bytes::from_static(b"{}"));
        }
        let next = || turns.next(&clock, || false);
        let places: Vec<usize> = (0..3).map(|_| next().unwrap().place).collect();
        assert_eq!(places, [5, 1, 7]);
        turns.add(at(101), 9, Bytes::new());
        assert!(turns.next(&clock, || true).is_none(), "stopped");
        turns.over();
        turns.over();
        assert!(turns.next(&clock, || false).is_none(), "all are over");
        for begun in [3, 0, 2] {
            turns.handed_over(begun);
        }
        assert_eq!(turns.not_due(), 2);
    }
}
