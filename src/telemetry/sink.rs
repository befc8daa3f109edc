//! What leaves this process by a thread of its own, to a file or a collector: the queue to the thread, and counts of what became of
//! its items.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::IntCounter;

use super::background_thread::BackgroundThread;
use super::family::Family;
use super::prometheus::Dropped;
use super::queue::{Queue, Refused};

/// A queue to a thread, which ends when the queue is closed and empty. Dropping it waits for that. Share it by reference.
#[derive(Debug)]
pub struct Sink<T> {
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
}

impl<T> Sink<T> {
    /// Enqueues a value that holds so many items, which are lost if it is refused. Never waits. Returns whether it was taken.
    pub fn push(&self, value: T, weight: usize, items: usize) -> bool {
        let Err((_, refused)) = self.queue.push(value, weight) else {
            return true;
        };
        let (reason, message) = match refused {
            Refused::Full => (Dropped::QueueFull, "too many wait for it"),
            Refused::Closed => (Dropped::Shutdown, "this process ends"),
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
        if self.lost_now.fetch_add(count as u64, Ordering::Relaxed) == 0 {
            let Deliveries { what, target, .. } = self;
            log::warn!("{what}: {target}: {message}; what is lost is counted");
        }
    }

    /// Counts items as lost that still wait when the process ends.
    pub fn end(&self, left: usize) {
        if left > 0 {
            let reason = Dropped::Shutdown.name();
            self.lost.with(&[reason]).inc_by(left as u64);
            log::warn!("{}: {left} still waited at the end and are lost", self.what);
        }
    }
}
