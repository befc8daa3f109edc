//! The thread that joins rows with engine reports and records each request at its deadline at the latest.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::{Clock, NANOS, Stamp};
use crate::offset::OffsetTable;
use crate::request::engine_report::EngineReport;
use crate::request::observer::{self, engine_bounds, engine_window};
use crate::request::roles::Roles;
use crate::request::row::Row;
use crate::request::sequence::{MissingReason, TimingSource};
use crate::request::timeline::{ClockOf, Moment, Relation};
use crate::telemetry::Telemetry;
use crate::telemetry::prometheus::{Join, Metrics};
use crate::telemetry::queue::Queued;

use super::join::{EndedRequest, Match};
use super::join_table::{JoinTable, Joined};
use super::span::EngineSpan;

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
    /// An ended request and its deadline.
    Ended(EndedRequest, Stamp),
    /// Received spans.
    Spans(Vec<EngineSpan>),
    /// A line of a request log.
    LogLine(Box<EngineReport>),
    /// No further request follows; reports of the last ones may.
    Last,
}

/// The state of the joining thread.
#[derive(Debug)]
pub struct Joiner {
    inbox: UnboundedReceiver<Queued<Message>>,
    output: JoinOutput,
    clock: Clock,
    table: JoinTable,
    /// The source by which unclaimed reports are counted: the first that is on.
    source: TimingSource,
    /// After [`Message::Last`]: when the thread ends even if requests still wait.
    end: Option<Stamp>,
}

/// The maximum number of messages handled at once.
const MAX_BATCH: usize = 16_384;
/// The pause between two batches: waking the thread for each message would cost more than all its other work.
const PAUSE: Duration = Duration::from_millis(5);
/// How long the last requests may wait at the end of the process.
const LAST_WAIT_NANOS: i64 = 2 * NANOS;

impl Joiner {
    /// Creates a joiner in which at most `capacity` requests wait.
    pub fn new(
        inbox: UnboundedReceiver<Queued<Message>>,
        output: JoinOutput,
        clock: Clock,
        capacity: usize,
        source: TimingSource,
    ) -> Joiner {
        Joiner {
            inbox,
            output,
            clock,
            table: JoinTable::new(capacity),
            source,
            end: None,
        }
    }

    /// Joins until the last request has been recorded.
    pub fn run(mut self) {
        loop {
            self.run_once();
            let is_over = |end| self.table.waiting() == 0 || self.clock.now() >= end;
            if self.end.is_some_and(is_over) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        self.record_due(Stamp::MAX);
    }

    /// Handles the messages that have arrived, and records the requests that are complete or due.
    fn run_once(&mut self) {
        let first = match self.table.waiting() {
            0 => self.inbox.blocking_recv(),
            _ => None,
        };
        let mut batch: Vec<Message> = first.into_iter().map(|(message, _)| message).collect();
        while batch.len() < MAX_BATCH
            && let Ok((message, _room)) = self.inbox.try_recv()
        {
            batch.push(message);
        }
        let now = self.clock.now();
        for message in batch {
            self.handle(message, now);
        }
        let complete = self.table.take_complete();
        complete.into_iter().for_each(|joined| self.record(joined));
        self.record_due(now);
        let dropped = self.table.forget(now);
        self.count(self.source, Join::NoRow, dropped);
        self.output
            .metrics
            .engine_waiting
            .with(&[])
            .set(self.table.waiting() as i64);
    }

    fn handle(&mut self, message: Message, now: Stamp) {
        match message {
            Message::Ended(ended, deadline) => match self.table.add_request(ended, deadline) {
                Ok(joined) => joined.into_iter().for_each(|joined| self.record(joined)),
                Err(rows) => self
                    .output
                    .record_without_report(rows, MissingReason::NoRoom),
            },
            Message::Last => self.end = Some(now.plus_nanos(LAST_WAIT_NANOS)),
            Message::Spans(spans) => {
                let roots = spans.iter().filter_map(EngineSpan::root_of_pair);
                roots.for_each(|(above, role)| self.output.roles.lock().resolve_role(above, role));
                let late = spans.into_iter().map(|span| self.table.add_span(span, now));
                let late = late.filter(|is_late| *is_late).count();
                self.count(TimingSource::Trace, Join::Late, late);
            }
            Message::LogLine(report) => {
                let is_late = self.table.add_log_line(*report, now);
                self.count(TimingSource::Log, Join::Late, is_late.into());
            }
        }
    }

    fn record_due(&mut self, now: Stamp) {
        let due = self.table.take_due(now);
        due.into_iter().for_each(|joined| self.record(joined));
    }

    fn count(&self, source: TimingSource, outcome: Join, count: usize) {
        let joins = &self.output.metrics.engine_joins;
        joins
            .with(&[source.name(), outcome.name()])
            .inc_by(count as u64);
    }

    fn record(&self, joined: Joined) {
        for of in &joined.matches {
            self.count(of.candidate.report.source, Join::Joined, 1);
        }
        let rows = joined.into_rows(&mut self.output.clocks.lock());
        self.output.telemetry.record(rows);
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
        relate(&mut rows, &matches, clocks);
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

/// Relates the engine's clock to ours, with the bounds that the reports give.
fn relate(rows: &mut [Row], matches: &[Match], clocks: &mut OffsetTable) {
    let Some(clock) = rows
        .first()
        .and_then(|row| row.internal.engine_clock.clone())
    else {
        return;
    };
    let Some(engine_window) = engine_window(rows).filter(|_| !matches.is_empty()) else {
        return;
    };
    // A report that may be of an earlier attempt at another server, or of another request with the same id, gives no bound.
    if matches.iter().all(|of| of.is_certain) {
        clocks.add(&clock, &engine_bounds(rows));
    }
    if let Some(offset) = clocks.get_over(&clock, engine_window) {
        observer::relate(rows, ClockOf::Engine, Relation::Apart(offset));
    }
}

/// Whether a row has all that a root span and its stages report: the server's receipt, its queue time and its first token.
fn has_server_times(row: &Row) -> bool {
    let has = |moment| row.timeline.raw(moment).is_some();
    has(Moment::ServerCreated) && row.pure_queue().is_some() && has(Moment::ServerFirstToken)
}
