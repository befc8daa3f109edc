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
    /// Turns that will never be sent, as one before them went wrong.
    not_sent: usize,
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
                not_sent: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// The turn at this place is due at `at`.
    pub(super) fn add(&self, at: Stamp, place: usize, body: Bytes) {
        self.waiting.lock().due.push(Reverse((at, place, body)));
        self.changed.notify_one();
    }

    /// A conversation is over, so many turns before its end.
    pub(super) fn over(&self, not_sent: usize) {
        let mut waiting = self.waiting.lock();
        waiting.open = waiting.open.saturating_sub(1);
        waiting.not_sent += not_sent;
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

    /// How many turns were not sent, as one before them went wrong.
    pub(super) fn not_sent(&self) -> usize {
        self.waiting.lock().not_sent
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
        turns.over(0);
        turns.over(3);
        assert!(turns.next(&clock, || false).is_none(), "all are over");
        assert_eq!(turns.not_sent(), 3);
    }
}
