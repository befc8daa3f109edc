//! The thread that joins rows with what the engine tells of them, and lets each go out when its time is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, Sender, channel};
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
use crate::telemetry::prometheus::{Join, Metrics};

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
}

/// What the joining thread is handed: bounded, and nobody who hands it something waits.
#[derive(Debug)]
pub struct Inbox {
    sender: Mutex<Option<Sender<Message>>>,
    lying: Arc<Lying>,
    most_requests: usize,
}

/// What lies in the inbox.
#[derive(Debug, Default)]
struct Lying {
    requests: AtomicUsize,
    /// And lines.
    spans: AtomicUsize,
}

#[derive(Debug)]
enum Message {
    /// A request, and how long it waits at most.
    Ended(Ended, Stamp),
    Spans(Vec<EngineSpan>),
    Line(Box<Told>),
}

/// The thread's own.
#[derive(Debug)]
pub struct Joiner {
    inbox: Receiver<Message>,
    lying: Arc<Lying>,
    outlet: Outlet,
    clock: Clock,
    table: Table,
    /// Whose sequences are counted as forgotten when no row comes.
    source: TimingSource,
}

/// Spans that may lie in the inbox, and lines: the thread takes all of them every few milliseconds.
const MOST_SPANS: usize = 262_144;
/// Messages that are taken in one round.
const ROUND: usize = 16_384;
/// How often deadlines are looked at while a request waits.
const TICK: Duration = Duration::from_millis(20);
/// What comes meanwhile is shared by one round: a waking for each would cost more than all else here.
const REST: Duration = Duration::from_millis(5);
/// How long the rows that wait at the end may still do so, if their time is not over before.
const LAST: i64 = 2 * NANOS;

impl Inbox {
    /// A request has ended and may wait until `deadline`.
    ///
    /// # Errors
    /// Its rows, and why it is not taken in; `None`: the inbox is closed.
    pub fn ended(
        &self,
        ended: Ended,
        deadline: Stamp,
    ) -> Result<(), (Vec<Record>, Option<Untold>)> {
        let sender = self.sender.lock();
        let Some(sender) = &*sender else {
            return Err((ended.rows, None));
        };
        if !has_room(&self.lying.requests, 1, self.most_requests) {
            return Err((ended.rows, Some(Untold::NoRoom)));
        }
        let sent = sender.send(Message::Ended(ended, deadline));
        sent.map_err(|unsent| match unsent.0 {
            Message::Ended(ended, _) => (ended.rows, None),
            Message::Spans(_) | Message::Line(_) => (Vec::new(), None),
        })
    }

    /// Spans have come. `false`: no room.
    pub fn spans(&self, spans: Vec<EngineSpan>) -> bool {
        let many = spans.len();
        self.told(Message::Spans(spans), many)
    }

    /// A line has come. `false`: no room.
    pub fn line(&self, told: Told) -> bool {
        self.told(Message::Line(Box::new(told)), 1)
    }

    /// No request is taken in from now on.
    pub fn close(&self) {
        drop(self.sender.lock().take());
    }

    fn told(&self, message: Message, many: usize) -> bool {
        let sender = self.sender.lock();
        // After the end nobody wants it.
        let Some(sender) = &*sender else { return true };
        has_room(&self.lying.spans, many, MOST_SPANS) && sender.send(message).is_ok()
    }
}

/// Takes room for so many, or for one message alone.
fn has_room(lying: &AtomicUsize, many: usize, most: usize) -> bool {
    let before = lying.fetch_add(many, Ordering::Relaxed);
    let has_room = before == 0 || before + many <= most;
    if !has_room {
        lying.fetch_sub(many, Ordering::Relaxed);
    }
    has_room
}

impl Joiner {
    /// One that may have `most` requests wait, and what it is handed. `source` is the first of those that are on.
    pub fn new(outlet: Outlet, clock: Clock, most: usize, source: TimingSource) -> (Inbox, Joiner) {
        let (sender, inbox) = channel();
        let lying: Arc<Lying> = Arc::default();
        let joiner = Joiner {
            inbox,
            lying: lying.clone(),
            outlet,
            clock,
            table: Table::new(most),
            source,
        };
        let inbox = Inbox {
            sender: Mutex::new(Some(sender)),
            lying,
            most_requests: most,
        };
        (inbox, joiner)
    }

    /// Joins until the inbox is closed and no request waits any more.
    pub fn run(mut self) {
        let mut last: Option<Stamp> = None;
        loop {
            let is_closed = self.round();
            let now = self.clock.now();
            if is_closed {
                let last = *last.get_or_insert(now.plus_nanos(LAST));
                if self.table.waiting() == 0 || now >= last {
                    break;
                }
            }
            std::thread::sleep(REST);
        }
        self.due(Stamp::from_nanos(i64::MAX));
    }

    /// Takes what came, and lets go what is due. Gives whether the inbox is closed and empty.
    fn round(&mut self) -> bool {
        let first = match self.table.waiting() {
            0 => self
                .inbox
                .recv()
                .map_err(|RecvError| RecvTimeoutError::Disconnected),
            _ => self.inbox.recv_timeout(TICK),
        };
        let is_closed = matches!(first, Err(RecvTimeoutError::Disconnected));
        let rest: Vec<Message> = self.inbox.try_iter().take(ROUND).collect();
        let now = self.clock.now();
        for message in first.into_iter().chain(rest) {
            self.take(message, now);
        }
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
        is_closed
    }

    fn take(&mut self, message: Message, now: Stamp) {
        match message {
            Message::Ended(ended, deadline) => {
                self.lying.requests.fetch_sub(1, Ordering::Relaxed);
                match self.table.ended(ended, deadline) {
                    Ok(joined) => joined.into_iter().for_each(|joined| self.finish(joined)),
                    Err(rows) => self.outlet.untold(rows, Untold::NoRoom),
                }
            }
            Message::Spans(spans) => {
                self.lying.spans.fetch_sub(spans.len(), Ordering::Relaxed);
                for span in spans {
                    let late = self.table.span(span, now);
                    late.into_iter()
                        .for_each(|late| self.count(TimingSource::Trace, late, 1));
                }
            }
            Message::Line(told) => {
                self.lying.spans.fetch_sub(1, Ordering::Relaxed);
                let late = self.table.line(*told, now);
                late.into_iter()
                    .for_each(|late| self.count(TimingSource::Log, late, 1));
            }
        }
    }

    fn due(&mut self, now: Stamp) {
        let out = self.table.due(now);
        out.into_iter().for_each(|joined| self.finish(joined));
    }

    fn count(&self, source: TimingSource, outcome: Join, many: usize) {
        if many > 0 {
            self.outlet
                .metrics
                .engine_joined(source.name(), outcome, many);
        }
    }

    fn finish(&self, joined: Joined) {
        for found in &joined.found {
            self.count(found.report.told.source, Join::Joined, 1);
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
        let Joined { of, mut found } = joined;
        let Ended {
            mut rows, wanted, ..
        } = of;
        // The trace is trusted before the log.
        found.sort_by_key(|found| found.report.told.source == TimingSource::Log);
        self.relate(&mut rows, &found);
        for (row, number) in rows.iter_mut().zip(0..) {
            let mut is_told = false;
            for found in found.iter().filter(|found| found.row == number) {
                found.report.told.put(row);
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
    fn relate(&self, rows: &mut [Record], found: &[Match]) {
        let Some(clock) = rows.first().and_then(|row| row.facts.engine_clock.clone()) else {
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
