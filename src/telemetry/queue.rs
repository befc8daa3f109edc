//! A queue that nobody waits for who hands something in: it is bounded by what lies in it, and what it has no room for comes back.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Where things are handed in. Share it by reference.
#[derive(Debug)]
pub struct Queue<T> {
    sender: Mutex<Option<UnboundedSender<Waiting<T>>>>,
    room: Arc<Semaphore>,
    most: usize,
}

/// Something that was handed in, and the room that it takes until that is dropped.
pub type Waiting<T> = (T, OwnedSemaphorePermit);

/// Why something was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no room.
    Full,
    /// Nothing more is taken in.
    Closed,
}

/// How often who waits for room looks for it.
const LOOK: Duration = Duration::from_millis(5);

impl<T> Queue<T> {
    /// An empty one, and where things come out. `most` is what they may weigh together.
    pub fn new(most: usize) -> (Queue<T>, UnboundedReceiver<Waiting<T>>) {
        let (sender, receiver) = unbounded_channel();
        let most = most.clamp(1, u32::MAX as usize);
        let queue = Queue {
            sender: Mutex::new(Some(sender)),
            room: Arc::new(Semaphore::new(most)),
            most,
        };
        (queue, receiver)
    }

    /// Another that leads to the same place, and has room of its own.
    pub fn beside(&self, most: usize) -> Queue<T> {
        Queue {
            sender: Mutex::new(self.sender.lock().clone()),
            room: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    /// Takes in what weighs so much. What is heavier than all that may wait does so alone.
    ///
    /// # Errors
    /// Gives it back, and says why.
    pub fn push(&self, value: T, weight: usize) -> Result<(), (T, Refused)> {
        let sender = self.sender.lock();
        let Some(sender) = &*sender else {
            return Err((value, Refused::Closed));
        };
        let Ok(room) = self.room.clone().try_acquire_many_owned(self.takes(weight)) else {
            return Err((value, Refused::Full));
        };
        let sent = sender.send((value, room));
        sent.map_err(|unsent| (unsent.0.0, Refused::Closed))
    }

    /// Waits until there is room for what weighs so much, but no longer than this. Blocks.
    pub fn wait_for_room(&self, weight: usize, patience: Duration) {
        let takes = self.takes(weight) as usize;
        let mut waited = Duration::ZERO;
        while self.room.available_permits() < takes && waited < patience {
            std::thread::sleep(LOOK);
            waited += LOOK;
        }
    }

    /// What may wait together weighs so much.
    pub fn most(&self) -> usize {
        self.most
    }

    /// What waits weighs so much.
    pub fn weight(&self) -> usize {
        self.most - self.room.available_permits()
    }

    /// Takes in nothing more: who takes things out comes to an end.
    pub fn close(&self) {
        drop(self.sender.lock().take());
    }

    fn takes(&self, weight: usize) -> u32 {
        weight.min(self.most) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_waits_is_bounded_but_what_is_heavier_does_so_alone() {
        let (queue, mut out) = Queue::new(8);
        assert_eq!(queue.push("a", 5), Ok(()));
        assert_eq!(queue.push("b", 4), Err(("b", Refused::Full)));
        assert_eq!(queue.push("c", 3), Ok(()));
        assert_eq!(queue.weight(), 8);
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

    #[test]
    fn who_waits_for_room_has_it_when_it_is_there_and_not_for_ever() {
        let (queue, mut out) = Queue::new(1);
        queue.push("a", 1).unwrap();
        queue.wait_for_room(1, LOOK * 2);
        assert_eq!(queue.push("b", 1), Err(("b", Refused::Full)));
        std::thread::scope(|scope| {
            scope.spawn(|| queue.wait_for_room(1, Duration::MAX));
            drop(out.try_recv());
        });
        assert_eq!(queue.push("b", 1), Ok(()));
    }
}
