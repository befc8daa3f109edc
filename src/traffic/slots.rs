//! How many requests may be under way at once, and who waits for it: in order, and for the price of a
//! number each.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// The slots of `--max-concurrency`, given to requests in their order.
#[derive(Debug)]
pub(super) struct Slots(Mutex<Queue>);

#[derive(Debug)]
struct Queue {
    free: usize,
    /// Places in the schedule.
    waiting: VecDeque<usize>,
    closed: bool,
}

/// What a request finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// A slot: to be given back with [`Slots::next`].
    Slot,
    /// It waits: [`Slots::next`] or [`Slots::close`] will name it.
    Waits,
    /// No further request gets a slot.
    Closed,
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

    /// Asks for a slot for the request at this place of the schedule.
    pub(super) fn enter(&self, index: usize) -> Admission {
        let mut queue = self.0.lock();
        if queue.closed {
            return Admission::Closed;
        }
        match queue.free.checked_sub(1) {
            Some(left) => {
                queue.free = left;
                Admission::Slot
            }
            None => {
                queue.waiting.push_back(index);
                Admission::Waits
            }
        }
    }

    /// Gives a slot back: to the request that has waited longest, if there is one.
    pub(super) fn next(&self) -> Option<usize> {
        let mut queue = self.0.lock();
        let next = queue.waiting.pop_front();
        if next.is_none() {
            queue.free += 1;
        }
        next
    }

    /// Lets no request enter any more, and gives those that waited.
    pub(super) fn close(&self) -> VecDeque<usize> {
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

    #[test]
    fn slots_go_round_in_order_until_they_close() {
        let slots = Slots::new(Some(2));
        let entered: Vec<Admission> = (0..4).map(|index| slots.enter(index)).collect();
        assert_eq!(entered[..2], [Admission::Slot; 2]);
        assert_eq!(entered[2..], [Admission::Waits; 2]);
        assert!(slots.is_full());
        assert_eq!(slots.next(), Some(2));
        assert_eq!(slots.next(), Some(3));
        assert_eq!((slots.next(), slots.is_full()), (None, false));
        assert_eq!(slots.enter(4), Admission::Slot);
        assert_eq!(slots.enter(5), Admission::Waits);
        assert_eq!(slots.close(), [5]);
        assert_eq!((slots.enter(6), slots.next()), (Admission::Closed, None));
    }

    #[test]
    fn without_a_limit_nobody_waits() {
        let slots = Slots::new(None);
        assert!((0..1000).all(|index| slots.enter(index) == Admission::Slot));
    }
}
