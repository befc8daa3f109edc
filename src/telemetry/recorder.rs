//! Writes rows to the records file from a thread of its own, so that no request waits for it or fails by it. The file never holds
//! incomplete lines.

use std::io;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::Stamp;
use crate::request::Rows;
use crate::request::csv;

use super::background_thread::BackgroundThread;
use super::prometheus::{Dropped, Metrics};
use super::queue::{Queue, Queued};
use super::records_file::{FileWriter, RecordsFile};
use super::sink::{Deliveries, Sink};

/// The size from which on a block of lines is written though more rows wait.
const BLOCK_BYTES: usize = 256 * 1024;
/// The pause after a write. A single row is written at once; under load, all rows of the pause share a write, its check of the
/// file, and a wake-up of the thread (`cargo bench --bench overhead`: an eighth of the processor time of a request of one event,
/// a quarter through two processes).
const PAUSE: Duration = Duration::from_millis(10);

/// Moves an existing file aside, creates a new one and starts the thread. `capacity`: the number of requests whose rows may wait.
///
/// # Errors
/// The file cannot be created, or the system provides no thread. A full disk is not an error: its rows are lost.
pub fn start(file: RecordsFile, capacity: usize, metrics: &Metrics) -> io::Result<Sink<Rows>> {
    let (base, path) = (file.base, file.path.clone());
    let file = FileWriter::open(file).map_err(|error| {
        let hint = "give a file in a folder that exists, where this user may write";
        io::Error::other(format!("cannot open {}: {error}; {hint}", path.display()))
    })?;
    let target = file.path().display().to_string();
    let written = metrics.rows_written.with(&[]);
    let deliveries = Deliveries::new("records", target, written, &metrics.rows_lost);
    let (queue, receiver) = Queue::new(capacity);
    let counts = deliveries.clone();
    let run = move || write_all(receiver, file, base, &counts);
    Ok(Sink {
        queue,
        deliveries,
        thread: BackgroundThread::spawn("recorder", run)?,
    })
}

/// Writes a single row at once, and all that wait in blocks, until the queue is closed and empty.
fn write_all(
    mut queue: UnboundedReceiver<Queued<Rows>>,
    mut file: FileWriter,
    base: Stamp,
    deliveries: &Deliveries,
) {
    let mut block = Vec::new();
    while let Some(first) = queue.blocking_recv() {
        let (mut next, mut count) = (Some(first), 0);
        while let Some((rows, _room)) = next {
            for row in &*rows {
                csv::row(row, base, &mut block);
            }
            count += rows.len();
            next = match block.len() < BLOCK_BYTES {
                true => queue.try_recv().ok(),
                false => None,
            };
        }
        let is_full = block.len() >= BLOCK_BYTES;
        match file.write(&block) {
            Ok(()) => deliveries.sent(count, is_full || !queue.is_empty()),
            Err(error) => {
                let message = format_args!("cannot be written: {error}");
                deliveries.lost(Dropped::Write, message, count);
            }
        }
        if !is_full {
            std::thread::sleep(PAUSE);
        }
        block.clear();
    }
    file.close();
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

    fn start_at(path: &Path, metrics: &Metrics) -> io::Result<Sink<Rows>> {
        let file = RecordsFile {
            path: path.into(),
            base: Stamp::EPOCH,
            rotation: Rotation::default(),
            clock: Clock::system(),
        };
        start(file, 1000, metrics)
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
        let message = start_at(&nowhere, &metrics).unwrap_err().to_string();
        assert!(message.contains("no/r.csv"), "{message}");
        assert!(start_at(folder.path(), &metrics).is_err());
    }

    #[test]
    fn rows_lost_to_a_full_disk_are_counted() {
        let metrics = Metrics::new().unwrap();
        let recorder = start_at(Path::new("/dev/full"), &metrics).unwrap();
        assert!((0..5).all(|_| recorder.push(rows("a"), 1, 1)));
        recorder.close();
        recorder.push(rows("late"), 1, 1);
        assert_eq!(lost(&metrics), [5, 1, 0]);
    }

    #[test]
    fn rows_are_lost_to_a_full_queue_without_waiting() {
        let metrics = Metrics::new().unwrap();
        let (queue, receiver) = Queue::new(2);
        let written = metrics.rows_written.with(&[]);
        let recorder = Sink {
            queue,
            deliveries: Deliveries::new("records", String::new(), written, &metrics.rows_lost),
            thread: BackgroundThread::spawn("t", || ()).unwrap(),
        };
        let taken = (0..5).map(|_| recorder.push(rows("a"), 1, 1));
        assert!(taken.eq([true, true, false, false, false]));
        assert_eq!(lost(&metrics), [0, 0, 3]);
        assert_eq!(receiver.len(), 2);
    }
}
