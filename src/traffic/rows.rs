//! The rows of a run: each is made, and final, when its request has ended.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use crate::clock::{Clock, Stamp};
use crate::request::row::Row;

use super::client::Exchange;
use super::clocks::Clocks;
use super::engine_logs::EngineLogs;
use super::error::Error;
use super::lag::Lag;
use super::output::{Files, RowFile};
use super::spans::Spans;

/// Where rows go, and what they wait for. Without files they stay in memory.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    pub(super) files: Option<Files>,
    pub(super) spans: Option<Spans>,
    pub(super) logs: Option<EngineLogs>,
}

/// Makes rows of what ends.
#[derive(Debug)]
pub(super) struct Recorder {
    clock: Clock,
    clocks: Clocks,
    /// `None`: they stay in memory.
    file: Option<RowFile>,
    spans: Option<Spans>,
    logs: Option<EngineLogs>,
    pub(super) kept: Vec<Row>,
    pub(super) lag: Lag,
}

/// Without rows that wait, nothing is to be done before the next request ends.
const IDLE: Duration = Duration::from_secs(3600);

impl Recorder {
    /// Of a run that began at `started`.
    pub(super) fn new(clock: Clock, started: Stamp, outputs: Outputs) -> Recorder {
        Recorder {
            clocks: Clocks::new(clock.name()),
            clock,
            file: outputs.files.map(|files| files.begin(started)),
            spans: outputs.spans,
            logs: outputs.logs,
            kept: Vec::new(),
            lag: Lag::default(),
        }
    }

    /// Takes in all that end, until there will be no more. Blocks.
    pub(super) fn take_all(mut self, from: &Receiver<Exchange>) -> Recorder {
        loop {
            let wait = match self.has_waiting() {
                true => Duration::from_nanos(EngineLogs::LOOK_NANOS.unsigned_abs()),
                false => IDLE,
            };
            let done = match from.try_recv() {
                Err(TryRecvError::Empty) => {
                    // A moment's rest: what there is goes to the system, which outlives this process.
                    if let Some(file) = &mut self.file {
                        file.flush();
                    }
                    from.recv_timeout(wait)
                }
                done => done.map_err(|_| RecvTimeoutError::Disconnected),
            };
            match done {
                Ok(done) => self.take(done),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self,
            }
            self.take_told();
        }
    }

    fn take(&mut self, exchange: Exchange) {
        self.lag.add(&exchange);
        let records = self.clocks.relate(exchange);
        match &mut self.logs {
            Some(logs) => logs.wait(records, self.clock.now()),
            None => self.write(records),
        }
    }

    /// Writes the rows that wait no longer for servers' logs.
    fn take_told(&mut self) {
        let Some(logs) = &mut self.logs else { return };
        for joined in logs.ready(self.clock.now()) {
            let records = self.clocks.told(joined);
            self.write(records);
        }
    }

    fn has_waiting(&self) -> bool {
        self.logs.as_ref().is_some_and(EngineLogs::has_waiting)
    }

    fn write(&mut self, records: Vec<Row>) {
        let rows = Row::ended(records);
        if let Some(spans) = &self.spans {
            spans.add(&rows);
        }
        match &mut self.file {
            Some(file) => file.write(&rows),
            None => self.kept.extend(rows),
        }
    }

    /// Ends the file: where the rows are, why they are not whole, and what the user must know of spans. Blocks.
    pub(super) fn finish(&mut self) -> (PathBuf, Result<(), Error>, Option<String>) {
        while self.has_waiting() {
            let next = self.clock.now().plus_nanos(EngineLogs::LOOK_NANOS);
            self.clock.sleep_until(next);
            self.take_told();
        }
        let spans = self.spans.take().and_then(Spans::finish);
        let (path, written) = match self.file.take() {
            Some(file) => file.finish(),
            None => (PathBuf::new(), Ok(())),
        };
        (path, written, spans)
    }
}
