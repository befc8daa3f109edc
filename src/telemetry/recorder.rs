//! The records file of a process: one header, complete lines, and no other process writes to it. Rows are written from a thread of
//! its own, so that no request waits for it or fails by it.
//!
//! A process that creates its file first moves an existing one aside. Another process may still write to that one, and goes on
//! under the new name. The reasons are in docs/dev/decisions/0030.

use std::cmp::Reverse;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::{Clock, Stamp};
use crate::disk::rotated;
use crate::request::Rows;
use crate::request::csv;

use super::prometheus::{Dropped, Metrics};
use super::queue::{BackgroundThread, Deliveries, DeliveryQueue, Queue, Queued};

/// Where a process's records go.
#[derive(Clone, Debug)]
pub struct RecordsFile {
    /// The file's path.
    pub path: PathBuf,
    /// What its time columns count from.
    pub base: Stamp,
    /// When a new file is begun.
    pub rotation: Rotation,
    /// The clock for the file's age.
    pub clock: Clock,
}

/// When a records file is rotated, and how many rotated ones are kept. The default: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// The maximum size of a file, unless a single block of rows is longer, bytes. 0: no limit.
    pub bytes: u64,
    /// The maximum age of a file's first row, nanoseconds. 0: no limit.
    pub age_nanos: i64,
    /// The number of rotated files kept, the newest by name. 0: all.
    pub keep: usize,
}

/// Writes lines to the records file.
#[derive(Debug)]
struct FileWriter {
    target: RecordsFile,
    header: Vec<u8>,
    open: Option<OpenFile>,
    is_rotation_error_logged: bool,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    /// Whether it is a regular file. A device or a pipe gets no header and is never moved.
    is_file: bool,
    first_row: Option<Stamp>,
}

/// The size from which on a block of lines is written though more rows wait.
const BLOCK_BYTES: usize = 256 * 1024;
/// The pause after a write. A single row is written at once; under load, all rows of the pause share a write, its check of the
/// file, and a wake-up of the thread (`cargo bench --bench overhead`: an eighth of the processor time of a request of one event,
/// a quarter through two processes).
const PAUSE: Duration = Duration::from_millis(10);
/// How records of any version begin.
const BEGINNING: &[u8] = b"req_id,";
/// As many as the kernel follows.
const MAX_LINKS: usize = 40;

/// Moves an existing file aside, creates a new one and starts the thread. `capacity`: the number of requests whose rows may wait.
///
/// # Errors
/// The file cannot be created, or the system provides no thread. A full disk is not an error: its rows are lost.
pub fn start(
    file: RecordsFile,
    capacity: usize,
    metrics: &Metrics,
) -> io::Result<DeliveryQueue<Rows>> {
    let path = file.path.clone();
    let file = FileWriter::open(file).map_err(|error| {
        let hint = "give a file in a folder that exists, where this user may write";
        io::Error::other(format!("cannot open {}: {error}; {hint}", path.display()))
    })?;
    let target = file.target.path.display().to_string();
    let written = metrics.rows_written.with(&[]);
    let deliveries = Deliveries::new("records", target, written, &metrics.rows_lost);
    let (queue, receiver) = Queue::new(capacity);
    let counts = deliveries.clone();
    let run = move || write_all(receiver, file, &counts);
    Ok(DeliveryQueue {
        queue,
        deliveries,
        thread: BackgroundThread::spawn("recorder", run)?,
    })
}

