//! A run's progress, for who looks on.

use parking_lot::Mutex;
use tokio::sync::SetOnce;

use crate::clock::Stamp;

/// A run's progress, for who looks on.
#[derive(Debug, Default)]
pub struct Live {
    pub(super) began: SetOnce<Stamp>,
    counts: Mutex<Progress>,
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
    /// Turns of the conversations that have begun that have not been due.
    pub turns_to_come: usize,
}

impl Live {
    /// The moment that all scheduled offsets count from, when it has come.
    pub async fn began(&self) -> Stamp {
        *self.began.wait().await
    }

    /// The present counts.
    pub fn counts(&self) -> Progress {
        *self.counts.lock()
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.counts.lock());
    }
}
