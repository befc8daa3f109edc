//! The records file: only whole lines, one header, one time base, and a look whether it is still there.
//!
//! Several processes may write to one file: during a restart without a gap the old one and the new one do.
//! So whatever happens to the file (rows, header, cutting a torn line off, rotation) happens under an
//! exclusive lock on it (`flock`), which the kernel takes off a process that dies. Under the lock whoever
//! holds it first looks whether the path still leads to the file that he locked.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use crate::clock::Stamp;

use super::csv::{self, TimeBase};
use super::prometheus::Metrics;
use super::recorder::{Error, RecordsFile};
use super::rotation::Filled;

/// The file, while it can be written.
#[derive(Debug)]
pub(super) struct Sink {
    target: RecordsFile,
    metrics: Metrics,
    header: Vec<u8>,
    open: Option<Open>,
    /// How often the lock is asked for, [`LOCK_PAUSE`] apart.
    patience: u32,
    /// It has been said that the file cannot be rotated.
    cannot_rotate: bool,
}

/// A file that was opened.
#[derive(Debug)]
struct Open {
    file: File,
    /// Its header line was compared with ours.
    is_checked: bool,
    /// When its first row ended.
    since: Option<Stamp>,
}

/// The file that stands at the path, locked: ours, and of whole lines. Dropping it closes the file, which
/// takes the lock off.
#[derive(Debug)]
struct Locked {
    open: Open,
    is_file: bool,
    len: u64,
}

/// Why the file cannot be written.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("another file stands there now")]
    OtherHeader,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Between two looks whether the lock is free. Whoever holds it writes one block.
const LOCK_PAUSE: Duration = Duration::from_millis(1);
/// Five seconds: a process that was stopped while it wrote must not hold up the others for ever.
const LOCK_PATIENCE: u32 = 5000;
/// How often a file is opened anew that was moved away meanwhile.
const TURNS: usize = 100;

/// All times of a file have one base: rows that count from an earlier run's start go with no others.
pub(super) fn check_base(path: &Path, base: TimeBase) -> Result<(), Error> {
    let Some(first) = first_arrival(path) else {
        return Ok(());
    };
    // No run lasts for thirty years.
    let theirs_is_epoch = first > 1e9;
    let name = |is_epoch| {
        if is_epoch {
            "the epoch"
        } else {
            "the start of a run"
        }
    };
    match base {
        TimeBase::Epoch if theirs_is_epoch => Ok(()),
        _ => Err(Error::OtherBase {
            path: path.into(),
            theirs: if theirs_is_epoch {
                name(true)
            } else {
                "the start of an earlier run"
            },
            ours: name(matches!(base, TimeBase::Epoch)),
        }),
    }
}

/// The arrival of the first row that stands in a file. A device or pipe has none.
fn first_arrival(path: &Path) -> Option<f64> {
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    first_time(&mut File::open(path).ok()?, "arrival_time")
}

/// A column of the first row.
fn first_time(file: &mut File, column: &str) -> Option<f64> {
    file.seek(SeekFrom::Start(0)).ok()?;
    let mut rows = ::csv::Reader::from_reader(file);
    let column = rows
        .headers()
        .ok()?
        .iter()
        .position(|name| name == column)?;
    rows.into_records().next()?.ok()?.get(column)?.parse().ok()
}

impl Sink {
    /// Opens it; its header line must be ours.
    pub(super) fn open(target: RecordsFile, metrics: Metrics) -> Result<Sink, Error> {
        let path = target.path.clone();
        let open = |source| Error::Open {
            path: path.clone(),
            source,
        };
        let mut header = Vec::new();
        csv::header(&mut header);
        let mut sink = Sink {
            target,
            metrics,
            header,
            open: None,
            patience: LOCK_PATIENCE,
            cannot_rotate: false,
        };
        match sink.lock() {
            Ok(file) => sink.release(file).map_err(open)?,
            Err(Trouble::OtherHeader) => return Err(Error::OtherHeader { path: path.clone() }),
            Err(Trouble::Io(source)) => return Err(open(source)),
        }
        // A header that cannot be written now is tried again with the first row.
        if let Err(error) = sink.write(&[]) {
            log::warn!("records: cannot write {}: {error}", path.display());
        }
        Ok(sink)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.target.path
    }

