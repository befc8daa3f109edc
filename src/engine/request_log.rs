//! Follows the request logs of servers on the same disk (`--export-metrics-to-file`).
//!
//! Lines from before the start are of earlier requests and are not read. A file is identified by its inode: a renamed file
//! goes on, a new file under an old name is read from its beginning, and so is a truncated one. Prompts in the lines are
//! skipped while reading and never stored.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{DirEntry, File, FileType};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirEntryExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::request::engine_report::EngineReport;
use crate::telemetry::background_thread::BackgroundThread;

mod line;

use line::Lines;

/// The thread that follows a folder. Dropping it reads the last lines and ends it.
#[derive(Debug)]
pub struct Tail {
    /// Stops the thread when dropped, so it stands before the thread.
    _stop: Sender<Infallible>,
    _thread: BackgroundThread,
}

/// A folder with logs, and how far they were read.
#[derive(Debug)]
pub struct LogFolder {
    path: PathBuf,
    /// By inode, which no other file gets while this one is open.
    open: HashMap<u64, Followed>,
    /// The logs of the last listing, without those that could not be opened yet; `None` before the first. A known log that is
    /// opened later is read from its end, a new one from its beginning.
    known: Option<HashSet<(u64, OsString)>>,
    is_missing_logged: bool,
    /// The number of polls until the folder is listed again.
    polls_until_listing: u32,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Followed {
    file: File,
    offset: u64,
    lines: Lines,
}

/// How often the logs are read.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The folder is listed in every this many polls only: it may hold a year of hourly files.
const POLLS_PER_LISTING: u32 = 5;
/// The maximum number of files followed: those with the latest hours in their names. Older ones no longer grow.
const MAX_FILES: usize = 16;
const PREFIX: &[u8] = b"sglang-request-metrics-";
const SUFFIX: &[u8] = b".log";
/// The number of bytes read at once.
const BUFFER_BYTES: usize = 64 * 1024;

impl Tail {
    /// Starts to follow the logs of `folder`, which need not exist yet. `sink` gets each line's report; it must not wait.
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn start(
        folder: PathBuf,
        sink: impl Fn(EngineReport) + Send + 'static,
    ) -> io::Result<Tail> {
        let (stop, stopped) = channel();
        let mut folder = LogFolder::new(folder);
        // Finds the ends of the logs now: the thread may begin later.
        folder.poll(&mut |report| sink(report));
        let run = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(POLL_INTERVAL) {
                folder.poll(&mut |report| sink(report));
            }
            folder.poll(&mut |report| sink(report));
        };
        let panic_message = "engine logs: the thread that reads them failed";
        Ok(Tail {
            _stop: stop,
            _thread: BackgroundThread::spawn("engine-logs", panic_message, run)?,
        })
    }
}

impl LogFolder {
    /// Creates a folder that has not been read.
    pub fn new(path: PathBuf) -> LogFolder {
        LogFolder {
            path,
            open: HashMap::new(),
            known: None,
            is_missing_logged: false,
            polls_until_listing: 0,
            buffer: vec![0; BUFFER_BYTES],
        }
    }

    /// Reads the lines written since the last call, and calls `on_line` with each line's report.
    pub fn poll(&mut self, on_line: &mut dyn FnMut(EngineReport)) {
        let is_due = self.polls_until_listing == 0;
        self.polls_until_listing = (self.polls_until_listing + 1) % POLLS_PER_LISTING;
        let logs = if is_due { self.list() } else { None };
        let newest = logs.as_ref().map(|logs| &logs[..logs.len().min(MAX_FILES)]);
        if let Some(logs) = &logs {
            self.open_new(logs);
        }
        let buffer = &mut self.buffer;
        self.open.retain(|inode, followed| {
            if let Err(error) = followed.read(buffer, on_line) {
                log::debug!("engine logs: {error}");
            }
            // A file that is gone was just read to its end.
            newest.is_none_or(|newest| newest.iter().any(|entry| entry.ino() == *inode))
        });
    }

    /// Lists the logs, the latest hours first; `None` if the folder cannot be read.
    fn list(&mut self) -> Option<Vec<DirEntry>> {
        let logs = match entries(&self.path) {
            Ok(logs) => logs,
            Err(error) => {
                if !self.is_missing_logged {
                    let path = self.path.display();
                    log::warn!("engine logs: {path}: {error}; trying again");
                }
                self.is_missing_logged = true;
                // A folder that does not exist has no logs.
                return (error.kind() == io::ErrorKind::NotFound).then(Vec::new);
            }
        };
        if self.is_missing_logged && !logs.is_empty() {
            self.is_missing_logged = false;
            log::info!("engine logs: {} is there", self.path.display());
        }
        Some(logs)
    }

    /// Opens the latest logs that are not open.
    fn open_new(&mut self, logs: &[DirEntry]) {
        let mut known = HashSet::new();
        for (index, entry) in logs.iter().enumerate() {
            let inode = entry.ino();
            let file = (inode, entry.file_name());
            let was_known = |known: &HashSet<_>| known.contains(&file);
            let from_end = self.known.as_ref().is_none_or(was_known);
            if index < MAX_FILES && !self.open.contains_key(&inode) {
                match Followed::open(entry, from_end) {
                    Ok(followed) => drop(self.open.insert(inode, followed)),
                    Err(error) => {
                        // It vanished meanwhile, or may not be read. It is tried again.
                        log::debug!("engine logs: {:?}: {error}", entry.path());
                        if !from_end {
                            continue;
                        }
                    }
                }
            }
            known.insert(file);
        }
        self.known = Some(known);
    }
}

impl Followed {
    fn open(entry: &DirEntry, from_end: bool) -> io::Result<Followed> {
        let path = entry.path();
        if !std::fs::metadata(&path)?.is_file() {
            return Err(io::Error::other("a link to something that is not a file"));
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

    fn read(&mut self, buffer: &mut [u8], on_line: &mut dyn FnMut(EngineReport)) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        // Truncated.
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
                .feed(buffer.get(..read).unwrap_or_default(), on_line);
        }
        Ok(())
    }
}

/// Lists the logs in a folder, the latest hours first.
fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    let is_log = |entry: &DirEntry| {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let is_named = name.starts_with(PREFIX) && name.ends_with(SUFFIX);
        // Opening a pipe would wait for its writer. The folder knows the type: no call for each file.
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
