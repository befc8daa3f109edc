//! Reads the servers' request logs on this disk, which hold the times of streamed chats that the responses lack. Rows wait for them.

use std::path::Path;

use crate::clock::{NANOS, Stamp};
use crate::engine::join::EndedRequest;
use crate::engine::join_table::{JoinTable, Joined};
use crate::engine::request_log::LogFolder;
use crate::request::row::Row;
use crate::request::sequence::TimingSource;

/// The logs of a folder since the beginning of a run, and the requests that wait for their lines.
#[derive(Debug)]
pub(super) struct EngineLogs {
    folder: LogFolder,
    table: JoinTable,
    last_read: Stamp,
    /// Requests that do not wait, or no longer.
    ready: Vec<Joined>,
}

/// How long a request waits for its line. A server writes it when the response has ended, and never if the client left.
const LINE_TIMEOUT_NANOS: i64 = 2 * NANOS;
/// How many requests may wait at once.
const MAX_WAITING: usize = 16_384;

impl EngineLogs {
    /// How often the logs are read.
    pub(super) const READ_PERIOD_NANOS: i64 = NANOS / 5;

    /// Begins with the lines that are written from now on: earlier ones are not of this run.
    pub(super) fn begin(folder: &Path) -> EngineLogs {
        let mut folder = LogFolder::new(folder.to_owned());
        folder.poll();
        EngineLogs {
            folder,
            table: JoinTable::new(MAX_WAITING),
            last_read: Stamp::from_nanos(0),
            ready: Vec::new(),
        }
    }

    /// Takes the rows of a request that ended `now`. They wait for its line, unless there can be none or nothing is missing.
    pub(super) fn wait(&mut self, rows: Vec<Row>, now: Stamp) {
        let has_id = rows.iter().any(|row| row.engine_id.is_some());
        let ended = EndedRequest {
            rows,
            expected_source: TimingSource::Log,
            at: now,
            deadline: now.plus_nanos(LINE_TIMEOUT_NANOS),
        };
        let ready = match has_id {
            true => self.table.add_request(ended).err(),
            false => Some(ended),
        };
        self.ready.extend(ready.map(Joined::without));
    }

    /// Whether any request waits.
    pub(super) fn has_waiting(&self) -> bool {
        self.table.waiting() > 0
    }

    /// Returns the requests that no longer wait, with what their lines report.
    pub(super) fn ready(&mut self, now: Stamp) -> Vec<Joined> {
        if self.has_waiting() && now.nanos_since(self.last_read) >= EngineLogs::READ_PERIOD_NANOS {
            self.last_read = now;
            let table = &mut self.table;
            for line in self.folder.poll() {
                table.add_log_line(line, now);
            }
            self.ready.extend(table.take_ready(now));
            drop(table.forget(now));
        }
        std::mem::take(&mut self.ready)
    }
}
