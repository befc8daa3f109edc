//! Writes rows to the records file from a thread of its own, so that no request waits for it or fails by it.
//!
//! Rows that cannot be written are lost. They are counted in a metric, and logged once when losing begins and once when it
//! ends. The file never holds incomplete lines.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::Stamp;
use crate::request::csv;
use crate::request::row::{Row, Rows};

use super::background_thread::BackgroundThread;
use super::loss::LossLog;
use super::prometheus::{Loss, Metrics};
use super::queue::{Queue, Queued, Refused};
use super::records_file::{FileWriter, RecordsFile};

/// The handle of the writing thread. Share it by reference.
#[derive(Debug)]
pub struct Recorder {
    queue: Queue<Rows>,
    thread: BackgroundThread,
    /// Rows lost since the queue was last empty.
    unqueued: Arc<LossLog>,
    write_error: Arc<Mutex<Option<String>>>,
    metrics: Metrics,
}

/// Why a recorder could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be created.
    #[error(
        "cannot open {path}: {source}; give a file in a folder that exists, where this user may write"
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The thread could not be started.
    #[error("cannot start the recorder's thread: {0}")]
    Thread(io::Error),
}

/// The state of the writing thread.
#[derive(Debug)]
struct Writer {
    file: FileWriter,
    base: Stamp,
    metrics: Metrics,
    write_error: Arc<Mutex<Option<String>>>,
    /// The lines to be written next, and their number.
    block: Vec<u8>,
    rows: usize,
    /// Rows lost since writing last worked.
    unwritten: LossLog,
}

/// The size from which on a block of lines is written though more rows wait.
const BLOCK_BYTES: usize = 256 * 1024;
/// The pause after a write. A single row is written at once; under load, all rows of the pause share a write, its check of the
/// file, and a wake-up of the thread (`cargo bench --bench overhead`: an eighth of the processor time of a request of one event,
/// a quarter through two processes).
const PAUSE: Duration = Duration::from_millis(10);

impl Recorder {
    /// Moves an existing file aside, creates a new one and starts the thread. `capacity`: the number of requests whose rows may
    /// wait.
    ///
    /// # Errors
    /// See [`Error`]. A full disk is not an error: its rows are lost.
    pub fn start(file: RecordsFile, capacity: usize, metrics: Metrics) -> Result<Recorder, Error> {
        let (base, path) = (file.base, file.path.clone());
        let file = FileWriter::open(file);
        let file = file.map_err(|source| Error::Open { path, source })?;
        let (queue, receiver) = Queue::new(capacity);
        let unqueued: Arc<LossLog> = Arc::default();
        let write_error = Arc::new(Mutex::new(None));
        let writer = Writer {
            file,
            base,
            metrics: metrics.clone(),
            write_error: write_error.clone(),
            block: Vec::new(),
            rows: 0,
            unwritten: LossLog::default(),
        };
        let lost = unqueued.clone();
        let run = move || writer.run(receiver, &lost);
        let panic_message = "records: the recorder's thread failed";
        let thread = BackgroundThread::spawn("recorder", panic_message, run);
        Ok(Recorder {
            queue,
            thread: thread.map_err(Error::Thread)?,
            unqueued,
            write_error,
            metrics,
        })
    }

    /// Enqueues a request's rows. Never waits.
    pub fn record(&self, rows: Rows) {
        let Err((rows, refused)) = self.queue.push(rows, 1) else {
            return;
        };
        let loss = match refused {
            Refused::Full => Loss::QueueFull,
            Refused::Closed => Loss::Shutdown,
        };
        let lost = self.metrics.rows_lost.with(&[loss.name()]);
        lost.inc_by(rows.len() as u64);
        if refused == Refused::Full && self.unqueued.lost(rows.len()) {
            log::warn!("records: the queue to the file is full; rows are lost and counted");
        }
    }

    /// Returns the last error of writing, with the file's path; `None` if there was none.
    pub fn last_write_error(&self) -> Option<String> {
        self.write_error.lock().clone()
    }

