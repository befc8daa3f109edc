//! A process's own records file: one header, whole lines, and no other process writes to it.
//!
//! Whoever begins a file moves aside what lies at its path, which another process may still be writing to: that one
//! writes on to its own file under the new name. docs/dev/decisions/0030 tells why.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::clock::{Clock, Stamp};

use super::prometheus::Metrics;
use super::rotation::{self, Rotation};
use crate::request::csv::{self, TimeBase};

/// The file that a process's records go to.
#[derive(Clone, Debug)]
pub struct RecordsFile {
    /// Where it is.
    pub path: PathBuf,
    /// What its time columns count from.
    pub base: TimeBase,
    /// When a new one is begun.
    pub rotation: Rotation,
    /// Tells the age of the file.
    pub clock: Clock,
}

/// Writes to it.
#[derive(Debug)]
pub(super) struct Sink {
    target: RecordsFile,
    metrics: Metrics,
    header: Vec<u8>,
    open: Option<Open>,
    /// It has been said that the file cannot be rotated.
    cannot_rotate: bool,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// A device or a pipe gets no header, and is not moved.
    is_file: bool,
    first_row: Option<Stamp>,
}

/// How often a file is begun that another process begins at the same moment.
const TURNS: usize = 100;

impl Sink {
    /// Begins the file.
    pub(super) fn open(target: RecordsFile, metrics: Metrics) -> io::Result<Sink> {
        let mut header = Vec::new();
        csv::header(&mut header);
        let mut sink = Sink {
            target,
            metrics,
            header,
            open: None,
            cannot_rotate: false,
        };
        sink.open = Some(sink.begin()?);
        // A header that cannot be written now is tried again with the first row.
        if let Err(error) = sink.write(&[]) {
            let path = sink.path().display();
            log::warn!("records: cannot write {path}: {error}");
        }
        Ok(sink)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.target.path
    }

