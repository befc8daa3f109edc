//! The thread that joins rows with what the engine tells of them, and lets each go out when its time is over.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::{Clock, NANOS, Stamp};
use crate::offset::OffsetTable;
use crate::request::engine_report::Told;
use crate::request::observer::{self, with_engine};
use crate::request::roles::Roles;
use crate::request::row::Row;
use crate::request::sequence::{TimingSource, Untold};
use crate::request::timeline::{ClockOf, Moment, Relation};
use crate::telemetry::Telemetry;
use crate::telemetry::prometheus::{Join, Metrics};
use crate::telemetry::queue::Waiting;

use super::join::{Ended, Match};
use super::span::EngineSpan;
use super::table::{Joined, Table};

/// Where rows go, and what they need for it.
#[derive(Clone, Debug)]
pub struct Outlet {
    /// Who writes rows.
    pub telemetry: Arc<Telemetry>,
    /// How far other clocks are from ours.
    pub clocks: Arc<Mutex<OffsetTable>>,
    /// What is counted.
    pub metrics: Metrics,
    /// What servers do, as the roots of their spans name it.
    pub roles: Arc<Mutex<Roles>>,
}

/// What the joining thread is handed.
#[derive(Debug)]
pub enum Message {
    /// A request, and how long it waits at most.
    Ended(Ended, Stamp),
    /// Spans that came.
    Spans(Vec<EngineSpan>),
    /// A line of a log.
    Line(Box<Told>),
    /// No request comes any more; what is told of the last ones does.
    Last,
}

/// The thread's own.
#[derive(Debug)]
pub struct Joiner {
    inbox: UnboundedReceiver<Waiting<Message>>,
    outlet: Outlet,
    clock: Clock,
    table: Table,
    /// Whose sequences are counted as forgotten when no row comes: the first source of those that are on.
    source: TimingSource,
    /// The rows that wait may do so until then.
    last: Option<Stamp>,
}

/// Messages that are taken in one round.
const ROUND: usize = 16_384;
/// What comes meanwhile is shared by one round: a waking for each would cost more than all else here.
const REST: Duration = Duration::from_millis(5);
/// How long the rows that wait at the end may still do so, if their time is not over before.
const LAST: i64 = 2 * NANOS;

impl Joiner {
    /// One that may have `most` requests wait.
    pub fn new(
        inbox: UnboundedReceiver<Waiting<Message>>,
        outlet: Outlet,
        clock: Clock,
        most: usize,
        source: TimingSource,
    ) -> Joiner {
        Joiner {
            inbox,
            outlet,
            clock,
            table: Table::new(most),
            source,
            last: None,
        }
    }

    /// Joins until the last request has come and none waits any more.
    pub fn run(mut self) {
        loop {
            self.round();
            let is_over = |last| self.table.waiting() == 0 || self.clock.now() >= last;
            if self.last.is_some_and(is_over) {
                break;
            }
            std::thread::sleep(REST);
        }
        self.due(Stamp::from_nanos(i64::MAX));
    }

    /// Takes what came, and lets go what is due.
    fn round(&mut self) {
        let first = match self.table.waiting() {
            0 => self.inbox.blocking_recv(),
            _ => None,
        };
        let mut came: Vec<Message> = first.into_iter().map(|(message, _)| message).collect();
        while came.len() < ROUND
            && let Ok((message, _room)) = self.inbox.try_recv()
        {
            came.push(message);
        }
        let now = self.clock.now();
        came.into_iter().for_each(|message| self.take(message, now));
        let whole = self.table.whole();
        whole.into_iter().for_each(|joined| self.finish(joined));
        self.due(now);
        let forgotten = self.table.forget(now);
        self.count(self.source, Join::NoRow, forgotten);
        self.outlet
            .metrics
            .engine_waiting
            .with(&[])
            .set(self.table.waiting() as i64);
    }

