//! Records the rows of a run. A row is final when its request has ended.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use crate::clock::Clock;
use crate::request::row::Row;

use super::client::Exchange;
use super::clocks::Clocks;
use super::engine_logs::EngineLogs;
use super::error::Error;
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

/// The longest wait for the next exchange while no row waits for a log.
const IDLE_WAIT: Duration = Duration::from_secs(3600);

impl Recorder {
    /// Has recorded nothing yet.
    pub(super) fn new(clock: Clock, outputs: Outputs) -> Recorder {
        Recorder {
            clocks: Clocks::new(clock.name()),
            clock,
            outputs,
            in_memory: Vec::new(),
            lag: Lag::default(),
        }
    }

    /// Records all exchanges until their senders are gone. Blocks.
    pub(super) fn record_all(mut self, ended: &Receiver<Exchange>) -> Recorder {
        loop {
            let wait = match self.has_waiting() {
                true => Duration::from_nanos(EngineLogs::READ_PERIOD_NANOS.unsigned_abs()),
                false => IDLE_WAIT,
            };
            let exchange = match ended.try_recv() {
                Err(TryRecvError::Empty) => {
                    // Nothing else to do: flush, so that the rows survive this process.
                    if let Some(file) = &mut self.outputs.file {
                        file.flush();
                    }
                    ended.recv_timeout(wait)
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

    fn has_waiting(&self) -> bool {
        self.outputs
            .logs
            .as_ref()
            .is_some_and(EngineLogs::has_waiting)
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
        while self.has_waiting() {
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
