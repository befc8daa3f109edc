//! Follows the request logs of servers on the same disk (`--export-metrics-to-file`).
//!
//! Lines from before the start are of earlier requests and are not read. A file is identified by its inode: a renamed file
//! goes on, a new file under an old name is read from its beginning, and so is a truncated one. Prompts in the lines are
//! skipped while reading and never stored.

use std::collections::{HashMap, HashSet};
use std::fs::{DirEntry, File};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use crate::clock::Clock;
use crate::request::scan::{Progress, Scanner, Sink};
use crate::request::{EngineReport, Field, LOG_LINE, MetaInfo, Scalar, TimingSource};

/// Follows a folder in a thread of its own, so that a disk that does not answer holds up nothing else. The thread ends when this is
/// dropped, and is not waited for.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    /// Ends the thread when dropped, after the lines written until then.
    stop: Sender<()>,
    /// The reports of new lines, or none, once a period.
    readings: Receiver<Vec<EngineReport>>,
    /// For how long [`LogReader::poll`] has found no reading.
    silence: Duration,
}

/// A folder with logs, and how far they were read.
#[derive(Debug, Default)]
struct LogFolder {
    path: PathBuf,
    /// The logs of the last listing, by inode; `None` before the first.
    logs: Option<HashMap<u64, Followed>>,
    is_missing_logged: bool,
}

/// How far a log was read.
#[derive(Debug, Default)]
struct Followed {
    /// Where the first line begins whose end was not read: it is read again.
    next_line: u64,
    /// Where the bytes end that were read.
    end: u64,
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
/// The number of bytes of a file from which on the rest of it is read the next time.
const MAX_READ_BYTES: u64 = 16 << 20;
/// How often the folder is listed and its logs are read. It may hold a year of hourly files.
const PERIOD: Duration = Duration::from_millis(250);
/// How long a reading may take until the disk is said not to answer. The first one, which finds the ends of the logs, is waited for, and so
/// are the last ones.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The number of bytes of a line that are held at once.
const BUFFER_BYTES: usize = 64 * 1024;

impl LogReader {
    /// Skips the lines that the folder holds. It need not exist yet.
    pub fn from_now(path: PathBuf) -> LogReader {
        let mut reader = LogReader::start(LogFolder {
            path,
            ..LogFolder::default()
        });
        if reader.readings.recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            reader.add_silence(TIMEOUT);
        }
        reader
    }

    fn start(mut folder: LogFolder) -> LogReader {
        let path = folder.path.clone();
        let (stop, stopped) = mpsc::channel();
        // The next reading waits until this one is taken.
        let (sender, readings) = mpsc::sync_channel(0);
        let run = move || {
            let mut is_last = false;
            loop {
                let (reports, is_behind) = folder.poll();
                let is_wanted = sender.send(reports).is_ok();
                if !is_wanted || is_last && !is_behind {
                    return;
                }
                // The last reading begins after the last line.
                is_last =
                    !is_behind && stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout);
            }
        };
        let thread = std::thread::Builder::new().name("engine-logs".to_owned());
        let spawned = thread.spawn(run);
        if let Err(error) = &spawned {
            log::warn!("engine logs: {error}; they are not read");
        }
        LogReader {
            path,
            stop,
            readings,
            // Without a thread that is no news.
            silence: spawned.map_or(TIMEOUT, |_| Duration::ZERO),
        }
    }

    /// Returns the reports of the lines that were read since the last call. Never waits. It is called once a `period`, of which the
    /// silence is made up: by the clock, a stop of this process would be the disk's silence.
    pub fn poll(&mut self, period: Duration) -> Vec<EngineReport> {
        let readings: Vec<_> = self.readings.try_iter().collect();
        match readings.is_empty() {
            true => self.add_silence(period),
            false => self.silence = Duration::ZERO,
        }
        readings.into_iter().flatten().collect()
    }

    /// Ends the thread. Returns the reports of all lines written until now, as they are read; only for a while, as a log may grow as fast
    /// as it is read, or its disk not answer.
    pub fn last_readings(self, clock: &Clock) -> impl Iterator<Item = Vec<EngineReport>> {
        drop(self.stop);
        let until = clock.now().plus_seconds(TIMEOUT.as_secs_f64());
        std::iter::from_fn(move || {
            let nanos = u64::try_from(until.nanos_since(clock.now())).ok()?;
            let reading = self.readings.recv_timeout(Duration::from_nanos(nanos));
            reading.ok()
        })
    }

    /// Logs once that it has lasted too long.
    fn add_silence(&mut self, period: Duration) {
        let before = self.silence;
        self.silence += period;
        if before < TIMEOUT && self.silence >= TIMEOUT {
            let path = self.path.display();
            log::warn!("engine logs: {path}: the disk does not answer; nothing waits for it");
        }
    }
}