    fn take(&mut self, message: Message, now: Stamp) {
        match message {
            Message::Ended(ended, deadline) => match self.table.ended(ended, deadline) {
                Ok(joined) => joined.into_iter().for_each(|joined| self.finish(joined)),
                Err(rows) => self.outlet.untold(rows, Untold::NoRoom),
            },
            Message::Last => self.last = Some(now.plus_nanos(LAST)),
            Message::Spans(spans) => {
                let roots = spans.iter().filter_map(EngineSpan::root_of_pair);
                roots.for_each(|(above, role)| self.outlet.roles.lock().answer(above, role));
                let late = spans.into_iter().map(|span| self.table.span(span, now));
                let late = late.filter(|is_late| *is_late).count();
                self.count(TimingSource::Trace, Join::Late, late);
            }
            Message::Line(told) => {
                let is_late = self.table.line(*told, now);
                self.count(TimingSource::Log, Join::Late, is_late.into());
            }
        }
    }

    fn due(&mut self, now: Stamp) {
        let out = self.table.due(now);
        out.into_iter().for_each(|joined| self.finish(joined));
    }

    fn count(&self, source: TimingSource, outcome: Join, many: usize) {
        let joins = &self.outlet.metrics.engine_joins;
        joins
            .with(&[source.name(), outcome.name()])
            .inc_by(many as u64);
    }

    fn finish(&self, joined: Joined) {
        for found in &joined.found {
            self.count(found.report.told.source, Join::Joined, 1);
        }
        let rows = joined.into_rows(&mut self.outlet.clocks.lock());
        self.outlet.telemetry.record(rows);
    }
}

impl Outlet {
    /// A request that nothing is told of goes out.
    pub fn untold(&self, mut rows: Vec<Row>, why: Untold) {
        for row in &mut rows {
            row.more.untold = Some(why);
        }
        self.telemetry.record(rows);
    }
}

impl Joined {
    /// The rows, with what was told of them, and the clock of the engine with what they tell of it.
    pub fn into_rows(self, clocks: &mut OffsetTable) -> Vec<Row> {
        let Joined { of, mut found } = self;
        let Ended {
            mut rows, wanted, ..
        } = of;
        // The trace is trusted before the log.
        found.sort_by_key(|found| found.report.told.source == TimingSource::Log);
        relate(&mut rows, &found, clocks);
        for (row, number) in rows.iter_mut().zip(0..) {
            let mut is_told = false;
            for found in found.iter().filter(|found| found.row == number) {
                found.report.told.put(row);
                is_told = true;
            }
            row.more.untold = match (is_told, wanted) {
                (true, _) => (!is_whole(row)).then_some(Untold::Incomplete),
                (false, TimingSource::Log) => Some(Untold::NoLogLine),
                (false, _) => Some(Untold::NoSpans),
            };
        }
        if let [first, others @ ..] = &mut rows[..] {
            for row in others {
                row.prefill_host.clone_from(&first.prefill_host);
                let worker = &first.more.prefill_worker;
                row.more.prefill_worker.clone_from(worker);
            }
        }
        rows
    }
}

/// Puts the engine's clock on ours, with what these requests tell of it.
fn relate(rows: &mut [Row], found: &[Match], clocks: &mut OffsetTable) {
    let Some(clock) = rows.first().and_then(|row| row.more.engine_clock.clone()) else {
        return;
    };
    // What may be of an earlier attempt at another server, or of another request with the same id, bounds nothing.
    let sure = found.iter().filter(|found| found.is_sure);
    let bounds = sure.flat_map(|sure| {
        let row = rows.get(sure.row);
        row.map(|row| sure.report.told.bounds(row))
            .unwrap_or_default()
    });
    let bounds: Vec<_> = bounds.collect();
    let Some(with_engine) = with_engine(rows).filter(|_| !found.is_empty()) else {
        return;
    };
    clocks.add(&clock, &bounds);
    if let Some(offset) = clocks.get_over(&clock, with_engine) {
        observer::relate(rows, ClockOf::Engine, Relation::Apart(offset));
    }
}

/// Whether all is known of a row that root span and stages tell: when the server had it, its queue, and its first token.
fn is_whole(row: &Row) -> bool {
    let has = |moment| row.timeline.raw(moment).is_some();
    has(Moment::ServerCreated) && row.pure_queue().is_some() && has(Moment::ServerFirstToken)
}
