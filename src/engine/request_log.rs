//! Reads the request logs of servers on the same disk (`--export-metrics-to-file`) as they grow.
//!
//! What lies there at the start is of requests that ended before, and is not read. A file is followed by what it is, not by
//! its name: one that is renamed goes on, one that takes a name is new, one that is cut begins anew. Prompts in its lines are
//! skipped as they are read and are kept nowhere.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{DirEntry, File, FileType};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirEntryExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::request::engine_report::Told;

mod line;

use line::Lines;

/// The thread that follows a folder. It ends when dropped.
#[derive(Debug)]
pub struct Tail {
    /// Dropped, it ends the thread.
    stop: Option<Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

/// The logs of a folder, as far as they were read.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// By inode: as long as one is open, no other file gets its number.
    open: HashMap<u64, Followed>,
    /// What lay there at the last look, but for what could not be opened yet: what of it is not followed is read from its end.
    known: HashSet<(u64, OsString)>,
    /// What lies there was there before us.
    is_first: bool,
    /// It is said in the log that the folder cannot be read.
    is_away: bool,
    /// Looks until its names are listed.
    list_in: u32,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Followed {
    file: File,
    offset: u64,
    lines: Lines,
}

/// How often it is looked whether a log has grown.
const TICK: Duration = Duration::from_millis(100);
/// In each so many looks the folder's names are listed: there may be a year of hours.
const LIST_EVERY: u32 = 5;
/// Files that are followed: those with the last hours in their names. Older ones grow no more.
const FILES: usize = 16;
const PREFIX: &[u8] = b"sglang-request-metrics-";
const SUFFIX: &[u8] = b".log";
/// Bytes that are read at once.
const PIECE: usize = 64 * 1024;

impl Tail {
    /// Follows the logs of `folder`, which may come later. `sink` gets what they tell; it must not wait.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(folder: PathBuf, sink: impl Fn(Told) + Send + 'static) -> io::Result<Tail> {
        let (stop, stopped) = channel();
        let mut folder = Folder::new(folder);
        // What comes from now on is read, though the thread may begin later.
        folder.look(&mut |told| sink(told));
        let run = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
                folder.look(&mut |told| sink(told));
            }
            folder.look(&mut |told| sink(told));
        };
        let thread = std::thread::Builder::new()
            .name("engine-logs".into())
            .spawn(run)?;
        Ok(Tail {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        drop(self.stop.take());
        let thread = self.thread.take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("engine logs: the thread that reads them failed");
        }
    }
}

impl Folder {
    /// A folder that has not been looked at.
    pub fn new(path: PathBuf) -> Folder {
        Folder {
            path,
            open: HashMap::new(),
            known: HashSet::new(),
            is_first: true,
            is_away: false,
            list_in: 0,
            buffer: vec![0; PIECE],
        }
    }

    /// Reads what has come since the last look.
    pub fn look(&mut self, told: &mut dyn FnMut(Told)) {
        let is_due = self.list_in == 0;
        self.list_in = (self.list_in + 1) % LIST_EVERY;
        let logs = if is_due { self.logs() } else { None };
        let newest = logs.as_ref().map(|logs| &logs[..logs.len().min(FILES)]);
        if let Some(logs) = &logs {
            self.follow(logs);
        }
        let buffer = &mut self.buffer;
        self.open.retain(|inode, followed| {
            if let Err(error) = followed.read(buffer, told) {
                log::debug!("engine logs: {error}");
            }
            // One that is gone was read to its end.
            newest.is_none_or(|newest| newest.iter().any(|entry| entry.ino() == *inode))
        });
    }

    /// The logs that are there, the last hours first; `None` where that cannot be known.
    fn logs(&mut self) -> Option<Vec<DirEntry>> {
        let logs = match entries(&self.path) {
            Ok(logs) => logs,
            Err(error) => {
                if !self.is_away {
                    let path = self.path.display();
                    log::warn!("engine logs: {path}: {error}; it is looked for again and again");
                }
                self.is_away = true;
                // Where no folder is, no logs are.
                return (error.kind() == io::ErrorKind::NotFound).then(Vec::new);
            }
        };
        if self.is_away && !logs.is_empty() {
            self.is_away = false;
            log::info!("engine logs: {} is there", self.path.display());
        }
        Some(logs)
    }

    /// Opens the newest that are not open.
    fn follow(&mut self, logs: &[DirEntry]) {
        let mut known = HashSet::new();
        for (place, entry) in logs.iter().enumerate() {
            let inode = entry.ino();
            let own = (inode, entry.file_name());
            let from_end = self.is_first || self.known.contains(&own);
            if place < FILES && !self.open.contains_key(&inode) {
                match Followed::open(entry, from_end) {
                    Ok(followed) => drop(self.open.insert(inode, followed)),
                    Err(error) => {
                        // It vanished meanwhile, or is not ours to read: it is tried again.
                        log::debug!("engine logs: {:?}: {error}", entry.path());
                        if !from_end {
                            continue;
                        }
                    }
                }
            }
            known.insert(own);
        }
        self.known = known;
        self.is_first = false;
    }
}

impl Followed {
    fn open(entry: &DirEntry, from_end: bool) -> io::Result<Followed> {
        let path = entry.path();
        if !std::fs::metadata(&path)?.is_file() {
            return Err(io::Error::other("a link to what is no file"));
        }
        let mut file = File::open(path)?;
        let offset = match from_end {
            true => file.seek(SeekFrom::End(0))?,
            false => 0,
        };
        let mut last = [b'\n'];
        if let Some(before) = offset.checked_sub(1) {
            file.read_exact_at(&mut last, before)?;
        }
        Ok(Followed {
            file,
            offset,
            lines: Lines::new(last != *b"\n"),
        })
    }

    fn read(&mut self, buffer: &mut [u8], told: &mut dyn FnMut(Told)) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length < self.offset {
            self.file.seek(SeekFrom::Start(0))?;
            self.offset = 0;
            self.lines = Lines::new(false);
        }
        while self.offset < length {
            let read = self.file.read(buffer)?;
            if read == 0 {
                break;
            }
            self.offset += read as u64;
            self.lines
                .feed(buffer.get(..read).unwrap_or_default(), told);
        }
        Ok(())
    }
}

/// The logs in a folder, the last hours first.
fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    let is_log = |entry: &DirEntry| {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let is_named = name.starts_with(PREFIX) && name.ends_with(SUFFIX);
        // To open a pipe would wait for its writer. The folder itself says what it is: no file is asked.
        let may_be_file = |kind: FileType| kind.is_file() || kind.is_symlink();
        is_named && entry.file_type().is_ok_and(may_be_file)
    };
    let entries = std::fs::read_dir(folder)?.filter_map(Result::ok);
    let mut logs: Vec<DirEntry> = entries.filter(is_log).collect();
    logs.sort_by_cached_key(|entry| std::cmp::Reverse(entry.file_name()));
    Ok(logs)
}

#[cfg(test)]
mod tests;
