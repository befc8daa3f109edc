//! The thread that joins rows with what the engine tells of them, and lets each go out when its time is over.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Clock, NANOS, Stamp};
use crate::offset::OffsetTable;
use crate::request::observer::with_engine;
use crate::request::record::Record;
use crate::request::sequence::{TimingSource, Untold};
use crate::request::timeline::{ClockOf, Moment, Relation};
use crate::request::told::Told;
use crate::telemetry::Telemetry;
use crate::telemetry::prometheus::engine_joins::{EngineJoinMetrics, Join};

use super::assembly::Assembly;
use super::inbox::{Ended, Inbox};
use super::table::{Ask, Came, Joined, Match, Table};

/// Where rows go, and what they need for it.
#[derive(Clone, Debug)]
pub struct Outlet {
    /// Who writes rows.
    pub telemetry: Arc<Telemetry>,
    /// How far other clocks are from ours.
    pub clocks: Arc<Mutex<OffsetTable>>,
    /// What is counted.
    pub metrics: EngineJoinMetrics,
}

/// The thread's own.
#[derive(Debug)]
pub struct Joiner {
    inbox: Arc<Inbox>,
    outlet: Outlet,
    clock: Clock,
    table: Table,
    assembly: Assembly,
    /// Requests that the assembly had no room for, as far as they are counted.
    evicted: u64,
    /// Whose sequences are forgotten when no row comes.
    source: TimingSource,
}

/// How often deadlines are looked at while a request waits.
const TICK: Duration = Duration::from_millis(20);
/// What comes meanwhile is shared by one round: a waking for each would cost more than all else here.
const REST: Duration = Duration::from_millis(5);
/// How long spans of no whole request are kept: those of a long stream begin to come at its begin.
const PARTS: i64 = 1800 * NANOS;
/// Spans of root, scheduler and router that a request has, with some to spare.
const SPANS_EACH: usize = 8;
/// How long the rows that wait at the end may still do so, if their time is not over before.
const LAST: i64 = 2 * NANOS;

impl Joiner {
    /// One that may have `most` requests wait. `source` is the first of those that are on.
    pub fn new(
        inbox: Arc<Inbox>,
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
            assembly: Assembly::new(most.saturating_mul(SPANS_EACH)),
            evicted: 0,
            source,
        }
    }

    /// Joins until the inbox is closed and no request waits any more.
    pub fn run(mut self) {
        let mut last: Option<Stamp> = None;
        loop {
            let patience = (self.table.waiting() > 0).then_some(TICK);
            let is_closing = self.round(patience);
            let now = self.clock.now();
            if is_closing {
                let last = *last.get_or_insert(now.plus_nanos(LAST));
                if self.table.waiting() == 0 || now >= last {
                    break;
                }
            }
            std::thread::sleep(REST);
        }
        self.due(Stamp::from_nanos(i64::MAX));
    }

    /// Takes what came, and lets go what is due. Gives whether the inbox is closed.
    fn round(&mut self, patience: Option<Duration>) -> bool {
        let content = self.inbox.take(patience);
        let now = self.clock.now();
        for Ended {
            rows,
            wanted,
            deadline,
        } in content.ended
        {
            match self.table.ended(rows, wanted, deadline) {
                Ok(joined) => joined.into_iter().for_each(|joined| self.finish(joined)),
                Err(rows) => self.outlet.untold(rows, Untold::NoRoom),
            }
        }
        for spans in content.spans {
            for told in self.assembly.add(spans, now) {
                self.told(told, now);
            }
        }
        for told in content.told {
            self.told(told, now);
        }
        self.due(now);
        let unused = self.table.forget(now);
        let parts = self.assembly.expire(now.plus_nanos(-PARTS));
        let evicted = self.assembly.evicted();
        let gone = usize::try_from(evicted - self.evicted).unwrap_or(usize::MAX);
        self.evicted = evicted;
        self.count(self.source, Join::NoRow, unused + parts + gone);
        self.outlet.metrics.waiting.set(self.table.waiting() as i64);
        content.is_closing
    }

    fn told(&mut self, told: Told, now: Stamp) {
        let source = told.source;
        let (came, joined) = self.table.told(told, now);
        match came {
            Came::Late => self.count(source, Join::Late, 1),
            Came::Again => self.count(source, Join::Again, 1),
            Came::Joined | Came::Early => {}
        }
        joined.into_iter().for_each(|joined| self.finish(joined));
    }

    fn due(&mut self, now: Stamp) {
        let assembly = &mut self.assembly;
        let out = self.table.due(now, &mut |ask| match ask {
            Ask::Rid(rid) => assembly.take_rid(rid).into_iter().collect(),
            Ask::Trace(trace) => assembly.take_trace(trace),
        });
        out.into_iter().for_each(|joined| self.finish(joined));
    }

    fn count(&self, source: TimingSource, outcome: Join, many: usize) {
        if many > 0 {
            self.outlet.metrics.joined(source.name(), outcome, many);
        }
    }

    fn finish(&self, joined: Joined) {
        for Match { told, .. } in &joined.told {
            self.count(told.source, Join::Joined, 1);
        }
        self.outlet.finish(joined);
    }
}

impl Outlet {
    /// A request that nothing is told of goes out.
    pub fn untold(&self, mut rows: Vec<Record>, why: Untold) {
        for row in &mut rows {
            row.sequence.untold = Some(why);
        }
        self.telemetry.record(rows);
    }

    /// A request goes out with what was told of it.
    fn finish(&self, joined: Joined) {
        let Joined {
            mut rows,
            mut told,
            wanted,
        } = joined;
        // The trace is trusted before the log.
        told.sort_by_key(|told| told.told.source == TimingSource::Log);
        self.relate(&mut rows, &told);
        for (row, number) in rows.iter_mut().zip(0..) {
            let mut is_told = false;
            for Match { told, .. } in told.iter().filter(|told| told.row == number) {
                told.put(row);
                is_told = true;
            }
            row.sequence.untold = match (is_told, wanted) {
                (true, _) => (!is_whole(row)).then_some(Untold::Incomplete),
                (false, TimingSource::Log) => Some(Untold::NoLogLine),
                (false, _) => Some(Untold::NoSpans),
            };
        }
        self.telemetry.record(rows);
    }

    /// Puts the engine's clock on ours, with what these requests tell of it.
    fn relate(&self, rows: &mut [Record], told: &[Match]) {
        let Some(clock) = rows.first().and_then(|row| row.facts.engine_clock.clone()) else {
            return;
        };
        // What may be of an earlier attempt at another server, or of another request with the same id, bounds nothing.
        let sure = told.iter().filter(|told| told.is_sure);
        let bounds = sure.flat_map(|sure| {
            let row = rows.get(sure.row);
            row.map(|row| sure.told.bounds(row)).unwrap_or_default()
        });
        let bounds: Vec<_> = bounds.collect();
        let Some(with_engine) = with_engine(rows).filter(|_| !told.is_empty()) else {
            return;
        };
        let mut clocks = self.clocks.lock();
        clocks.add(&clock, &bounds);
        let offset = clocks.get_over(&clock, with_engine);
        drop(clocks);
        if let Some(offset) = offset {
            for row in rows {
                row.timeline
                    .relate(ClockOf::Engine, Relation::Apart(offset));
            }
        }
    }
}

/// Whether all is known of a row that root span and stages tell: when the server had it, its queue, and its first token.
fn is_whole(row: &Record) -> bool {
    let has = |moment| row.timeline.raw(moment).is_some();
    has(Moment::ServerCreated) && row.pure_queue().is_some() && has(Moment::ServerFirstToken)
}
