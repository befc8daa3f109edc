//! Ends a run from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

/// A handle that ends a run in two steps: no more requests, then none under way either.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<State>);

#[derive(Debug, Default)]
struct State {
    step: AtomicU8,
    changed: Notify,
}

const STOPPED: u8 = 1;
const ABORTED: u8 = 2;

impl Stop {
    /// A handle of a run that goes on.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Sends no further request; those under way may finish.
    pub fn stop(&self) {
        self.go_to(STOPPED);
    }

    /// Ends the requests under way as well.
    pub fn abort(&self) {
        self.go_to(ABORTED);
    }

    /// Whether [`Stop::stop`] or [`Stop::abort`] was called.
    pub fn is_stopped(&self) -> bool {
        self.step() >= STOPPED
    }

    /// Waits for [`Stop::stop`] or [`Stop::abort`].
    pub async fn stopped(&self) {
        self.reached(STOPPED).await;
    }

    /// Waits for [`Stop::abort`].
    pub async fn aborted(&self) {
        self.reached(ABORTED).await;
    }

    fn step(&self) -> u8 {
        self.0.step.load(Ordering::Acquire)
    }

    fn go_to(&self, step: u8) {
        self.0.step.fetch_max(step, Ordering::AcqRel);
        self.0.changed.notify_waiters();
    }

    async fn reached(&self, step: u8) {
        loop {
            // Made before the look, so that no change falls between look and wait.
            let changed = self.0.changed.notified();
            if self.step() >= step {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stopping_wakes_who_waits_for_it_and_aborting_everyone() {
        let stop = Stop::new();
        let waits = |stop: Stop, abort: bool| {
            tokio::spawn(async move {
                if abort {
                    stop.aborted().await;
                } else {
                    stop.stopped().await;
                }
            })
        };
        let (first, second) = (waits(stop.clone(), false), waits(stop.clone(), true));
        tokio::task::yield_now().await;
        assert!(!stop.is_stopped());
        stop.stop();
        first.await.unwrap();
        assert!(stop.is_stopped() && !second.is_finished());
        stop.abort();
        second.await.unwrap();
        stop.stop();
        stop.aborted().await;
    }
}
