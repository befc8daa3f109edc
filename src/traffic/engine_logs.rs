//! The servers' request logs on this disk: they tell of streamed chats what their responses do not. Rows wait for them.

use std::path::Path;

use crate::clock::{NANOS, Stamp};
use crate::engine::join::Ended;
use crate::engine::join_table::{Joined, Table};
use crate::engine::request_log::Folder;
use crate::request::row::Row;
use crate::request::sequence::TimingSource;

/// The logs of a folder, from the beginning of a run on, and the requests that wait for their lines.
#[derive(Debug)]
pub(super) struct EngineLogs {
    folder: Folder,
    table: Table,
    looked: Stamp,
    /// They do not wait, or no longer.
    ready: Vec<Joined>,
}

/// A server writes a line when the response is over; of a client that left there is never one.
const PATIENCE_NANOS: i64 = 2 * NANOS;
/// Requests that wait at once.
const MOST: usize = 16_384;

impl EngineLogs {
    /// How often they are looked at, at most; nanoseconds.
    pub(super) const LOOK_NANOS: i64 = NANOS / 20;

    /// What lies in `folder` by now is not of the run.
    pub(super) fn begin(folder: &Path) -> EngineLogs {
        let mut folder = Folder::new(folder.to_owned());
        folder.look(&mut |_| {});
        EngineLogs {
            folder,
            table: Table::new(MOST),
            looked: Stamp::from_nanos(0),
            ready: Vec::new(),
        }
    }

    /// A request that ended `now` waits for what is told of it, unless nothing can be or all is known.
    pub(super) fn wait(&mut self, rows: Vec<Row>, now: Stamp) {
        let has_id = rows.iter().any(|row| row.engine_id.is_some());
        let ended = |rows| Ended {
            rows,
            wanted: TimingSource::Log,
            at: now,
        };
        let waits = match has_id {
            true => self
                .table
                .ended(ended(rows), now.plus_nanos(PATIENCE_NANOS)),
            false => Err(rows),
        };
        let ready = waits.unwrap_or_else(|rows| Some(Joined::without(ended(rows))));
        self.ready.extend(ready);
    }

    /// Whether any request waits.
    pub(super) fn has_waiting(&self) -> bool {
        self.table.waiting() > 0
    }

    /// The requests that wait no longer, with what was told of them.
    pub(super) fn ready(&mut self, now: Stamp) -> Vec<Joined> {
        if self.has_waiting() && now.nanos_since(self.looked) >= EngineLogs::LOOK_NANOS {
            self.looked = now;
            let table = &mut self.table;
            self.folder.look(&mut |line| {
                table.line(line, now);
            });
            self.ready.extend(table.whole());
            self.ready.extend(table.due(now));
            table.forget(now);
        }
        std::mem::take(&mut self.ready)
    }
}
