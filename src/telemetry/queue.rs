//! Threads with a queue before them, which pushing never waits for. Where they write to a file or send to a collector, it is counted
//! what became of each item.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::family::Family;
use super::prometheus::Dropped;

/// A queue to a thread, which ends when the queue is closed and empty. Dropping it waits for that. Share it by reference.
#[derive(Debug)]
pub struct DeliveryQueue<T> {
    // Dropped before the thread, which otherwise would not end.
    pub(super) queue: Queue<T>,
    pub(super) deliveries: Arc<Deliveries>,
    pub(super) thread: BackgroundThread,
}

/// Counts what became of items, and logs when losing them begins and when it has ended.
#[derive(Debug)]
pub struct Deliveries {
    /// The items' name in the log.
    what: &'static str,
    /// The name in the log of what they go to.
    target: String,
    sent: IntCounter,
    /// By [`Dropped`].
    lost: Family<IntCounter>,
    /// The number of items lost in the current series of losses.
    lost_now: AtomicU64,
    /// Why the last ones were lost; empty if none was.
    last_error: Mutex<String>,
}

/// The sending side of a queue bounded by the weight of what it holds: what does not fit is returned. Share it by reference.
#[derive(Debug)]
pub struct Queue<T> {
    sender: Mutex<Option<UnboundedSender<Queued<T>>>>,
    room: Arc<Semaphore>,
    capacity: usize,
}

/// A queued value, and the permit that holds its room until dropped.
pub type Queued<T> = (T, OwnedSemaphorePermit);

/// A running thread. Dropping it waits for the thread's end, so whatever ends the thread must be dropped before.
#[derive(Debug)]
pub struct BackgroundThread(Mutex<Option<JoinHandle<()>>>);

impl<T> DeliveryQueue<T> {
    /// Enqueues a value that holds so many items, which are lost if it is refused. Never waits. Returns whether it was taken.
    pub fn push(&self, value: T, weight: usize, items: usize) -> bool {
        let Err((_, reason)) = self.queue.push(value, weight) else {
            return true;
        };
        let message = match reason {
            Dropped::QueueFull => "too many wait for it",
            _ => "this process ends",
        };
        self.deliveries.lost(reason, message, items);
        false
    }

    /// Has the thread finish what is queued and waits for its end. Later values are lost. Blocks.
    pub fn close(&self) {
        self.queue.close();
        self.thread.join();
    }
}

impl Deliveries {
    /// Counts in `sent`, and in `lost` by reason. `what` and `target`: the items' name in the log, and that of what they go to.
    pub fn new(
        what: &'static str,
        target: String,
        sent: IntCounter,
        lost: &Family<IntCounter>,
    ) -> Arc<Deliveries> {
        Arc::new(Deliveries {
            what,
            target,
            sent,
            lost: lost.clone(),
            lost_now: AtomicU64::new(0),
            last_error: Mutex::default(),
        })
    }

    /// Counts items as delivered. `is_behind`: others may still be refused, so that a series of losses has not ended.
    pub fn sent(&self, count: usize, is_behind: bool) {
        self.sent.inc_by(count as u64);
        // Reading is cheaper than swapping, and nearly always enough.
        if is_behind || self.lost_now.load(Ordering::Relaxed) == 0 {
            return;
        }
        let lost = self.lost_now.swap(0, Ordering::Relaxed);
        let Deliveries { what, target, .. } = self;
        log::warn!("{what}: {target} takes them again; {lost} were lost");
    }

    /// Counts items as lost.
    pub fn lost(&self, reason: Dropped, message: impl Display, count: usize) {
        self.lost.with(&[reason.name()]).inc_by(count as u64);
        *self.last_error.lock() = message.to_string();
        if self.lost_now.fetch_add(count as u64, Ordering::Relaxed) == 0 {
            let Deliveries { what, target, .. } = self;
            log::warn!("{what}: {target}: {message}; what is lost is counted");
        }
    }

    /// Returns why the last items were lost; `None` if none was, or if they only waited when the process ended.
    pub fn last_error(&self) -> Option<String> {
        Some(self.last_error.lock().clone()).filter(|error| !error.is_empty())
    }

    /// Counts items as lost that still wait when the process ends.
    pub fn end(&self, left: usize) {
        if left > 0 {
            let reason = Dropped::Shutdown.name();
            self.lost.with(&[reason]).inc_by(left as u64);
            let (what, before) = (self.what, self.lost_now.load(Ordering::Relaxed));
            log::warn!("{what}: {left} still waited at the end and are lost, {before} were before");
        }
    }
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
    /// The value, and why it was refused: the queue is full, or closed.
    pub fn push(&self, value: T, weight: usize) -> Result<(), (T, Dropped)> {
        let sender = self.sender.lock();
        let Some(sender) = &*sender else {
            return Err((value, Dropped::Shutdown));
        };
        let room = self.room.clone();
        let Ok(permit) = room.try_acquire_many_owned(weight.min(self.capacity) as u32) else {
            return Err((value, Dropped::QueueFull));
        };
        let sent = sender.send((value, permit));
        sent.map_err(|unsent| (unsent.0.0, Dropped::Shutdown))
    }

    /// Refuses further values. The receiver ends after the queued ones.
    pub fn close(&self) {
        drop(self.sender.lock().take());
    }
}

impl BackgroundThread {
    /// Starts a thread.
    ///
    /// # Errors
    /// If the system provides no thread.
    pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<BackgroundThread> {
        let builder = std::thread::Builder::new().name(name.to_owned());
        Ok(BackgroundThread(Mutex::new(Some(builder.spawn(run)?))))
    }

    /// Waits for the thread's end; the second time there is nothing to wait for. Blocks.
    pub fn join(&self) {
        let Some(handle) = self.0.lock().take() else {
            return;
        };
        let thread = handle.thread().clone();
        if handle.join().is_err() {
            log::error!("the thread {} failed", thread.name().unwrap_or_default());
        }
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_weight_is_bounded_but_a_heavier_value_waits_alone() {
        let (queue, mut out) = Queue::new(8);
        assert_eq!(queue.push("a", 5), Ok(()));
        assert_eq!(queue.push("b", 4), Err(("b", Dropped::QueueFull)));
        assert_eq!(queue.push("c", 3), Ok(()));
        for expected in ["a", "c"] {
            assert_eq!(out.recv().await.unwrap().0, expected);
        }
        assert_eq!(queue.push("d", 1000), Ok(()));
        assert_eq!(queue.push("e", 1), Err(("e", Dropped::QueueFull)));
        queue.close();
        assert_eq!(queue.push("f", 1), Err(("f", Dropped::Shutdown)));
        assert_eq!(out.recv().await.unwrap().0, "d");
        assert!(out.recv().await.is_none());
    }
}
