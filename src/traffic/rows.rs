//! Records the rows of a run. A row is final when its request has ended, or with `--engine-logs` when its server has logged it: the logs
//! hold the times of streamed chats that the responses lack.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use crate::clock::{Clock, NANOS, Stamp};
use crate::engine::join::{EndedRequest, JoinTable, Joined};
use crate::engine::request_log::LogFolder;
use crate::error::Error;
use crate::request::{Row, TimingSource};

use super::client::Exchange;
use super::clocks::Clocks;
use super::lag::Lag;
use super::output::RowFile;
use super::spans::Spans;

/// Where rows go, and the logs that they wait for.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    /// `None`: rows stay in memory.
    pub(super) file: Option<RowFile>,
    pub(super) spans: Option<Spans>,
    pub(super) logs: Option<EngineLogs>,
}

/// Turns exchanges that have ended into rows, and writes them.
#[derive(Debug)]
pub(super) struct Recorder {
    clock: Clock,
    clocks: Clocks,
    outputs: Outputs,
    /// The rows of a run without a file.
    pub(super) in_memory: Vec<Row>,
    pub(super) lag: Lag,
}

impl Recorder {
    /// Has recorded nothing yet.
    pub(super) fn new(clock: Clock, outputs: Outputs) -> Recorder {
        Recorder {
            clocks: Clocks::default(),
            clock,
            outputs,
            in_memory: Vec::new(),
            lag: Lag::default(),
        }
    }

    /// Records all exchanges until their senders are gone. Blocks.
    pub(super) fn record_all(mut self, ended: &Receiver<Exchange>) -> Recorder {
        let period = Duration::from_nanos(EngineLogs::READ_PERIOD_NANOS.unsigned_abs());
        loop {
            let exchange = match ended.try_recv() {
                Err(TryRecvError::Empty) => {
                    // Nothing else to do: flush, so that the rows survive this process.
                    if let Some(file) = &mut self.outputs.file {
                        file.flush();
                    }
                    ended.recv_timeout(period)
                }
                received => received.map_err(|_| RecvTimeoutError::Disconnected),
            };
            match exchange {
                Ok(exchange) => self.record(exchange),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self,
            }
            self.write_joined();
        }
    }

    fn record(&mut self, exchange: Exchange) {
        self.lag.add(&exchange);
        let rows = self.clocks.relate(exchange);
        match &mut self.outputs.logs {
            Some(logs) => logs.wait(rows, self.clock.now()),
            None => self.write(rows),
        }
    }

    /// Writes the rows that no longer wait for the servers' logs.
    fn write_joined(&mut self) {
        let Some(logs) = &mut self.outputs.logs else {
            return;
        };
        for joined in logs.ready(self.clock.now()) {
            let rows = self.clocks.relate_joined(joined);
            self.write(rows);
        }
    }

    fn write(&mut self, rows: Vec<Row>) {
        let rows = Row::ended(rows);
        if let Some(spans) = &self.outputs.spans {
            spans.add(&rows);
        }
        match &mut self.outputs.file {
            Some(file) => file.write(&rows),
            None => self.in_memory.extend(rows),
        }
    }

    /// Completes the file. Returns its path, the error if it is incomplete, and a warning about lost spans. Blocks.
    pub(super) fn finish(&mut self) -> (PathBuf, Result<(), Error>, Option<String>) {
        let has_waiting =
            |outputs: &Outputs| outputs.logs.as_ref().is_some_and(EngineLogs::has_waiting);
        while has_waiting(&self.outputs) {
            let next = self.clock.now().plus_nanos(EngineLogs::READ_PERIOD_NANOS);
            self.clock.sleep_until(next);
            self.write_joined();
        }
        let spans = self.outputs.spans.take().and_then(Spans::finish);
        let (path, written) = match self.outputs.file.take() {
            Some(file) => file.finish(),
            None => (PathBuf::new(), Ok(())),
        };
        (path, written, spans)
    }
}

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
        EngineLogs {
            folder: LogFolder::from_now(folder.to_owned()),
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
