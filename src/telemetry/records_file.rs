//! The records file of a process: one header, complete lines, and no other process writes to it.
//!
//! A process that creates its file first moves an existing one aside. Another process may still write to that one, and goes on
//! under the new name. The reasons are in docs/dev/decisions/0030.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::clock::{Clock, Stamp};
use crate::request::csv;

use super::rotation::{self, Rotation};

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

/// Writes lines to the records file.
#[derive(Debug)]
pub(super) struct FileWriter {
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

/// How records of any version begin.
const BEGINNING: &[u8] = b"req_id,";
/// As many as the kernel follows.
const MAX_LINKS: usize = 40;

impl FileWriter {
    /// Creates the file. A link to it stays: its target is what is written and moved.
    pub(super) fn open(mut target: RecordsFile) -> io::Result<FileWriter> {
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
            let path = writer.path().display();
            log::warn!("records: cannot write {path}: {error}");
        }
        Ok(writer)
    }

    /// Returns the file's path.
    pub(super) fn path(&self) -> &Path {
        &self.target.path
    }

    /// Appends complete lines, to a new file if one is due. On an error the file is unchanged.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
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
    pub(super) fn close(self) {
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
        let at_path = std::fs::metadata(self.path());
        if at_path.as_ref().is_err_and(is_not_found) {
            self.open = None;
            return;
        }
        let Ok(ours) = open.file.metadata() else {
            return;
        };
        let (header, now) = (self.header.len() as u64, self.target.clock.now());
        let rotation = &self.target.rotation;
        let is_due = rotation.is_due(ours.len(), open.first_row, header, adding, now);
        if ours.nlink() > 0 && (!is_due || adding == 0) {
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
                    let path = self.path().display();
                    log::warn!("records: cannot move {path} away: {error}; rows still go to it");
                }
            }
        }
    }

    /// Creates a new file at the path, which no other process has open.
    fn create(&self) -> io::Result<OpenFile> {
        let found = std::fs::metadata(self.path());
        let is_moved = |found: &Metadata| found.is_file() && !is_descriptor(self.path());
        if found.as_ref().is_ok_and(|found| !is_moved(found)) {
            let file = OpenOptions::new().append(true).open(self.path())?;
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
        match options.append(true).create_new(true).open(self.path()) {
            // Another process was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => self.create_aside(),
            made => Ok(OpenFile::new(made?, true)),
        }
    }

    /// Creates a new file under the name of a rotated one, since the path is another process's.
    fn create_aside(&self) -> io::Result<OpenFile> {
        let at = rotation::reserve(self.path(), self.target.clock.now())?;
        let file = OpenOptions::new().append(true).open(at)?;
        Ok(OpenFile::new(file, true))
    }

    /// Checks that the file at the path may be moved: it holds records of any version, or nothing.
    fn check_is_records(&self) -> io::Result<()> {
        let mut start = Vec::new();
        let file = File::open(self.path())?;
        file.take(BEGINNING.len() as u64).read_to_end(&mut start)?;
        match start.is_empty() || start == BEGINNING {
            true => Ok(()),
            false => Err(io::Error::other("it holds something else than records")),
        }
    }

    fn move_aside(&self) -> io::Result<()> {
        let (rotation, now) = (self.target.rotation, self.target.clock.now());
        let away = rotation.rotate(self.path(), self.header.len() as u64, now)?;
        let path = self.path().display();
        log::info!("records: {path} moved aside to {}", away.display());
        Ok(())
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
