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
    waiting: VecDeque<Due>,
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

    /// Asks for a slot for a request; if it must wait, its draft is kept where `is_kept` says so.
    pub(super) fn enter(&self, mut due: Due, is_kept: bool) -> Admission {
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
                queue.waiting.push_back(due);
                Admission::Waits
            }
        }
    }

    /// Gives a slot back: to the request that has waited longest, if there is one.
    pub(super) fn next(&self) -> Option<Due> {
        let mut queue = self.0.lock();
        let next = queue.waiting.pop_front();
        if next.is_none() {
            queue.free += 1;
        }
        next
    }

    /// Lets no request enter any more, and gives those that waited.
    pub(super) fn close(&self) -> VecDeque<Due> {
        let mut queue = self.0.lock();
        queue.closed = true;
        std::mem::take(&mut queue.waiting)
    }

    /// Whether any waits.
    pub(super) fn is_full(&self) -> bool {
        !self.0.lock().waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(place: usize) -> Due {
        Due {
            place,
            at: Stamp::from_nanos(0),
            draft: Some(Bytes::from_static(b"{}")),
        }
    }

    #[test]
    fn slots_go_round_in_order_until_they_close() {
        let slots = Slots::new(Some(2));
        let entered: Vec<Admission> = (0..4)
            .map(|place| slots.enter(due(place), place == 3))
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
        assert_eq!(slots.next(), Some(undrafted));
        assert_eq!(
            slots.next(),
            Some(due(3)),
            "what can be made once only is kept"
        );
        assert_eq!((slots.next(), slots.is_full()), (None, false));
        assert_eq!(slots.enter(due(4), false), Admission::Slot(due(4)));
        assert_eq!(slots.enter(due(5), true), Admission::Waits);
        assert_eq!(slots.close(), [due(5)]);
        assert_eq!(slots.enter(due(6), false), Admission::Closed(due(6)));
        assert_eq!(slots.next(), None);
    }

    #[test]
    fn without_a_limit_nobody_waits() {
        let slots = Slots::new(None);
        let has_slot = |place| matches!(slots.enter(due(place), false), Admission::Slot(_));
        assert!((0..1000).all(has_slot));
    }
}
