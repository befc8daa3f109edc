//! CSV files of a run whose rows have a time, in seconds since the run began.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use parking_lot::Mutex;
use serde::Serialize;

use crate::clock::{Clock, Stamp};

/// A file that rows are appended to.
#[derive(Debug)]
pub(super) struct TimedRows {
    pub(super) began: Stamp,
    pub(super) clock: Clock,
    file: Mutex<csv::Writer<File>>,
}

impl TimedRows {
    /// Creates the file of a run that began at `began`. The header comes with the first row.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn new(path: &Path, began: Stamp, clock: &Clock) -> anyhow::Result<TimedRows> {
        let file = csv::Writer::from_path(path).with_context(|| path.display().to_string())?;
        Ok(TimedRows {
            began,
            clock: clock.clone(),
            file: Mutex::new(file),
        })
    }

    /// Returns seconds since the run began, rounded to microseconds.
    pub(super) fn seconds(&self, at: Stamp) -> f64 {
        (at.since(self.began) * 1e6).round() / 1e6
    }

    /// Appends rows.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&self, rows: impl IntoIterator<Item: Serialize>) -> csv::Result<()> {
        let mut file = self.file.lock();
        rows.into_iter().try_for_each(|row| file.serialize(row))?;
        Ok(file.flush()?)
    }
}
