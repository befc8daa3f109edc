//! Records the rows of a run: relates their clocks, and writes them to `requests.csv` and, where a collector is named, as spans. A row is
//! final when its request has ended, or with `--engine-logs` when its server has logged it: the logs hold the times of streamed chats
//! that the responses lack.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use serde_json::json;

use crate::clock::{Clock, NANOS, Stamp};
use crate::engine::join::{EndedRequest, JoinTable, Joined};
use crate::engine::request_log::LogReader;
use crate::error::Error;
use crate::offset::OffsetTable;
use crate::report::files::{BEGUN, PARTIAL, ROWS};
use crate::report::load::{RunFacts, goals_ms};
use crate::request::csv::Base;
use crate::request::{
    ClockOf, Row, Rows, TimingSource, name_engine_clock, relate_engine, relate_process,
    without_quotes,
};
use crate::table::cells::RowWriter;
use crate::telemetry::otlp::Traces;
use crate::telemetry::otlp::settings::{ExportSettings, Otlp};
use crate::telemetry::prometheus::Metrics;
use crate::units::count;

use super::args::OtlpArgs;
use super::client::Exchange;
use super::control::Stop;
use super::verdict::Lag;

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
    /// The offsets of other processes' and of engines' clocks, as known from the exchanges so far.
    clocks: OffsetTable,
    outputs: Outputs,
    /// The rows of a run without a file.
    pub(super) in_memory: Vec<Row>,
    pub(super) lag: Lag,
}

/// The file of rows during a run. After the first write error it is left as it is, and the run goes on without it.
#[derive(Debug)]
pub(super) struct RowFile {
    dir: PathBuf,
    /// `Err` after the first write error.
    out: io::Result<RowWriter<File>>,
}

/// Exports the generator's own spans: one for each request, in the trace that the request carried.
#[derive(Debug)]
pub struct Spans {
    traces: Traces,
    metrics: Metrics,
    target: String,
}

/// The logs of a folder since the beginning of a run, and the requests that wait for their lines.
#[derive(Debug)]
pub(super) struct EngineLogs {
    folder: LogReader,
    table: JoinTable,
    last_read: Stamp,
    /// Requests that do not wait, or no longer.
    ready: Vec<Joined>,
}

/// The file of rows, the error if it is incomplete, and the exporter of spans, which may still hold some.
pub(super) type Recorded = (PathBuf, Result<(), Error>, Option<Spans>);

/// How long a request waits for its line. A server writes it when the response has ended, and never if the client left.
const LINE_TIMEOUT_NANOS: i64 = 2 * NANOS;
/// How many requests may wait at once.
const MAX_WAITING: usize = 16_384;

impl Recorder {
    /// Records all exchanges until their senders are gone. Blocks.
    pub(super) fn record_all(
        clock: Clock,
        outputs: Outputs,
        ended: &Receiver<Exchange>,
    ) -> Recorder {
        let mut recorder = Recorder {
            clocks: OffsetTable::default(),
            clock,
            outputs,
            in_memory: Vec::new(),
            lag: Lag::default(),
        };
        loop {
            let exchange = match ended.try_recv() {
                Err(TryRecvError::Empty) => {
                    // Nothing else to do: flush, so that the rows survive this process.
                    if let Some(file) = &mut recorder.outputs.file {
                        file.flush();
                    }
                    ended.recv_timeout(EngineLogs::READ_PERIOD)
                }
                received => received.map_err(|_| RecvTimeoutError::Disconnected),
            };
            match exchange {
                Ok(exchange) => recorder.record(exchange),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return recorder,
            }
            recorder.write_ready(recorder.clock.now());
        }
    }

    fn record(&mut self, exchange: Exchange) {
        self.lag.add(&exchange);
        let rows = relate(exchange, &mut self.clocks);
        match &mut self.outputs.logs {
            Some(logs) => logs.wait(rows, self.clock.now()),
            None => self.write(rows),
        }
    }

    /// Writes the rows that no longer wait for the servers' logs at `now`.
    fn write_ready(&mut self, now: Stamp) {
        if let Some(logs) = &mut self.outputs.logs {
            let ready = logs.ready(now);
            self.write_joined(ready);
        }
    }

