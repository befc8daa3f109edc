//! Writes records to a file from a thread of its own, and never holds up or fails a request.
//!
//! What cannot be written is lost: counted in a metric, said once in the log, and once more when writing
//! works again. The file only ever holds whole lines.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use crate::request::row::{Row, Rows};

use super::loss::LossLog;
use super::prometheus::{Loss, Metrics};
use super::records_file::{RecordsFile, Sink};
use crate::request::csv::{self, TimeBase};

/// The way to the file. Share it by reference.
#[derive(Debug)]
pub struct Recorder {
    queue: Mutex<Option<SyncSender<Rows>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    full: Arc<LossLog>,
    trouble: Arc<Mutex<Option<String>>>,
    metrics: Metrics,
}

/// Why a recorder could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be begun.
    #[error(
        "cannot open {path}: {source}; give a file in a folder that exists, where this user may write"
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The thread could not be started.
    #[error("cannot start the recorder's thread: {0}")]
    Thread(io::Error),
}

/// The thread's own.
#[derive(Debug)]
struct Writer {
    sink: Sink,
    base: TimeBase,
    metrics: Metrics,
    /// The last error of writing.
    trouble: Arc<Mutex<Option<String>>>,
    block: Vec<u8>,
    rows: usize,
    /// Rows lost since writing last worked.
    unwritten: LossLog,
}

/// Bytes gathered before they are written, when more records wait.
const BLOCK: usize = 256 * 1024;
/// How long the thread rests after a write. A row that comes alone is written at once; under load a write, with
/// its look at the file, and a waking are shared by all that came meanwhile (`cargo bench --bench
/// overhead`: an eighth of the processor time of a request of one event, a quarter through two processes).
const REST: Duration = Duration::from_millis(10);

impl Recorder {
    /// Begins the file, when what lies there has been moved aside, and starts the thread. `queue`: how many requests'
    /// records may wait.
    ///
    /// # Errors
    /// See [`Error`]. A disk that is full is no error: it costs rows.
    pub fn start(file: RecordsFile, queue: usize, metrics: Metrics) -> Result<Recorder, Error> {
        let (base, path) = (file.base, file.path.clone());
        let sink = Sink::open(file, metrics.clone());
        let sink = sink.map_err(|source| Error::Open { path, source })?;
        let (sender, receiver) = sync_channel(queue);
        let full: Arc<LossLog> = Arc::default();
        let trouble = Arc::new(Mutex::new(None));
        let writer = Writer {
            sink,
            base,
            metrics: metrics.clone(),
            trouble: trouble.clone(),
            block: Vec::new(),
            rows: 0,
            unwritten: LossLog::default(),
        };
        let queue_full = full.clone();
        let run = move || writer.run(&receiver, &queue_full);
        let thread = std::thread::Builder::new()
            .name("recorder".into())
            .spawn(run);
        Ok(Recorder {
            queue: Mutex::new(Some(sender)),
            thread: Mutex::new(Some(thread.map_err(Error::Thread)?)),
            full,
            trouble,
            metrics,
        })
    }

    /// Hands a request's records over; never waits.
    pub fn record(&self, records: Rows) {
        let rows = records.len();
        let queue = self.queue.lock();
        let sent = queue.as_ref().map(|queue| queue.try_send(records));
        let why = match sent {
            Some(Ok(())) => return,
            Some(Err(TrySendError::Full(_))) => Loss::QueueFull,
            Some(Err(TrySendError::Disconnected(_))) | None => Loss::Shutdown,
        };
        let lost = self.metrics.rows_lost.with(&[why.name()]);
        lost.inc_by(rows as u64);
        if why == Loss::QueueFull && self.full.lost(rows) {
            log::warn!("records: the queue to the file is full; rows are lost and counted");
        }
    }

    /// The last error of writing, with the file; `None` when all went well.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// Writes what waits and ends the thread. Records handed over later are lost.
    pub fn close(&self) {
        drop(self.queue.lock().take());
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("records: the recorder's thread failed");
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.close();
    }
}

impl Writer {
    /// Writes at once what comes alone, and in blocks what comes in a crowd.
    fn run(mut self, queue: &Receiver<Rows>, full: &LossLog) {
        while let Ok(records) = queue.recv() {
            self.gather(&records);
            let mut is_empty = false;
            while self.block.len() < BLOCK {
                let Ok(records) = queue.try_recv() else {
                    is_empty = true;
                    if let Some(lost) = full.recovered() {
                        log::warn!("records: the queue is empty again; {lost} rows were lost");
                    }
                    break;
                };
                self.gather(&records);
            }
            self.write_block();
            if is_empty {
                std::thread::sleep(REST);
            }
        }
        self.sink.close();
    }

