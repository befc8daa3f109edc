//! How many requests may be under way at once, and who waits for it: in order, and without its body, which can be made
//! again (but that of a conversation's later turn).

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::clock::Stamp;

/// A request whose time has come.
#[derive(Debug, PartialEq)]
pub(super) struct Due {
    /// Its place in the schedule of all shards.
    pub(super) place: usize,
    /// When it was due.
    pub(super) at: Stamp,
    /// Its body, if it is made already. That of a later turn always is: it can be made once only.
    pub(super) draft: Option<Bytes>,
}

/// The slots of `--max-concurrency`, given to requests in their order.
#[derive(Debug)]
pub(super) struct Slots(Mutex<Queue>);

#[derive(Debug)]
struct Queue {
    free: usize,
    /// With when it came.
    waiting: VecDeque<(Stamp, Due)>,
    closed: bool,
}

/// What a request finds.
#[derive(Debug, PartialEq)]
pub(super) enum Admission {
    /// A slot: to be given back with [`Slots::next`].
    Slot(Due),
    /// It waits: [`Slots::next`] or [`Slots::close`] will give it.
    Waits,
    /// No further request gets a slot.
    Closed(Due),
}

impl Slots {
    /// So many slots; no limit at all when `None`.
    pub(super) fn new(limit: Option<usize>) -> Slots {
        Slots(Mutex::new(Queue {
            free: limit.unwrap_or(usize::MAX),
            waiting: VecDeque::new(),
            closed: false,
        }))
    }

    /// Asks for a slot for a request that comes `now`; if it must wait, its draft is kept where `is_kept` says so.
    pub(super) fn enter(&self, mut due: Due, is_kept: bool, now: Stamp) -> Admission {
        let mut queue = self.0.lock();
        if queue.closed {
            return Admission::Closed(due);
        }
        match queue.free.checked_sub(1) {
            Some(left) => {
                queue.free = left;
                Admission::Slot(due)
            }
            None => {
                if !is_kept {
                    due.draft = None;
                }
                queue.waiting.push_back((now, due));
                Admission::Waits
            }
        }
    }

    /// Gives a slot back `now`: to the request that has waited longest, if there is one, with how long, nanoseconds. That
    /// counts from when it came, not from when it was due: to come late was the generator's own doing.
    pub(super) fn next(&self, now: Stamp) -> Option<(Due, i64)> {
        let mut queue = self.0.lock();
        let Some((came, due)) = queue.waiting.pop_front() else {
            queue.free += 1;
            return None;
        };
        Some((due, now.nanos_since(came).max(0)))
    }

    /// Lets no request enter any more, and gives those that waited.
    pub(super) fn close(&self) -> Vec<Due> {
        let mut queue = self.0.lock();
        queue.closed = true;
        queue.waiting.drain(..).map(|(_, due)| due).collect()
    }

    /// Whether any waits.
    pub(super) fn is_full(&self) -> bool {
        !self.0.lock().waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: i64) -> Stamp {
        Stamp::from_nanos(nanos)
    }

    fn due(place: usize) -> Due {
        Due {
            place,
            at: at(0),
            draft: Some(Bytes::from_static(b"{}")),
        }
    }

    #[test]
    fn slots_go_round_in_order_until_they_close() {
        let slots = Slots::new(Some(2));
        let entered: Vec<Admission> = (0..4)
            .map(|place| slots.enter(due(place), place == 3, at(500 + place as i64)))
            .collect();
        assert_eq!(
            entered[..2],
            [0, 1].map(|place| Admission::Slot(due(place)))
        );
        assert_eq!(entered[2..], [Admission::Waits, Admission::Waits]);
        assert!(slots.is_full());
        let undrafted = Due {
            draft: None,
            ..due(2)
        };
        // Due at 0, but late by 502 before it waited: that is not the slot's.
        assert_eq!(slots.next(at(700)), Some((undrafted, 198)));
        assert_eq!(
            slots.next(at(400)),
            Some((due(3), 0)),
            "what can be made once only is kept"
        );
        assert_eq!((slots.next(at(0)), slots.is_full()), (None, false));
        assert_eq!(slots.enter(due(4), false, at(0)), Admission::Slot(due(4)));
        assert_eq!(slots.enter(due(5), true, at(0)), Admission::Waits);
        assert_eq!(slots.close(), [due(5)]);
        assert_eq!(slots.enter(due(6), false, at(0)), Admission::Closed(due(6)));
        assert_eq!(slots.next(at(0)), None);
    }

    #[test]
    fn without_a_limit_nobody_waits() {
        let slots = Slots::new(None);
        let has_slot = |place| matches!(slots.enter(due(place), false, at(0)), Admission::Slot(_));
        assert!((0..1000).all(has_slot));
    }
}