    fn write_joined(&mut self, all: Vec<Joined>) {
        for joined in all {
            let rows = joined.into_rows(&mut self.clocks);
            self.write(rows);
        }
    }

    fn write(&mut self, rows: Vec<Row>) {
        let rows = Row::ended(rows);
        if let Some(spans) = &self.outputs.spans {
            spans.add(&rows);
        }
        match &mut self.outputs.file {
            // Into a buffer, which is written when it is full or by `RowFile::flush`.
            Some(file) => file.try_write(|out| rows.iter().try_for_each(|row| out.write(row))),
            None => self.in_memory.extend(rows),
        }
    }

    /// Completes the file; `stop` ends the wait for the servers' logs. Blocks.
    pub(super) fn finish(mut self, stop: &Stop) -> Recorded {
        while let Some(logs) = &self.outputs.logs
            && logs.has_waiting()
            && !stop.is_stopped()
        {
            let period = EngineLogs::READ_PERIOD.as_secs_f64();
            let next = self.clock.now().plus_seconds(period);
            self.clock.sleep_until(next);
            self.write_ready(next);
        }
        // Without their lines, if these are not written yet and the wait was cut short.
        if let Some(logs) = self.outputs.logs.take() {
            let last = logs.last(&self.clock);
            self.write_joined(last);
        }
        let file = self.outputs.file.map(RowFile::finish);
        let (path, written) = file.unwrap_or((PathBuf::new(), Ok(())));
        (path, written, self.outputs.spans)
    }
}

/// Learns from an exchange that has ended, and returns its rows with their clocks related.
fn relate(exchange: Exchange, clocks: &mut OffsetTable) -> Vec<Row> {
    let Exchange {
        mut rows, stamps, ..
    } = exchange;
    let front = stamps.as_ref();
    let hop = front.and_then(|front| front.hop.as_deref());
    // The hop, too, read the request after our send, and wrote its stamps before we read the response.
    for process in [(ClockOf::Front, front), (ClockOf::Hop, hop)] {
        relate_process(&mut rows, clocks, process);
    }
    name_engine_clock(&mut rows, hop.or(front));
    relate_engine(&mut rows, clocks, true);
    rows
}

impl RowFile {
    /// Creates the file of rows in `dir`, and [`BEGUN`]: what is known of the run before it begins, for reports on one that was killed.
    ///
    /// # Errors
    /// It cannot be created.
    pub(super) fn new(dir: &Path, facts: &RunFacts, time_base: Base) -> Result<RowFile, Error> {
        let path = dir.join(PARTIAL);
        let file = File::create_new(&path).map_err(|cause| Error::write(&path, cause))?;
        let begun = json!({
            "scheduled": facts.scheduled,
            "offered_rate": facts.offered_rate,
            "goodput_goals_ms": goals_ms(&facts.goodput),
            "config": facts.config,
            "started_at": facts.started.seconds(),
            "started_at_ns": facts.started.nanos(),
        });
        // Only needed if the run is killed: it goes on without.
        let _ = std::fs::write(dir.join(BEGUN), format!("{begun:#}\n"));
        Ok(RowFile {
            dir: dir.to_owned(),
            out: RowWriter::new(file, time_base.of_run(facts.started)),
        })
    }

    /// Writes all buffered rows to the system, so that they survive this process.
    fn flush(&mut self) {
        self.try_write(RowWriter::flush);
    }

    /// Syncs the file and gives it its final name. Returns its path, and the error if it is incomplete.
    fn finish(mut self) -> (PathBuf, Result<(), Error>) {
        let partial = self.dir.join(PARTIAL);
        let whole = self.dir.join(ROWS);
        self.flush();
        // Synced before the rename: after a power cut the final name must not belong to half a file.
        self.try_write(|out| out.get_ref().sync_all());
        if let Err(cause) = self.out {
            let error = Error::write(&partial, cause);
            return (partial, Err(error));
        }
        match std::fs::rename(&partial, &whole) {
            Ok(()) => (whole, Ok(())),
            Err(cause) => (partial, Err(Error::write(&whole, cause))),
        }
    }