    fn gather(&mut self, records: &[Row]) {
        for record in records {
            csv::row(record, self.base, &mut self.block);
            self.rows += 1;
        }
    }

    fn write_block(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        match self.sink.write(&self.block) {
            Ok(()) => {
                self.metrics.rows_written.with(&[]).inc_by(rows as u64);
                if let Some(lost) = self.unwritten.recovered() {
                    let path = self.sink.path().display();
                    log::warn!("records: {path} is written again; {lost} rows were lost");
                }
            }
            Err(error) => {
                let lost = self.metrics.rows_lost.with(&[Loss::Write.name()]);
                lost.inc_by(rows as u64);
                let trouble = format!("{}: {error}", self.sink.path().display());
                if self.unwritten.lost(rows) {
                    log::warn!("records: cannot write {trouble}; rows are lost and counted");
                }
                *self.trouble.lock() = Some(trouble);
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

    fn records(id: &str) -> Rows {
        let mut row = Sample::whole().row();
        row.req_id = Some(id.to_owned());
        vec![row].into()
    }

    fn start(path: &Path, metrics: &Metrics) -> Result<Recorder, Error> {
        Recorder::start(file(path), 1000, metrics.clone())
    }

    fn file(path: &Path) -> RecordsFile {
        RecordsFile {
            path: path.into(),
            base: TimeBase::Epoch,
            rotation: Rotation::default(),
            clock: Clock::system(),
        }
    }

    fn lost(metrics: &Metrics) -> [u64; 3] {
        let reasons = ["write", "shutdown", "queue_full"];
        reasons.map(|reason| metrics.rows_lost.with(&[reason]).get())
    }

    #[test]
    fn a_file_that_cannot_be_begun_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Metrics::new().unwrap();
        let nowhere = folder.path().join("no/r.csv");
        let message = start(&nowhere, &metrics).unwrap_err().to_string();
        assert!(message.contains("no/r.csv"), "{message}");
        assert!(start(folder.path(), &metrics).is_err());
    }

    #[test]
    fn a_full_disk_costs_rows_that_are_counted() {
        let metrics = Metrics::new().unwrap();
        let recorder = start(Path::new("/dev/full"), &metrics).unwrap();
        (0..5).for_each(|_| recorder.record(records("a")));
        recorder.close();
        recorder.record(records("late"));
        assert_eq!(lost(&metrics), [5, 1, 0]);
    }

    #[test]
    fn a_removed_folder_costs_rows_until_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        let path = inner.join("r.csv");
        std::fs::create_dir(&inner).unwrap();
        let metrics = Metrics::new().unwrap();
        let mut writer = Writer {
            sink: Sink::open(file(&path), metrics.clone()).unwrap(),
            base: TimeBase::Epoch,
            metrics: metrics.clone(),
            trouble: Arc::default(),
            block: Vec::new(),
            rows: 0,
            unwritten: LossLog::default(),
        };
        std::fs::remove_dir_all(&inner).unwrap();
        writer.gather(&records("b"));
        writer.write_block();
        assert!(lost(&metrics) == [1, 0, 0] && writer.unwritten.is_losing());
        std::fs::create_dir(&inner).unwrap();
        writer.gather(&records("c"));
        writer.write_block();
        let text = std::fs::read_to_string(&path).unwrap();
        let ids: Vec<_> = text.lines().map(|line| line.split(',').next()).collect();
        assert_eq!(ids, [Some("req_id"), Some("c")]);
        assert!(!writer.unwritten.is_losing());
    }

    #[test]
    fn a_full_queue_costs_rows_and_never_waits() {
        let metrics = Metrics::new().unwrap();
        let (sender, receiver) = sync_channel(2);
        let recorder = Recorder {
            queue: Mutex::new(Some(sender)),
            thread: Mutex::new(None),
            full: Arc::default(),
            trouble: Arc::default(),
            metrics: metrics.clone(),
        };
        (0..5).for_each(|_| recorder.record(records("a")));
        assert_eq!(lost(&metrics), [0, 0, 3]);
        assert_eq!(receiver.try_iter().count(), 2);
    }
}