    /// Writes the waiting rows and ends the thread. Later rows are lost.
    pub fn close(&self) {
        self.queue.close();
        self.thread.join();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.close();
    }
}

impl Writer {
    /// Writes a single row at once, and all that wait in blocks, until the queue is closed and empty.
    fn run(mut self, mut queue: UnboundedReceiver<Queued<Rows>>, unqueued: &LossLog) {
        while let Some((rows, permit)) = queue.blocking_recv() {
            drop(permit);
            self.gather(&rows);
            let mut is_empty = false;
            while self.block.len() < BLOCK_BYTES {
                let Ok((rows, _)) = queue.try_recv() else {
                    is_empty = true;
                    if let Some(lost) = unqueued.recovered() {
                        log::warn!("records: the queue is empty again; {lost} rows were lost");
                    }
                    break;
                };
                self.gather(&rows);
            }
            self.write_block();
            if is_empty {
                std::thread::sleep(PAUSE);
            }
        }
        self.file.close();
    }

    fn gather(&mut self, rows: &[Row]) {
        for row in rows {
            csv::row(row, self.base, &mut self.block);
            self.rows += 1;
        }
    }

    fn write_block(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        match self.file.write(&self.block) {
            Ok(()) => {
                self.metrics.rows_written.with(&[]).inc_by(rows as u64);
                if let Some(lost) = self.unwritten.recovered() {
                    let path = self.file.path().display();
                    log::warn!("records: {path} is written again; {lost} rows were lost");
                }
            }
            Err(error) => {
                let lost = self.metrics.rows_lost.with(&[Loss::Write.name()]);
                lost.inc_by(rows as u64);
                let write_error = format!("{}: {error}", self.file.path().display());
                if self.unwritten.lost(rows) {
                    log::warn!("records: cannot write {write_error}; rows are lost and counted");
                }
                *self.write_error.lock() = Some(write_error);
            }
        }
        self.block.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::request::sample::Sample;
    use crate::telemetry::rotation::Rotation;
    use std::path::Path;

    fn rows(id: &str) -> Rows {
        let mut row = Sample::whole().row();
        row.req_id = Some(id.to_owned());
        vec![row].into()
    }

    fn start(path: &Path, metrics: &Metrics) -> Result<Recorder, Error> {
        let file = RecordsFile {
            path: path.into(),
            base: Stamp::EPOCH,
            rotation: Rotation::default(),
            clock: Clock::system(),
        };
        Recorder::start(file, 1000, metrics.clone())
    }

    fn lost(metrics: &Metrics) -> [u64; 3] {
        let reasons = ["write", "shutdown", "queue_full"];
        reasons.map(|reason| metrics.rows_lost.with(&[reason]).get())
    }

    #[test]
    fn a_file_that_cannot_be_created_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Metrics::new().unwrap();
        let nowhere = folder.path().join("no/r.csv");
        let message = start(&nowhere, &metrics).unwrap_err().to_string();
        assert!(message.contains("no/r.csv"), "{message}");
        assert!(start(folder.path(), &metrics).is_err());
    }

    #[test]
    fn rows_lost_to_a_full_disk_are_counted() {
        let metrics = Metrics::new().unwrap();
        let recorder = start(Path::new("/dev/full"), &metrics).unwrap();
        (0..5).for_each(|_| recorder.record(rows("a")));
        recorder.close();
        recorder.record(rows("late"));
        assert_eq!(lost(&metrics), [5, 1, 0]);
    }

    #[test]
    fn rows_are_lost_to_a_full_queue_without_waiting() {
        let metrics = Metrics::new().unwrap();
        let (queue, receiver) = Queue::new(2);
        let recorder = Recorder {
            queue,
            thread: BackgroundThread::spawn("t", "", || ()).unwrap(),
            unqueued: Arc::default(),
            write_error: Arc::default(),
            metrics: metrics.clone(),
        };
        (0..5).for_each(|_| recorder.record(rows("a")));
        assert_eq!(lost(&metrics), [0, 0, 3]);
        assert_eq!(receiver.len(), 2);
    }
}
