//! A run's progress, for who looks on.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::SetOnce;

use crate::clock::Stamp;

/// A run's progress, for who looks on.
#[derive(Debug, Default)]
pub struct Live {
    pub(super) began: SetOnce<Stamp>,
    pub(super) due: AtomicUsize,
    pub(super) under_way: AtomicUsize,
    pub(super) done: AtomicUsize,
    pub(super) failed: AtomicUsize,
    /// Turns of the conversations that have begun that have not been due.
    pub(super) turns_to_come: AtomicUsize,
}

/// What [`Live`] says at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Requests whose time has come.
    pub due: usize,
    /// Requests sent and not yet answered whole.
    pub under_way: usize,
    /// Requests that have ended.
    pub done: usize,
    /// Of these, how many not well.
    pub failed: usize,
}

impl Live {
    /// The moment that all scheduled offsets count from, when it has come.
    pub async fn began(&self) -> Stamp {
        *self.began.wait().await
    }

    /// The present counts.
    pub fn counts(&self) -> Progress {
        let read = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        Progress {
            due: read(&self.due),
            under_way: read(&self.under_way),
            done: read(&self.done),
            failed: read(&self.failed),
        }
    }
}