    /// Appends whole lines, to a new file when it is time for one; on failure the file is as it was.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.leave_if_gone_or_full(lines.len() as u64);
        let open = match self.open.take() {
            Some(open) => open,
            None => self.begin()?,
        };
        let open = self.open.insert(open);
        let len = open.file.metadata()?.len();
        let mut header = [].as_slice();
        if open.is_file && len == 0 {
            // New, or emptied under us.
            header = &self.header;
            open.first_row = None;
        }
        let mut to = &open.file;
        let written = to.write_all(header).and_then(|()| to.write_all(lines));
        if written.is_err() && open.is_file {
            to.set_len(len)?;
        }
        written?;
        if !lines.is_empty() {
            open.first_row.get_or_insert(self.target.clock.now());
        }
        Ok(())
    }

    /// Takes the file away if it has no row: a process that ends before it served, again and again, leaves nothing.
    pub(super) fn close(self) {
        if let Some(open) = &self.open
            && open.is_file
            && open.first_row.is_none()
        {
            // Wherever it is by now. What stays if this fails is a header.
            let at = format!("/proc/self/fd/{}", open.file.as_raw_fd());
            let _ = std::fs::read_link(at).and_then(std::fs::remove_file);
        }
    }

    /// Closes a file that is full, when it has been moved aside, and one that was removed or moved by somebody who put
    /// none in its place. Where another process has put its own at the path, the next file is made beside it.
    fn leave_if_gone_or_full(&mut self, adding: u64) {
        let Some(open) = self.open.as_ref().filter(|open| open.is_file) else {
            return;
        };
        let is_free = std::fs::metadata(self.path()).is_err_and(|error| is_not_found(&error));
        if is_free {
            self.open = None;
            return;
        }
        let ours = open.file.metadata();
        let is_removed = ours.as_ref().is_ok_and(|ours| ours.nlink() == 0);
        let len = ours.map_or(0, |ours| ours.len());
        let (header, now) = (self.header.len() as u64, self.target.clock.now());
        let rotation = &self.target.rotation;
        let is_due = rotation.is_due(len, open.first_row, header, adding, now);
        if !is_removed && (!is_due || adding == 0) {
            return;
        }
        let next = if self.is_at_path(&open.file) {
            self.move_aside().map(|()| None)
        } else {
            // The path is another process's: what it has there is not moved.
            self.begin_aside().map(Some)
        };
        match next {
            Ok(next) => {
                self.cannot_rotate = false;
                self.open = next;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.cannot_rotate, true) {
                    let path = self.path().display();
                    log::warn!("records: cannot move {path} away: {error}; it grows on");
                }
            }
        }
    }

    /// Makes a new file at the path, which no other process has open.
    fn begin(&self) -> io::Result<Open> {
        for _ in 0..TURNS {
            match std::fs::metadata(self.path()) {
                Ok(there) if there.is_file() && !is_descriptor(self.path()) => {
                    let moved = self.is_records().and_then(|is| match is {
                        true => self.move_aside(),
                        false => Err(io::Error::other("it holds something else than records")),
                    });
                    match moved {
                        Err(error) if !is_not_found(&error) => return Err(error),
                        _ => {}
                    }
                }
                Ok(_) => {
                    let file = OpenOptions::new().append(true).open(self.path())?;
                    return Ok(Open::new(file, false));
                }
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
            let mut options = OpenOptions::new();
            options.append(true).create_new(true);
            match options.open(followed(self.path())) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return Ok(Open::new(made?, true)),
            }
        }
        Err(io::Error::other("other processes begin it all the time"))
    }

    /// Makes a new file under a rotated one's name, where the path has been taken by another process.
    fn begin_aside(&self) -> io::Result<Open> {
        let path = std::fs::canonicalize(self.path())?;
        let at = rotation::reserve(&path, self.target.clock.now())?;
        let file = OpenOptions::new().append(true).open(at)?;
        self.metrics.rotations.with(&[]).inc();
        Ok(Open::new(file, true))
    }

    /// Whether what lies at the path may be moved: records, of any version, or nothing yet.
    fn is_records(&self) -> io::Result<bool> {
        let first_column = self.header.split(|byte| *byte == b',').next();
        let first_column = first_column.unwrap_or_default();
        let mut start = Vec::new();
        let file = File::open(self.path())?;
        file.take(first_column.len() as u64)
            .read_to_end(&mut start)?;
        Ok(start.is_empty() || start == first_column)
    }

    fn move_aside(&self) -> io::Result<()> {
        let (rotation, now) = (self.target.rotation, self.target.clock.now());
        let away = rotation.rotate(self.path(), self.header.len() as u64, now)?;
        self.metrics.rotations.with(&[]).inc();
        let path = self.path().display();
        log::info!("records: {path} moved aside to {}", away.display());
        Ok(())
    }

    fn is_at_path(&self, file: &File) -> bool {
        let same = |a: Metadata, b: Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let there = std::fs::metadata(self.path());
        there.is_ok_and(|there| file.metadata().is_ok_and(|ours| same(ours, there)))
    }
}

impl Open {
    fn new(file: File, is_file: bool) -> Open {
        Open {
            file,
            is_file,
            first_row: None,
        }
    }
}

/// Whether a path is an open file of this process, as `/dev/stdout` is.
fn is_descriptor(path: &Path) -> bool {
    let is_open = |path: &Path| path.starts_with("/proc/self/fd") || path.starts_with("/dev/fd");
    let to = std::fs::read_link(path);
    is_open(path) || to.is_ok_and(|to| is_open(&to))
}

fn is_not_found(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// Where a link leads, also when nothing is there: a new file is not made through a link.
fn followed(path: &Path) -> PathBuf {
    /// As many as the kernel follows.
    const LINKS: usize = 40;
    let mut at = path.to_owned();
    for _ in 0..LINKS {
        let Ok(to) = std::fs::read_link(&at) else {
            break;
        };
        at.set_file_name(to);
    }
    at
}

#[cfg(test)]
mod tests;