impl LogFolder {
    /// Reads the lines written since the last call. Returns their reports, and whether lines were left unread.
    fn poll(&mut self) -> (Vec<EngineReport>, bool) {
        let (mut reports, mut is_behind) = (Vec::new(), false);
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
                    _ => return (reports, is_behind),
                }
            }
        };
        let is_first = self.logs.is_none();
        let logs = self.logs.get_or_insert_default();
        let inodes: HashSet<u64> = listed.iter().map(DirEntryExt::ino).collect();
        logs.retain(|inode, _| inodes.contains(inode));
        for (index, entry) in listed.iter().enumerate() {
            let log = logs.entry(entry.ino()).or_insert_with(|| {
                let found = std::fs::metadata(entry.path()).ok().filter(|_| is_first);
                // If a line has been begun there, its rest is no JSON object, or one without an id.
                let end = found.map_or(0, |file| file.len());
                Followed {
                    next_line: end,
                    end,
                }
            });
            if index < MAX_FILES {
                match log.read(&entry.path(), &mut reports) {
                    Ok(is_whole) => is_behind |= !is_whole,
                    // It vanished meanwhile, or may not be read. It is tried again.
                    Err(error) => log::debug!("engine logs: {:?}: {error}", entry.path()),
                }
            }
        }
        (reports, is_behind)
    }
}

impl Followed {
    /// Reads the lines that have been written. Adds the report of each. Returns whether these were all.
    fn read(&mut self, path: &Path, reports: &mut Vec<EngineReport>) -> io::Result<bool> {
        let found = std::fs::metadata(path)?;
        // Truncated.
        if found.len() < self.end {
            *self = Followed::default();
        }
        // Opening a pipe would wait for its writer.
        if found.len() == self.end || !found.is_file() {
            return Ok(true);
        }
        let mut file = BufReader::with_capacity(BUFFER_BYTES, File::open(path)?);
        let begin = file.seek(SeekFrom::Start(self.next_line))?;
        let mut at = begin;
        let mut line = (Scanner::new(&LOG_LINE), Found::default());
        loop {
            let bytes = file.fill_buf()?;
            if bytes.is_empty() {
                self.end = at;
                return Ok(true);
            }
            let newline = memchr::memchr(b'\n', bytes);
            let (scanner, found) = &mut line;
            scanner.feed(&bytes[..newline.unwrap_or(bytes.len())], found);
            let read = newline.map_or(bytes.len(), |at| at + 1);
            file.consume(read);
            at += read as u64;
            if newline.is_some() {
                (self.next_line, self.end) = (at, at);
                let is_whole = scanner.progress() == Progress::Whole;
                reports.extend(found.report().filter(|_| is_whole));
                line = (Scanner::new(&LOG_LINE), Found::default());
                if at - begin > MAX_READ_BYTES {
                    return Ok(false);
                }
            }
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
}

impl Found {
    fn report(&self) -> Option<EngineReport> {
        Some(EngineReport {
            rid: Some(self.id.clone()?),
            output_tokens: self.tokens,
            ..EngineReport::of_meta_info(TimingSource::Log, &self.meta, None)
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
