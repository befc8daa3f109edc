//! A file of a run whose rows tell when something was, in seconds since the run began.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use parking_lot::Mutex;
use serde::Serialize;

use crate::clock::{Clock, Stamp};

/// A file that grows, a row at a time.
#[derive(Debug)]
pub(super) struct TimedRows {
    pub(super) began: Stamp,
    pub(super) clock: Clock,
    file: Mutex<csv::Writer<File>>,
}

impl TimedRows {
    /// One of a run that began then. A file without rows says what it would hold.
    ///
    /// # Errors
    /// The file cannot be made.
    pub(super) fn new(
        path: &Path,
        columns: &[&str],
        began: Stamp,
        clock: &Clock,
    ) -> anyhow::Result<TimedRows> {
        let named = || path.display().to_string();
        let mut file = csv::WriterBuilder::new();
        let file = file.has_headers(false).from_path(path);
        let rows = TimedRows {
            began,
            clock: clock.clone(),
            file: Mutex::new(file.with_context(named)?),
        };
        rows.write(&[columns]).with_context(named)?;
        Ok(rows)
    }

    /// Seconds since the run began, to the microsecond.
    pub(super) fn seconds(&self, at: Stamp) -> f64 {
        (at.since(self.began) * 1e6).round() / 1e6
    }

    /// Writes rows.
    ///
    /// # Errors
    /// What the system answers.
    pub(super) fn write(&self, rows: &[impl Serialize]) -> csv::Result<()> {
        let mut file = self.file.lock();
        rows.iter().try_for_each(|row| file.serialize(row))?;
        Ok(file.flush()?)
    }
}
