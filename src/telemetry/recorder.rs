//! Writes rows to the records file from a thread of its own, so that no request waits for it or fails by it.
//!
//! Rows that cannot be written are lost. They are counted in a metric, and logged when losing begins and when it ends. The file never holds incomplete lines.

use std::io;
use std::sync::Once;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::Stamp;
use crate::request::csv;
use crate::request::row::Rows;

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
    full_logged: Once,
    metrics: Metrics,
}

/// The state of the writing thread.
#[derive(Debug)]
struct Writer {
    file: FileWriter,
    base: Stamp,
    metrics: Metrics,
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
    /// The file cannot be created, or the system provides no thread. A full disk is not an error: its rows are lost.
    pub fn start(file: RecordsFile, capacity: usize, metrics: Metrics) -> io::Result<Recorder> {
        let (base, path) = (file.base, file.path.clone());
        let file = FileWriter::open(file).map_err(|error| {
            let hint = "give a file in a folder that exists, where this user may write";
            io::Error::other(format!("cannot open {}: {error}; {hint}", path.display()))
        })?;
        let (queue, receiver) = Queue::new(capacity);
        let writer = Writer {
            file,
            base,
            metrics: metrics.clone(),
            unwritten: LossLog::default(),
        };
        Ok(Recorder {
            queue,
            thread: BackgroundThread::spawn("recorder", move || writer.run(receiver))?,
            full_logged: Once::new(),
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
        if refused == Refused::Full {
            self.full_logged.call_once(|| {
                log::warn!(
                    "records: the queue to the file is full; rows are lost and counted. Logged once"
                );
            });
        }
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
    fn run(mut self, mut queue: UnboundedReceiver<Queued<Rows>>) {
        let mut block = Vec::new();
        while let Some(first) = queue.blocking_recv() {
            let (mut next, mut count) = (Some(first), 0);
            while let Some((rows, _room)) = next {
                for row in &*rows {
                    csv::row(row, self.base, &mut block);
                }
                count += rows.len();
                next = match block.len() < BLOCK_BYTES {
                    true => queue.try_recv().ok(),
                    false => None,
                };
            }
            self.write(&block, count);
            if block.len() < BLOCK_BYTES {
                std::thread::sleep(PAUSE);
            }
            block.clear();
        }
        self.file.close();
    }

    fn write(&mut self, block: &[u8], rows: usize) {
        match self.file.write(block) {
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
                if self.unwritten.lost(rows) {
                    let path = self.file.path().display();
                    log::warn!("records: cannot write {path}: {error}; rows are lost and counted");
                }
            }
        }
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

    fn start(path: &Path, metrics: &Metrics) -> io::Result<Recorder> {
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
            thread: BackgroundThread::spawn("t", || ()).unwrap(),
            full_logged: Once::new(),
            metrics: metrics.clone(),
        };
        (0..5).for_each(|_| recorder.record(rows("a")));
        assert_eq!(lost(&metrics), [0, 0, 3]);
        assert_eq!(receiver.len(), 2);
    }
}
