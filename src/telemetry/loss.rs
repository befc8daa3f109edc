//! What is lost is said in the log once, and once more when nothing is lost any more.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts what is lost in a row. Whoever uses it finds the words.
#[derive(Debug, Default)]
pub struct LossLog(AtomicU64);

impl LossLog {
    /// So many more are lost. Whether that is to be said: these are the first.
    pub fn lost(&self, many: usize) -> bool {
        self.0.fetch_add(many as u64, Ordering::Relaxed) == 0
    }

    /// It goes well. Gives how many were lost before, if any: that is to be said.
    pub fn recovered(&self) -> Option<u64> {
        // Nearly always there are none.
        if self.is_losing() {
            return Some(self.0.swap(0, Ordering::Relaxed)).filter(|lost| *lost > 0);
        }
        None
    }

    /// Whether any were lost since it last went well.
    pub fn is_losing(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}