    /// Appends whole lines, to a new file when it is time for one; on failure the file is as it was.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut file = self.lock()?;
        if !lines.is_empty() && self.rotated(&mut file, lines.len() as u64) {
            drop(file);
            file = self.lock()?;
        }
        let header = if file.is_file && file.len == 0 {
            self.header.as_slice()
        } else {
            &[]
        };
        let mut to = &file.open.file;
        let written = to.write_all(header).and_then(|()| to.write_all(lines));
        if written.is_err() && file.is_file {
            to.set_len(file.len)?;
        }
        written?;
        self.release(file)
    }

    /// Opens and locks what stands at the path now. A torn last line is taken off: who wrote it is gone,
    /// for the lock is ours.
    fn lock(&mut self) -> Result<Locked, Trouble> {
        for _ in 0..TURNS {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => Open {
                    file: self.open_file()?,
                    is_checked: false,
                    since: None,
                },
            };
            let is_file = open.file.metadata()?.is_file();
            if is_file {
                self.wait_for_lock(&open.file)?;
            }
            if !self.is_in_place(&open.file) {
                continue;
            }
            let mut len = open.file.metadata()?.len();
            if is_file && len > 0 {
                if !open.is_checked && !self.has_our_header(&open.file, len)? {
                    return Err(Trouble::OtherHeader);
                }
                len = self.cut_torn_line(&mut open.file, len)?;
            }
            open.is_checked = true;
            return Ok(Locked { open, is_file, len });
        }
        let moved = "the file is moved away again and again";
        Err(io::Error::other(moved).into())
    }

    fn release(&mut self, file: Locked) -> io::Result<()> {
        if file.is_file {
            match file.open.file.unlock() {
                Err(error) if error.kind() != ErrorKind::Unsupported => return Err(error),
                _ => {}
            }
        }
        self.open = Some(file.open);
        Ok(())
    }

    fn open_file(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        // Reading finds what stands there; a device or pipe may not allow it.
        options
            .clone()
            .read(true)
            .open(self.path())
            .or_else(|_| options.open(self.path()))
    }

    fn wait_for_lock(&self, file: &File) -> io::Result<()> {
        for _ in 0..self.patience {
            match file.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
                // A file system without locks serves one process well.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                    return Ok(());
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        let held = "another process has held its lock for too long";
        Err(io::Error::new(ErrorKind::TimedOut, held))
    }

    /// Whether rows can be added to what a file holds: our header, or a piece of it and nothing else.
    fn has_our_header(&self, mut file: &File, len: u64) -> io::Result<bool> {
        let mut first = Vec::new();
        let limit = self.header.len() as u64;
        file.seek(SeekFrom::Start(0))?;
        BufReader::new(file.take(limit)).read_until(b'\n', &mut first)?;
        let is_cut_short = self.header.starts_with(&first) && len == first.len() as u64;
        Ok(first == self.header || is_cut_short)
    }

    /// The file's length, when what follows the last line end has been taken off.
    fn cut_torn_line(&self, file: &mut File, len: u64) -> io::Result<u64> {
        let whole = whole_lines(file, len)?;
        if whole < len {
            file.set_len(whole)?;
            let path = self.path().display();
            let torn = len - whole;
            log::warn!("records: {torn} bytes of a line that was never finished taken off {path}");
        }
        Ok(whole)
    }

    /// Whether the file was moved away because it is time.
    fn rotated(&mut self, file: &mut Locked, adding: u64) -> bool {
        let rotation = self.target.rotation;
        let header = self.header.len() as u64;
        let now = self.target.clock.now();
        if file.len <= header {
            // It may have been emptied under us.
            file.open.since = None;
        } else if rotation.age_nanos > 0 && file.open.since.is_none() {
            file.open.since = Some(self.first_row_ended(&mut file.open.file, now));
        }
        let filled = Filled {
            len: file.len,
            since: file.open.since,
        };
        if !file.is_file || !rotation.is_due(filled, header, adding, now) {
            return false;
        }
        match rotation.rotate(self.path(), now) {
            Ok(away) => {
                self.metrics.records_rotated();
                self.cannot_rotate = false;
                log::info!("records: a new file; the last is {}", away.display());
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.cannot_rotate, true) {
                    let path = self.path().display();
                    log::warn!("records: cannot move {path} away: {error}; it grows on");
                }
                false
            }
        }
    }

    /// What every process reads of a file, whoever wrote its first row; never later than `now`.
    fn first_row_ended(&self, file: &mut File, now: Stamp) -> Stamp {
        let seconds = first_time(file, "finish_time").or_else(|| first_time(file, "arrival_time"));
        let at = seconds.and_then(|seconds| match self.target.base {
            TimeBase::Epoch => Stamp::from_seconds(seconds),
            TimeBase::Since(start) => Some(start.plus_seconds(seconds)),
        });
        at.map_or(now, |at| at.min(now))
    }

    /// Whether the path still leads to the open file: a removed one would swallow rows without an error.
    fn is_in_place(&self, file: &File) -> bool {
        let same = |a: &Metadata, b: &Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let Ok(there) = std::fs::metadata(self.path()) else {
            return false;
        };
        let is_pipe = there.file_type().is_fifo();
        file.metadata()
            .is_ok_and(|ours| is_pipe || same(&ours, &there))
    }
}

impl From<Trouble> for io::Error {
    fn from(trouble: Trouble) -> io::Error {
        match trouble {
            Trouble::Io(error) => error,
            Trouble::OtherHeader => io::Error::other(trouble),
        }
    }
}

/// How much of a file stands before what follows its last line end.
fn whole_lines(file: &mut File, len: u64) -> io::Result<u64> {
    const STEP: u64 = 4096;
    let mut last = [0];
    file.read_exact_at(&mut last, len.saturating_sub(1))?;
    if last == *b"\n" {
        return Ok(len);
    }
    let mut end = len;
    while end > 0 {
        let start = end.saturating_sub(STEP);
        file.seek(SeekFrom::Start(start))?;
        let mut piece = Vec::new();
        (&*file).take(end - start).read_to_end(&mut piece)?;
        if let Some(at) = memchr::memrchr(b'\n', &piece) {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests;
