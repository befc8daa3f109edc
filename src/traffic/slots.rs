//! How many requests may be under way at once, and who waits for it: in order, and for the price of a
//! number each.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// The slots of `--max-concurrency`, given to requests in their order.
#[derive(Debug)]
pub(super) struct Slots(Mutex<Line>);

#[derive(Debug)]
struct Line {
    free: usize,
    /// Places in the schedule.
    waiting: VecDeque<usize>,
    closed: bool,
}

/// What a request finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
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
        Slots(Mutex::new(Line {
            free: limit.unwrap_or(usize::MAX),
            waiting: VecDeque::new(),
            closed: false,
        }))
    }

    /// Asks for a slot for the request at this place of the schedule.
    pub(super) fn enter(&self, index: usize) -> Entry {
        let mut line = self.0.lock();
        if line.closed {
            return Entry::Closed;
        }
        match line.free.checked_sub(1) {
            Some(left) => {
                line.free = left;
                Entry::Slot
            }
            None => {
                line.waiting.push_back(index);
                Entry::Waits
            }
        }
    }

    /// Gives a slot back: to the request that has waited longest, if there is one.
    pub(super) fn next(&self) -> Option<usize> {
        let mut line = self.0.lock();
        let next = line.waiting.pop_front();
        if next.is_none() {
            line.free += 1;
        }
        next
    }

    /// Lets no request enter any more, and gives those that waited.
    pub(super) fn close(&self) -> VecDeque<usize> {
        let mut line = self.0.lock();
        line.closed = true;
        std::mem::take(&mut line.waiting)
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
        let entered: Vec<Entry> = (0..4).map(|index| slots.enter(index)).collect();
        assert_eq!(entered[..2], [Entry::Slot; 2]);
        assert_eq!(entered[2..], [Entry::Waits; 2]);
        assert!(slots.is_full());
        assert_eq!(slots.next(), Some(2));
        assert_eq!(slots.next(), Some(3));
        assert_eq!((slots.next(), slots.is_full()), (None, false));
        assert_eq!(slots.enter(4), Entry::Slot);
        assert_eq!(slots.enter(5), Entry::Waits);
        assert_eq!(slots.close(), [5]);
        assert_eq!((slots.enter(6), slots.next()), (Entry::Closed, None));
    }

    #[test]
    fn without_a_limit_nobody_waits() {
        let slots = Slots::new(None);
        assert!((0..1000).all(|index| slots.enter(index) == Entry::Slot));
    }
}
