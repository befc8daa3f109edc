//! The thread that joins rows with engine reports and records each request at its deadline at the latest.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::{Clock, NANOS, Stamp};
use crate::offset::OffsetTable;
use crate::request::{MissingReason, Moment, Roles, Row, TimingSource, relate_engine};
use crate::telemetry::Telemetry;
use crate::telemetry::prometheus::{Join, Metrics};
use crate::telemetry::sink::Queued;

use super::join::{EndedRequest, MatchStrength};
use super::join_table::{JoinTable, Joined};
use super::otlp::EngineSpan;
use super::request_log::LogFolder;

/// Where rows go, and what they need on the way.
#[derive(Clone, Debug)]
pub struct JoinOutput {
    /// Records the rows.
    pub telemetry: Arc<Telemetry>,
    /// The offsets of other clocks.
    pub clocks: Arc<Mutex<OffsetTable>>,
    /// The metrics.
    pub metrics: Metrics,
    /// The servers' roles, as their root spans name them.
    pub roles: Arc<Mutex<Roles>>,
}

/// A message to the joining thread.
#[derive(Debug)]
pub enum Message {
    /// An ended request.
    Ended(EndedRequest),
    /// Received spans.
    Spans(Vec<EngineSpan>),
    /// No further request follows; reports of the last ones may.
    Last,
}

/// The state of the joining thread.
#[derive(Debug)]
pub struct Joiner {
    /// What comes in.
    pub inbox: UnboundedReceiver<Queued<Message>>,
    /// Where rows go.
    pub output: JoinOutput,
    /// This process's clock.
    pub clock: Clock,
    /// The requests that wait, and reports.
    pub table: JoinTable,
    /// The servers' request logs, if they are read.
    pub logs: Option<LogFolder>,
    /// When the logs are to be read again.
    pub next_read: Stamp,
    /// After [`Message::Last`]: when the thread ends even if requests still wait.
    pub end: Option<Stamp>,
}

/// The maximum number of messages handled at once.
const MAX_BATCH: usize = 16_384;
/// The pause between two batches: each looks for the reports of all that wait.
const PAUSE: Duration = Duration::from_millis(20);
/// How often the folder of the logs is listed and they are read. It may hold a year of hourly files.
const LOG_PERIOD_NANOS: i64 = NANOS / 4;
/// How long the last requests may wait at the end of the process.
const LAST_WAIT_NANOS: i64 = 2 * NANOS;

impl Joiner {
    /// Joins until the last request has been recorded.
    pub fn run(mut self) {
        while self
            .end
            .is_none_or(|end| self.table.waiting() > 0 && self.clock.now() < end)
        {
            self.receive();
            let now = self.clock.now();
            if now >= self.next_read {
                self.read_logs(now);
            }
            self.record_ready(now);
            for source in self.table.forget(now) {
                self.count(source, Join::NoRow, 1);
            }
            let waiting = self.output.metrics.engine_waiting.with(&[]);
            waiting.set(self.table.waiting() as i64);
            std::thread::sleep(PAUSE);
        }
        // Whatever is refused from here on is recorded without a report.
        self.inbox.close();
        while let Ok((message, _)) = self.inbox.try_recv() {
            self.handle(message, self.clock.now());
        }
        self.read_logs(self.clock.now());
        self.record_ready(Stamp::MAX);
    }

    /// Handles the messages that have arrived. Blocks until there is one if no request waits and no logs are read.
    fn receive(&mut self) {
        let is_idle = self.table.waiting() == 0 && self.logs.is_none();
        for index in 0..MAX_BATCH {
            let next = match index == 0 && is_idle {
                true => self.inbox.blocking_recv(),
                false => self.inbox.try_recv().ok(),
            };
            let Some((message, _room)) = next else { break };
            self.handle(message, self.clock.now());
        }
    }

    fn handle(&mut self, message: Message, now: Stamp) {
        match message {
            Message::Ended(ended) => {
                if let Err(ended) = self.table.add_request(ended) {
                    let reason = MissingReason::NoRoom;
                    self.output.record_without_report(ended.rows, reason);
                }
            }
            Message::Last => self.end = Some(now.plus_nanos(LAST_WAIT_NANOS)),
            Message::Spans(spans) => {
                let roots = spans.iter().filter_map(EngineSpan::root_of_pair);
                roots.for_each(|(above, role)| self.output.roles.lock().resolve_role(above, role));
                let late = spans.into_iter().map(|span| self.table.add_span(span, now));
                let late = late.filter(|is_late| *is_late).count();
                self.count(TimingSource::Trace, Join::Late, late);
            }
        }
    }

    fn read_logs(&mut self, now: Stamp) {
        let Some(logs) = &mut self.logs else { return };
        self.next_read = now.plus_nanos(LOG_PERIOD_NANOS);
        let lines = logs.poll().into_iter();
        let late = lines.map(|line| self.table.add_log_line(line, now));
        let late = late.filter(|is_late| *is_late).count();
        self.count(TimingSource::Log, Join::Late, late);
    }

    fn record_ready(&mut self, now: Stamp) {
        for joined in self.table.take_ready(now) {
            for of in &joined.matches {
                self.count(of.candidate.report.source, Join::Joined, 1);
            }
            let rows = joined.into_rows(&mut self.output.clocks.lock());
            self.output.telemetry.record(rows);
        }
    }

    fn count(&self, source: TimingSource, outcome: Join, count: usize) {
        let joins = &self.output.metrics.engine_joins;
        joins
            .with(&[source.name(), outcome.name()])
            .inc_by(count as u64);
    }
}

impl JoinOutput {
    /// Records a request that has no engine report.
    pub fn record_without_report(&self, mut rows: Vec<Row>, reason: MissingReason) {
        for row in &mut rows {
            row.internal.missing_reason = Some(reason);
        }
        self.telemetry.record(rows);
    }
}

impl Joined {
    /// Returns the rows with their reports put in. The reports also bound the offset of the engine's clock.
    pub fn into_rows(self, clocks: &mut OffsetTable) -> Vec<Row> {
        let (request, mut matches) = (self.request, self.matches);
        let mut rows = request.rows;
        // The trace takes precedence over the log.
        matches.sort_by_key(|of| of.candidate.report.source == TimingSource::Log);
        for (row, index) in rows.iter_mut().zip(0..) {
            let mut is_reported = false;
            for of in matches.iter().filter(|of| of.row == index) {
                of.candidate.report.put(row);
                is_reported = true;
            }
            row.internal.missing_reason = match (is_reported, request.expected_source) {
                (true, _) => (!has_server_times(row)).then_some(MissingReason::Incomplete),
                (false, TimingSource::Log) => Some(MissingReason::NoLogLine),
                (false, _) => Some(MissingReason::NoSpans),
            };
        }
        if !matches.is_empty() {
            // A report that may be of an earlier attempt at another server, or of another request with the same id, gives no bound.
            let are_certain = matches.iter().all(|of| of.strength < MatchStrength::Alone);
            relate_engine(&mut rows, clocks, are_certain);
        }
        if let [first, others @ ..] = &mut rows[..] {
            for row in others {
                row.prefill_host.clone_from(&first.prefill_host);
                let worker = &first.internal.prefill_worker;
                row.internal.prefill_worker.clone_from(worker);
            }
        }
        rows
    }
}

/// Whether a row has all that a root span and its stages report: the server's receipt, its queue time and its first token.
fn has_server_times(row: &Row) -> bool {
    let has = |moment| row.timeline.raw(moment).is_some();
    has(Moment::ServerCreated) && row.pure_queue().is_some() && has(Moment::ServerFirstToken)
}
