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
    /// Creates the file of a run that began at `began`, with a header.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn new(
        path: &Path,
        columns: &[&str],
        began: Stamp,
        clock: &Clock,
    ) -> anyhow::Result<TimedRows> {
        let path_text = || path.display().to_string();
        let mut file = csv::WriterBuilder::new();
        let file = file.has_headers(false).from_path(path);
        let rows = TimedRows {
            began,
            clock: clock.clone(),
            file: Mutex::new(file.with_context(path_text)?),
        };
        rows.write(&[columns]).with_context(path_text)?;
        Ok(rows)
    }

    /// Returns seconds since the run began, rounded to microseconds.
    pub(super) fn seconds(&self, at: Stamp) -> f64 {
        (at.since(self.began) * 1e6).round() / 1e6
    }

    /// Appends rows.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&self, rows: &[impl Serialize]) -> csv::Result<()> {
        let mut file = self.file.lock();
        rows.iter().try_for_each(|row| file.serialize(row))?;
        Ok(file.flush()?)
    }
}