/// Writes a single row at once, and all that wait in blocks, until the queue is closed and empty.
fn write_all(
    mut queue: UnboundedReceiver<Queued<Rows>>,
    mut file: FileWriter,
    deliveries: &Deliveries,
) {
    let mut block = Vec::new();
    while let Some(first) = queue.blocking_recv() {
        let (mut next, mut count) = (Some(first), 0);
        while let Some((rows, _room)) = next {
            for row in &*rows {
                csv::row(row, file.target.base, &mut block);
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

impl FileWriter {
    /// Creates the file. A link to it stays: its target is what is written and moved.
    fn open(mut target: RecordsFile) -> io::Result<FileWriter> {
        target.path = std::path::absolute(&target.path)?;
        for _ in 0..MAX_LINKS {
            match std::fs::read_link(&target.path) {
                Ok(to) if !is_descriptor(&target.path) => target.path.set_file_name(to),
                _ => break,
            }
        }
        let mut header = Vec::new();
        csv::header(&mut header);
        let mut writer = FileWriter {
            target,
            header,
            open: None,
            is_rotation_error_logged: false,
        };
        writer.open = Some(writer.create()?);
        // If the header cannot be written now, it is tried again with the first row.
        if let Err(error) = writer.write(&[]) {
            let path = writer.target.path.display();
            log::warn!("records: cannot write {path}: {error}");
        }
        Ok(writer)
    }

    /// Appends complete lines, to a new file if one is due. On an error the file is unchanged.
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.close_if_moved_or_full(lines.len() as u64);
        let open = match self.open.take() {
            Some(open) => open,
            None => self.create()?,
        };
        let open = self.open.insert(open);
        let len = open.file.metadata()?.len();
        let mut header = [].as_slice();
        if open.is_file && len == 0 {
            // The file is new, or another process truncated it.
            header = &self.header;
            open.first_row = None;
        }
        let mut file = &open.file;
        let written = file.write_all(header).and_then(|()| file.write_all(lines));
        if written.is_err() && open.is_file {
            file.set_len(len)?;
        }
        written?;
        if !lines.is_empty() {
            open.first_row.get_or_insert(self.target.clock.now());
        }
        Ok(())
    }

    /// Removes the file if it has no row, so that processes that end before their first request leave no files.
    fn close(self) {
        if let Some(open) = &self.open
            && open.is_file
            && open.first_row.is_none()
        {
            // Its path may have changed. If this fails, a file with only a header stays.
            let at = format!("/proc/self/fd/{}", open.file.as_raw_fd());
            let _ = std::fs::read_link(at).and_then(std::fs::remove_file);
        }
    }

    /// Closes the file if it was removed, or moved and not replaced. If it is full, moves it aside and closes it; if another
    /// process's file is at the path by now, creates the next file beside that one.
    fn close_if_moved_or_full(&mut self, adding: u64) {
        let Some(open) = self.open.as_ref().filter(|open| open.is_file) else {
            return;
        };
        let at_path = std::fs::metadata(&self.target.path);
        if at_path.as_ref().is_err_and(is_not_found) {
            self.open = None;
            return;
        }
        let Ok(ours) = open.file.metadata() else {
            return;
        };
        if ours.nlink() > 0 && (adding == 0 || !self.is_due(ours.len(), open.first_row, adding)) {
            return;
        }
        let same = |at_path: Metadata| (at_path.dev(), at_path.ino()) == (ours.dev(), ours.ino());
        let next = match at_path.is_ok_and(same) {
            true => self.move_aside().map(|()| None),
            // The file at the path is another process's and is not moved.
            false => self.create_aside().map(Some),
        };
        match next {
            Ok(next) => {
                self.is_rotation_error_logged = false;
                self.open = next;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_rotation_error_logged, true) {
                    let path = self.target.path.display();
                    log::warn!("records: cannot move {path} away: {error}; rows still go to it");
                }
            }
        }
    }

    /// Creates a new file at the path, which no other process has open.
    fn create(&self) -> io::Result<OpenFile> {
        let found = std::fs::metadata(&self.target.path);
        let is_moved = |found: &Metadata| found.is_file() && !is_descriptor(&self.target.path);
        if found.as_ref().is_ok_and(|found| !is_moved(found)) {
            let file = OpenOptions::new().append(true).open(&self.target.path)?;
            return Ok(OpenFile::new(file, false));
        }
        let moved = found.and_then(|_| self.check_is_records());
        let moved = moved.and_then(|()| self.move_aside());
        if let Err(error) = moved
            && !is_not_found(&error)
        {
            return Err(error);
        }
        let mut options = OpenOptions::new();
        match options
            .append(true)
            .create_new(true)
            .open(&self.target.path)
        {
            // Another process was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => self.create_aside(),
            made => Ok(OpenFile::new(made?, true)),
        }
    }

    /// Creates a new file under the name of a rotated one, since the path is another process's.
    fn create_aside(&self) -> io::Result<OpenFile> {
        let file = OpenOptions::new().append(true).open(self.reserve()?)?;
        Ok(OpenFile::new(file, true))
    }

    /// Checks that the file at the path may be moved: it holds records of any version, or nothing.
    fn check_is_records(&self) -> io::Result<()> {
        let mut start = Vec::new();
        let file = File::open(&self.target.path)?;
        file.take(BEGINNING.len() as u64).read_to_end(&mut start)?;
        match start.is_empty() || start == BEGINNING {
            true => Ok(()),
            false => Err(io::Error::other("it holds something else than records")),
        }
    }

    /// Whether a block of `adding` bytes should go into a new file. The current file has `len` bytes, and its first row was written
    /// at `since`.
    fn is_due(&self, len: u64, since: Option<Stamp>, adding: u64) -> bool {
        let (rotation, clock) = (&self.target.rotation, &self.target.clock);
        let is_full = rotation.bytes > 0 && len.saturating_add(adding) > rotation.bytes;
        let age = since.map(|since| clock.now().nanos_since(since));
        let is_old = rotation.age_nanos > 0 && age.is_some_and(|age| age >= rotation.age_nanos);
        len > self.header.len() as u64 && (is_full || is_old)
    }

    /// Moves the file to an unused name, and removes rotated files beyond those to be kept.
    fn move_aside(&self) -> io::Result<()> {
        let path = &self.target.path;
        let away = self.reserve()?;
        if let Err(error) = std::fs::rename(path, &away) {
            let _ = std::fs::remove_file(&away);
            return Err(error);
        }
        let path = path.display();
        if self.target.rotation.keep > 0
            && let Err(error) = self.prune(&away)
        {
            log::warn!("records: cannot remove old files beside {path}: {error}");
        }
        log::info!("records: {path} moved aside to {}", away.display());
        Ok(())
    }

    fn prune(&self, newest: &Path) -> io::Result<()> {
        let mut files = rotated(&self.target.path)?;
        // The newest is kept even if its name is older, after the clock was set back.
        files.sort_by_cached_key(|file| (file.2 != newest, Reverse(file.clone())));
        let mut kept = 0;
        for (_, _, file) in files {
            if kept < self.target.rotation.keep {
                // Files without rows must not displace files with rows.
                let len = std::fs::metadata(&file).map_or(0, |file| file.len());
                kept += usize::from(len > self.header.len() as u64);
                continue;
            }
            match std::fs::remove_file(&file) {
                // Another process has removed it.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Creates an empty file under the name of the next rotated one, so that no other process takes the name.
    fn reserve(&self) -> io::Result<PathBuf> {
        let (path, at) = (&self.target.path, self.target.clock.now().compact_utc());
        let taken = rotated(path)?.into_iter().filter(|file| file.0 == at);
        // Numbers increase, so that names sort by age.
        let first = taken.map(|file| file.1 + 1).max().unwrap_or(0);
        for number in first..first.saturating_add(1000) {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{at}"));
            if number > 0 {
                name.push(format!(".{number}"));
            }
            let away = PathBuf::from(name);
            match OpenOptions::new().write(true).create_new(true).open(&away) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return made.map(|_| away),
            }
        }
        Err(io::Error::other("every name for the rotated file is taken"))
    }
}

impl OpenFile {
    fn new(file: File, is_file: bool) -> OpenFile {
        OpenFile {
            file,
            is_file,
            first_row: None,
        }
    }
}

/// Whether a path is an open file of a process, as `/dev/stdout` and `/proc/1/fd/1` are.
fn is_descriptor(path: &Path) -> bool {
    let is_in_fd = |path: &Path| path.parent().is_some_and(|folder| folder.ends_with("fd"));
    let is_open =
        |path: &Path| path.starts_with("/dev/fd") || path.starts_with("/proc") && is_in_fd(path);
    let target = std::fs::read_link(path);
    is_open(path) || target.is_ok_and(|target| is_open(&target))
}

fn is_not_found(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

#[cfg(test)]
mod tests;
