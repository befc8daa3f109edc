//! A queue bounded by the weight of what it holds. Pushing never waits: what does not fit is returned.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The sending side. Share it by reference.
#[derive(Debug)]
pub struct Queue<T> {
    sender: Mutex<Option<UnboundedSender<Queued<T>>>>,
    room: Arc<Semaphore>,
    capacity: usize,
}

/// A queued value, and the permit that holds its room until dropped.
pub type Queued<T> = (T, OwnedSemaphorePermit);

/// Why a value was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no room.
    Full,
    /// The queue is closed.
    Closed,
}

impl<T> Queue<T> {
    /// Creates an empty queue and its receiver. `capacity` is the maximum total weight.
    pub fn new(capacity: usize) -> (Queue<T>, UnboundedReceiver<Queued<T>>) {
        let (sender, receiver) = unbounded_channel();
        let capacity = capacity.clamp(1, u32::MAX as usize);
        let queue = Queue {
            sender: Mutex::new(Some(sender)),
            room: Arc::new(Semaphore::new(capacity)),
            capacity,
        };
        (queue, receiver)
    }

    /// Adds a value. One that is heavier than the capacity may wait alone.
    ///
    /// # Errors
    /// The value, and why it was refused.
    pub fn push(&self, value: T, weight: usize) -> Result<(), (T, Refused)> {
        let sender = self.sender.lock();
        let Some(sender) = &*sender else {
            return Err((value, Refused::Closed));
        };
        let room = self.room.clone();
        let Ok(permit) = room.try_acquire_many_owned(weight.min(self.capacity) as u32) else {
            return Err((value, Refused::Full));
        };
        let sent = sender.send((value, permit));
        sent.map_err(|unsent| (unsent.0.0, Refused::Closed))
    }

    /// Refuses further values. The receiver ends after the queued ones.
    pub fn close(&self) {
        drop(self.sender.lock().take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_weight_is_bounded_but_a_heavier_value_waits_alone() {
        let (queue, mut out) = Queue::new(8);
        assert_eq!(queue.push("a", 5), Ok(()));
        assert_eq!(queue.push("b", 4), Err(("b", Refused::Full)));
        assert_eq!(queue.push("c", 3), Ok(()));
        for expected in ["a", "c"] {
            assert_eq!(out.recv().await.unwrap().0, expected);
        }
        assert_eq!(queue.push("d", 1000), Ok(()));
        assert_eq!(queue.push("e", 1), Err(("e", Refused::Full)));
        queue.close();
        assert_eq!(queue.push("f", 1), Err(("f", Refused::Closed)));
        assert_eq!(out.recv().await.unwrap().0, "d");
        assert!(out.recv().await.is_none());
    }
}
