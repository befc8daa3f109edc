//! Decides when losses are logged: at the first one, and again when losing has ended.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of losses since the last success. The caller writes the log messages.
#[derive(Debug, Default)]
pub struct LossLog(AtomicU64);

impl LossLog {
    /// Adds losses. Returns whether they are the first, and so to be logged.
    pub fn lost(&self, count: usize) -> bool {
        self.0.fetch_add(count as u64, Ordering::Relaxed) == 0
    }

    /// Ends a series of losses. Returns their number if there were any, which is to be logged.
    pub fn recovered(&self) -> Option<u64> {
        // Reading is cheaper than swapping, and nearly always enough.
        let is_losing = self.0.load(Ordering::Relaxed) > 0;
        let lost = is_losing.then(|| self.0.swap(0, Ordering::Relaxed));
        lost.filter(|lost| *lost > 0)
    }
}
