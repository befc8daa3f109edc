//! Follows the request logs of servers on the same disk (`--export-metrics-to-file`).
//!
//! Lines from before the start are of earlier requests and are not read. A file is identified by its inode: a renamed file
//! goes on, a new file under an old name is read from its beginning, and so is a truncated one. Prompts in the lines are
//! skipped while reading and never stored.

use std::collections::{HashMap, HashSet};
use std::fs::{DirEntry, File};
use std::io;
use std::os::unix::fs::{DirEntryExt, FileExt};
use std::path::{Path, PathBuf};

use crate::request::engine_report::EngineReport;
use crate::request::field::Field;
use crate::request::meta_info::{LOG_LINE, MetaInfo};
use crate::request::scalar::Scalar;
use crate::request::scan::{Progress, Scanner, Sink};
use crate::request::sequence::TimingSource;

/// A folder with logs, and how far they were read.
#[derive(Debug)]
pub struct LogFolder {
    path: PathBuf,
    /// The logs of the last listing, by inode; `None` before the first.
    logs: Option<HashMap<u64, Followed>>,
    is_missing_logged: bool,
}

#[derive(Debug)]
struct Followed {
    offset: u64,
    lines: Lines,
}

/// Parses one line after another, which arrive in pieces of any size.
#[derive(Debug)]
struct Lines {
    scanner: Scanner,
    found: Found,
    /// Whether the current line is skipped, since its beginning was not read.
    is_skipped: bool,
}

#[derive(Debug, Default)]
struct Found {
    id: Option<String>,
    tokens: Option<u64>,
    meta: MetaInfo,
}

/// The maximum number of files read: those with the latest hours in their names. Older ones no longer grow.
const MAX_FILES: usize = 16;
const PREFIX: &[u8] = b"sglang-request-metrics-";
const SUFFIX: &[u8] = b".log";
/// The number of bytes read at once.
const BUFFER_BYTES: usize = 64 * 1024;

impl LogFolder {
    /// Skips the lines that the folder holds. It need not exist yet.
    pub fn from_now(path: PathBuf) -> LogFolder {
        let mut folder = LogFolder {
            path,
            logs: None,
            is_missing_logged: false,
        };
        folder.poll();
        folder
    }

    /// Reads the lines written since the last call. Returns each line's report.
    pub fn poll(&mut self) -> Vec<EngineReport> {
        let mut reports = Vec::new();
        let listed = match entries(&self.path) {
            Ok(listed) => listed,
            Err(error) => {
                if !std::mem::replace(&mut self.is_missing_logged, true) {
                    let path = self.path.display();
                    log::warn!("engine logs: {path}: {error}; trying again");
                }
                // A folder that does not exist has no logs.
                match error.kind() {
                    io::ErrorKind::NotFound => Vec::new(),
                    _ => return reports,
                }
            }
        };
        let is_first = self.logs.is_none();
        let logs = self.logs.get_or_insert_default();
        let inodes: HashSet<u64> = listed.iter().map(DirEntryExt::ino).collect();
        logs.retain(|inode, _| inodes.contains(inode));
        for (index, entry) in listed.iter().enumerate() {
            let log = logs.entry(entry.ino()).or_insert_with(|| match is_first {
                true => Followed::from_end(&entry.path()),
                false => Followed::from(0),
            });
            if index < MAX_FILES
                && let Err(error) = log.read(&entry.path(), &mut reports)
            {
                // It vanished meanwhile, or may not be read. It is tried again.
                log::debug!("engine logs: {:?}: {error}", entry.path());
            }
        }
        reports
    }
}

impl Followed {
    fn from(offset: u64) -> Followed {
        Followed {
            offset,
            lines: Lines::new(offset > 0),
        }
    }

    /// Skips the last byte too: it ends a line, or a line whose beginning is not read goes on.
    fn from_end(path: &Path) -> Followed {
        let length = std::fs::metadata(path).map_or(0, |file| file.len());
        Followed::from(length.saturating_sub(1))
    }

    fn read(&mut self, path: &Path, reports: &mut Vec<EngineReport>) -> io::Result<()> {
        let found = std::fs::metadata(path)?;
        // Truncated.
        if found.len() < self.offset {
            *self = Followed::from(0);
        }
        // Opening a pipe would wait for its writer.
        if found.len() == self.offset || !found.is_file() {
            return Ok(());
        }
        let (file, mut buffer) = (File::open(path)?, vec![0; BUFFER_BYTES]);
        loop {
            let read = file.read_at(&mut buffer, self.offset)?;
            if read == 0 {
                return Ok(());
            }
            self.offset += read as u64;
            self.lines.feed(&buffer[..read], reports);
        }
    }
}

impl Sink for Found {
    fn scalar(&mut self, field: Field, value: Scalar<'_>) {
        match field {
            Field::EngineId => self.id = value.string(),
            Field::CompletionTokens => self.tokens = value.count(),
            Field::Meta(member) => self.meta.keep(member, value),
            _ => {}
        }
    }

    fn text(&mut self, _field: Field, _piece: &[u8]) {}
}

impl Lines {
    /// Starts at the beginning of a line, or within one that `is_skipped`.
    fn new(is_skipped: bool) -> Lines {
        Lines {
            scanner: Scanner::new(&LOG_LINE),
            found: Found::default(),
            is_skipped,
        }
    }

    /// Parses the next piece of a file. Adds the report of each complete line.
    fn feed(&mut self, mut bytes: &[u8], reports: &mut Vec<EngineReport>) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.piece(bytes.get(..end).unwrap_or_default());
            reports.extend(self.report());
            *self = Lines::new(false);
            bytes = bytes.get(end + 1..).unwrap_or_default();
        }
        self.piece(bytes);
    }

    fn piece(&mut self, bytes: &[u8]) {
        if !self.is_skipped {
            self.scanner.feed(bytes, &mut self.found);
        }
    }

    /// Returns the report of the line that has ended.
    fn report(&self) -> Option<EngineReport> {
        let found = &self.found;
        if self.is_skipped || self.scanner.progress() != Progress::Whole {
            return None;
        }
        Some(EngineReport {
            rid: Some(found.id.clone()?),
            output_tokens: found.tokens,
            ..EngineReport::of_meta_info(TimingSource::Log, &found.meta, None)
        })
    }
}

/// Lists the logs in a folder, the latest hours first.
fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    let is_log = |entry: &DirEntry| {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        name.starts_with(PREFIX) && name.ends_with(SUFFIX)
    };
    let entries = std::fs::read_dir(folder)?.filter_map(Result::ok);
    let mut logs: Vec<DirEntry> = entries.filter(is_log).collect();
    logs.sort_by_cached_key(|entry| std::cmp::Reverse(entry.file_name()));
    Ok(logs)
}

#[cfg(test)]
mod tests;