    fn try_write(&mut self, write: impl FnOnce(&mut RowWriter<File>) -> io::Result<()>) {
        if let Ok(out) = &mut self.out
            && let Err(error) = write(out)
        {
            self.out = Err(error);
        }
    }
}

impl OtlpArgs {
    /// Starts the exporter; `None` if neither a flag nor a variable names a collector. `instance` is the name of this process.
    ///
    /// # Errors
    /// [`Error::usage`] names the flag or variable, the problem, and what is expected.
    pub fn start(&self, instance: String) -> Result<Option<Spans>, Error> {
        let given = Otlp {
            endpoint: self.otlp_endpoint.clone(),
            protocol: self.otlp_protocol,
            ..Otlp::default()
        };
        let env = |name: &str| std::env::var(name).ok();
        let settings = ExportSettings::resolve(&given, "queuescope-traffic", &env);
        let settings = settings.map_err(|all| {
            let told = all.into_iter().map(|(name, problem)| match name.as_str() {
                "endpoint" => format!("--otlp-endpoint: {problem}"),
                _ => format!("{name}: {problem}"),
            });
            Error::usage(told.collect::<Vec<_>>().join("\nerror: "))
        })?;
        let Some(settings) = settings else {
            return Ok(None);
        };
        let metrics = Metrics::new().map_err(Error::usage)?;
        // The end of the run may take as long as an export: nothing else waits for it.
        let close_timeout = settings.given.timeout_s.get();
        let traces = Traces::start(&settings, instance, metrics.clone(), close_timeout);
        Ok(Some(Spans {
            traces: traces.map_err(Error::usage)?,
            metrics,
            target: settings.target(),
        }))
    }
}

impl Spans {
    /// Queues the spans of a request's rows.
    pub fn add(&self, rows: &[Row]) {
        let rows = without_quotes(&Rows::from(rows.to_vec()));
        self.traces.record(&rows);
    }

    /// Sends what is queued; returns a warning if spans were lost. Blocks.
    pub fn finish(self) -> Option<String> {
        self.traces.close();
        let lost = self.metrics.traces_dropped.sets();
        let lost: u64 = lost.iter().map(|(_, traces)| traces.get()).sum();
        (lost > 0).then(|| {
            let lost = count(lost, "request");
            let told = format!("the spans of {lost} did not get to {}", self.target);
            match self.traces.last_error() {
                Some(error) => format!("{told}; last error: {error}"),
                None => told,
            }
        })
    }
}

impl EngineLogs {
    /// How often the logs are read.
    const READ_PERIOD: Duration = Duration::from_millis(200);

    /// Begins with the lines that are written from now on: earlier ones are not of this run.
    pub(super) fn begin(folder: &Path) -> EngineLogs {
        EngineLogs {
            folder: LogReader::from_now(folder.to_owned()),
            table: JoinTable::new(MAX_WAITING),
            last_read: Stamp::EPOCH,
            ready: Vec::new(),
        }
    }

    /// Takes the rows of a request that ended `now`. They wait for its line, unless there can be none, or too many wait.
    fn wait(&mut self, rows: Vec<Row>, now: Stamp) {
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
    fn has_waiting(&self) -> bool {
        self.table.waiting() > 0
    }

    /// Returns the requests that no longer wait, with what their lines report.
    fn ready(&mut self, now: Stamp) -> Vec<Joined> {
        let period = EngineLogs::READ_PERIOD;
        if self.has_waiting() && now.since(self.last_read) >= period.as_secs_f64() {
            self.last_read = now;
            let table = &mut self.table;
            for line in self.folder.poll(period) {
                table.add_log_line(line, now);
            }
            self.ready.extend(table.take_ready(now));
            drop(table.forget(now));
        }
        std::mem::take(&mut self.ready)
    }

    /// Returns all requests that still wait, with what the lines written until now report.
    fn last(mut self, clock: &Clock) -> Vec<Joined> {
        if self.has_waiting() {
            for line in self.folder.last_readings(clock).flatten() {
                self.table.add_log_line(line, clock.now());
            }
            self.ready.extend(self.table.take_ready(Stamp::MAX));
        }
        self.ready
    }
}

#[cfg(test)]
mod tests;
