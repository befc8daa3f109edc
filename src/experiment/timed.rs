//! CSV files of a run whose rows have a time, in seconds since the run began.

use std::fs::File;
use std::io::Write as _;
use std::marker::PhantomData;
use std::path::Path;

use anyhow::Context as _;
use parking_lot::Mutex;
use serde::Serialize;

use crate::clock::{Clock, Stamp};

/// A file that rows are appended to.
#[derive(Debug)]
pub(super) struct TimedRows<T> {
    pub(super) began: Stamp,
    pub(super) clock: Clock,
    file: Mutex<csv::Writer<File>>,
    rows: PhantomData<T>,
}

impl<T: Serialize + Default> TimedRows<T> {
    /// Creates the file of a run that began at `began`, with a header.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn new(path: &Path, began: Stamp, clock: &Clock) -> anyhow::Result<TimedRows<T>> {
        let mut header = Vec::new();
        csv::Writer::from_writer(&mut header).serialize(T::default())?;
        let end = header.iter().position(|byte| *byte == b'\n');
        header.truncate(end.map_or(0, |end| end + 1));
        let file = File::create(path).and_then(|mut file| file.write_all(&header).map(|()| file));
        let file = file.with_context(|| path.display().to_string())?;
        let mut rows = csv::WriterBuilder::new();
        Ok(TimedRows {
            began,
            clock: clock.clone(),
            file: Mutex::new(rows.has_headers(false).from_writer(file)),
            rows: PhantomData,
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
    pub(super) fn write(&self, rows: &[T]) -> csv::Result<()> {
        let mut file = self.file.lock();
        rows.iter().try_for_each(|row| file.serialize(row))?;
        Ok(file.flush()?)
    }
}
