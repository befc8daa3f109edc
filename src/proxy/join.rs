//! Which attempt at a worker hop belongs to which request of the front, where both are in one process.
//!
//! It is decided when the attempt arrives: by the span that the front sent upstream; where a router between them begins
//! traces of its own, by the request id, if one request alone has it; where it passes on no header, once both have read the
//! id that the server gave the reply. An attempt that belongs to no request of ours gets a row of its own. Hops of other
//! processes report theirs by header or in their own file.
//!
//! All tables are bounded and forget with time; what is dropped is counted. Pure: time is handed in.

use std::collections::VecDeque;
use std::sync::Arc;

use ahash::AHashMap as HashMap;
use parking_lot::Mutex;

use crate::clock::{NANOS, Stamp};
use crate::request::attempt::{Attempt, CameWith, Failed, ServerRole, SpanId};
use crate::request::row::Row;
use crate::telemetry::prometheus::Metrics;

use super::legs;

use self::named::Named;
use self::request::Request;

pub use self::request::{Leg, RequestAttempts};

/// The attempts and requests of a process.
#[derive(Debug)]
pub struct Joins {
    table: Mutex<Table>,
    /// An attempt may belong to a front of this process.
    has_front: bool,
    metrics: Metrics,
}

/// A request that attempts belong to: one of the front; where there is none, one that came to hops with one span.
#[derive(Clone, Debug, Default)]
pub struct Joined(Arc<Mutex<Request>>);

/// An attempt that has come to a hop of this process; its request sees what is told of it.
#[derive(Debug)]
pub struct HopAttempt {
    /// What is told of it.
    pub told: Arc<Mutex<Attempt>>,
    /// The hop's own span.
    pub span: SpanId,
    /// No front here has it in a row.
    pub needs_row: bool,
    /// The request, where no front is here to tell of it.
    request: Option<Joined>,
}

#[derive(Debug, Default)]
struct Table {
    /// Requests of the front that are open, and attempts that are held.
    open: usize,
    attempts: usize,
    by_id: HashMap<String, SameId>,
    /// By the spans that they were sent upstream with, for some time after their end too.
    by_span: HashMap<SpanId, Joined>,
    /// Spans that are to be forgotten, by when they came to their end.
    ended: VecDeque<(Stamp, SpanId)>,
    /// Rows that wait, by when they ended.
    waiting: VecDeque<Waiting>,
    /// Legs that are nobody's here, by room, and by the id of the reply.
    rooms: Named<u64>,
    replies: Named<String>,
    /// Attempts that ended until then may be the process's before us; with a successor, all may be its.
    predecessor_until: Option<Stamp>,
    has_successor: bool,
}

/// Rows that have ended, for as long as something of an attempt may still come.
#[derive(Debug)]
struct Waiting {
    since: Stamp,
    rows: Vec<Row>,
    attempt: Leg,
    /// They are its own, as it is nobody's here; else it is a leg that is to be in them.
    is_own: bool,
}

/// The open requests of one id. Several are never told apart by it, nor is the last that is left of them.
#[derive(Debug)]
struct SameId {
    open: usize,
    only: Option<Joined>,
}

/// What joined an attempt, or did not, as the metric names it.
const JOINED: [&str; 7] = [
    "span",
    "request_id",
    "reply",
    "late",
    "ambiguous",
    "nothing",
    "elsewhere",
];
/// Open requests, spans of ended ones, attempts, and rows that wait, that are held at a time, each.
const CAPACITY: usize = 65_536;
/// Attempts at one request that are held: routers give up long before.
const MOST_ATTEMPTS: usize = 64;
/// How long the spans of a request that has ended, a failed attempt, and the id of a reply are remembered: longer than
/// routers back off between retries.
const MEMORY: i64 = 60 * NANOS;
/// How long a room is remembered: longer than nearly any answer takes.
const ROOM: i64 = 1800 * NANOS;
/// How long a row waits: by then the other leg of a pair has told, and a process that takes over, or is taken over from, knows that
/// there are two.
const WAIT: i64 = 5 * NANOS;

impl Joins {
    /// Empty tables; `has_front` when attempts may belong to a front of this process.
    pub fn new(has_front: bool, metrics: Metrics) -> Joins {
        let all = JOINED.into_iter().filter(|_| has_front);
        all.for_each(|by| drop(metrics.joins.with(&[by])));
        Joins {
            table: Mutex::default(),
            has_front,
            metrics,
        }
    }

    /// Whether attempts may belong to a front of this process.
    pub fn has_front(&self) -> bool {
        self.has_front
    }

    /// The process before this one has a front too, until `end` if that is known: its rows hold the attempts that are
    /// nobody's here.
    pub fn shared_with_predecessor(&self, end: Option<Stamp>) {
        self.table.lock().predecessor_until = Some(end.unwrap_or(Stamp::from_nanos(i64::MAX)));
    }

    /// The same of the process after this one.
    pub fn shared_with_successor(&self) {
        self.table.lock().has_successor = true;
    }

    /// The front has read a request's head. `None` when the table is full: its attempts then have rows of their own.
    pub fn open(&self, id: &str) -> Option<Joined> {
        let mut table = self.table.lock();
        if table.open >= CAPACITY {
            self.metrics.joins_dropped.with(&[]).inc();
            return None;
        }
        let request = Joined::default();
        id.clone_into(&mut request.0.lock().id);
        table.open += 1;
        match table.by_id.get_mut(id) {
            Some(same) => (same.open, same.only) = (same.open + 1, None),
            None => {
                let (open, only) = (1, Some(request.clone()));
                table.by_id.insert(id.to_owned(), SameId { open, only });
            }
        }
        Some(request)
    }

    /// The front is about to send a request upstream with `span` as the parent.
    pub fn sent(&self, request: &Joined, span: SpanId) {
        self.table.lock().by_span.insert(span, request.clone());
        request.0.lock().spans.push(span);
    }

    /// The front's reply has this id: the attempt whose reply had it before answers `request`, unless this has attempts already.
    /// A client may name several requests alike; then none is beyond doubt.
    pub fn replied(&self, request: &Joined, id: &str) {
        if !request.0.lock().attempts.is_empty() {
            return;
        }
        let mut table = self.table.lock();
        let named = table.replies.take(&id.to_owned());
        let room = named.first().and_then(|leg| leg.lock().room);
        let is_one = match room {
            None => named.len() == 1,
            Some(_) => named.iter().all(|leg| leg.lock().room == room),
        };
        if !is_one {
            return;
        }
        // Of two legs with one id that of the decode server answers, once it is known which it is.
        let answers = named.iter().map(|leg| leg.lock().clone());
        let answers: Vec<Attempt> = answers.filter(Attempt::may_answer).collect();
        let mut request = request.0.lock();
        request.answered_by = match &answers[..] {
            [answer] => Some(answer.span),
            _ => None,
        };
        for leg in room.map_or(named, |room| table.rooms.take(&room)) {
            leg.lock().is_joined = true;
            table.insert(&mut request, &leg);
            self.metrics.joins.with(&["reply"]).inc();
        }
    }

    /// A request of the front has ended.
    pub fn close(&self, request: &Joined, now: Stamp) -> RequestAttempts {
        self.table.lock().close(&mut request.0.lock(), now)
    }

    /// A hop has read the head of `attempt`, which came with the request id `id`.
    pub fn arrived(&self, attempt: Attempt, id: Option<&str>) -> HopAttempt {
        let (span, parent) = (attempt.span, attempt.came_with.map(|came| came.span));
        let told = Arc::new(Mutex::new(attempt));
        let mut table = self.table.lock();
        let (request, by) = match self.has_front {
            true => table.request_of(parent, id),
            false => (parent.map(|span| table.request_elsewhere(span)), None),
        };
        if let Some(by) = by {
            self.metrics.joins.with(&[by]).inc();
        }
        if let Some(request) = &request
            && !table.insert(&mut request.0.lock(), &told)
        {
            // It will be missing in its request's row.
            self.metrics.joins_dropped.with(&[]).inc();
        }
        HopAttempt {
            told,
            span,
            needs_row: !self.has_front || request.is_none(),
            request: request.filter(|_| !self.has_front),
        }
    }

    /// An attempt has ended, with these rows if it was nobody's here. Gives what is to be written now.
    pub fn ended(
        &self,
        attempt: &HopAttempt,
        rows: Option<Vec<Row>>,
        now: Stamp,
    ) -> Option<Vec<Row>> {
        let mut table = self.table.lock();
        let told = attempt.told.lock();
        let (has_answered, came_with, room) = (told.has_answered(), told.came_with, told.room);
        drop(told);
        if let (Some(request), Some(CameWith { span, .. })) = (&attempt.request, came_with) {
            let is_only = request.0.lock().attempts.len() == 1;
            // Nobody tries again what was answered at once.
            match has_answered && is_only {
                true => table.forget(span),
                false => table.forget_later(span, now),
            }
        }
        // Whoever has it in a row, or its other leg, may be still to come.
        if self.has_front || room.is_some() {
            return table.wait(self, (now, rows?), &attempt.told, true);
        }
        rows
    }

    /// What is sent to `attempt`'s server is one of two legs, by its body. It is looked for by that where it is nobody's here.
    pub fn in_room(&self, attempt: &HopAttempt, room: u64, now: Stamp) {
        if attempt.needs_row {
            let rooms = &mut self.table.lock().rooms;
            rooms.add(room, &attempt.told, now, ROOM);
        }
    }

    /// The reply to `attempt` has this id. The front looks for it where the attempt is nobody's here.
    pub fn has_reply(&self, attempt: &HopAttempt, id: &str, now: Stamp) {
        if attempt.needs_row && self.has_front {
            let replies = &mut self.table.lock().replies;
            replies.add(id.to_owned(), &attempt.told, now, MEMORY);
        }
    }

    /// Whether the leg of one that another server decodes has come.
    pub fn has_decoding_leg(&self, attempt: &HopAttempt) -> bool {
        let told = attempt.told.lock().clone();
        self.table.lock().has_decoding_leg(&told)
    }

    /// Rows of a request of the front whose other leg is this: given back with what that told, now or from [`Joins::sweep`].
    pub fn with_leg(&self, leg: &Leg, mut rows: Vec<Row>, now: Stamp) -> Option<Vec<Row>> {
        let mut table = self.table.lock();
        if !leg.lock().has_told() {
            return table.wait(self, (now, rows), leg, false);
        }
        drop(table);
        legs::put(&leg.lock(), &mut rows);
        Some(rows)
    }

    /// Forgets what is old and tells how full the tables are; gives the rows that have waited.
    pub fn sweep(&self, now: Stamp) -> Vec<Vec<Row>> {
        let mut table = self.table.lock();
        for (name, entries) in [
            ("requests", table.open),
            ("spans", table.by_span.len()),
            ("attempts", table.attempts),
        ] {
            self.metrics.join_entries.with(&[name]).set(entries as i64);
        }
        let is_old = |(at, _): &(Stamp, _)| now.nanos_since(*at) > MEMORY;
        while table.ended.front().is_some_and(is_old) {
            table.forget_oldest();
        }
        let mut rows = Vec::new();
        let has_waited = |one: &Waiting| now.nanos_since(one.since) > WAIT;
        while table.waiting.front().is_some_and(has_waited) {
            rows.extend(table.give_oldest(self));
        }
        rows
    }

    /// Gives all rows that wait.
    pub fn flush(&self) -> Vec<Vec<Row>> {
        let mut table = self.table.lock();
        let waiting = 0..table.waiting.len();
        let rows = waiting.filter_map(|_| table.give_oldest(self));
        rows.collect()
    }
}

impl Joined {
    /// The front has read a response that names the attempt behind it.
    pub fn answered(&self, by: SpanId) {
        self.0.lock().answered_by = Some(by);
    }

    /// How many attempts at it have come to a hop so far, and which of them failed.
    pub fn so_far(&self) -> (u32, Vec<Failed>) {
        let request = self.0.lock();
        request.so_far(request.answered_by)
    }
}

impl HopAttempt {
    /// The same of its request, itself being no failure.
    pub fn so_far(&self) -> (u32, Vec<Failed>) {
        let so_far = |request: &Joined| request.0.lock().so_far(Some(self.span));
        let (count, failed) = self.request.as_ref().map(so_far).unwrap_or_default();
        (count.max(1), failed)
    }
}

impl Table {
    /// Whose an attempt is, and what is to be counted.
    fn request_of(
        &self,
        parent: Option<SpanId>,
        id: Option<&str>,
    ) -> (Option<Joined>, Option<&'static str>) {
        if let Some(request) = parent.and_then(|span| self.by_span.get(&span)) {
            let is_over = request.0.lock().is_over;
            return (
                Some(request.clone()),
                Some(if is_over { "late" } else { "span" }),
            );
        }
        match id.and_then(|id| self.by_id.get(id)).map(|same| &same.only) {
            Some(Some(request)) => (Some(request.clone()), Some("request_id")),
            Some(None) => (None, Some("ambiguous")),
            None => (None, None),
        }
    }

    /// The request of another process that came with `span`.
    fn request_elsewhere(&mut self, span: SpanId) -> Joined {
        if self.by_span.len() >= CAPACITY {
            self.forget_oldest();
        }
        self.by_span.entry(span).or_default().clone()
    }

    /// Whether there was room. What comes to one that is over is told nowhere.
    fn insert(&mut self, request: &mut Request, attempt: &Arc<Mutex<Attempt>>) -> bool {
        let has_room = self.attempts < CAPACITY && request.attempts.len() < MOST_ATTEMPTS;
        if has_room && !request.is_over {
            request.attempts.push(attempt.clone());
            self.attempts += 1;
        }
        has_room || request.is_over
    }

    fn close(&mut self, request: &mut Request, now: Stamp) -> RequestAttempts {
        self.open -= 1;
        self.attempts -= request.attempts.len();
        request.is_over = true;
        if let Some(same) = self.by_id.get_mut(&request.id) {
            same.open -= 1;
            if same.open == 0 {
                self.by_id.remove(&request.id);
            }
        }
        for span in std::mem::take(&mut request.spans) {
            self.forget_later(span, now);
        }
        request.take_attempts()
    }

    /// The one that another server decodes goes on, unless it has told that it decoded.
    fn has_decoding_leg(&self, told: &Attempt) -> bool {
        let legs = told.room.iter().flat_map(|room| self.rooms.of(room));
        legs.map(|leg| leg.lock()).any(|leg| {
            let goes_on = leg.role.is_none() && leg.ended.is_none();
            leg.worker != told.worker && (goes_on || leg.role == Some(ServerRole::Decode))
        })
    }

    fn other_leg(&mut self, of: &Leg) -> Option<Leg> {
        let room = of.lock().room?;
        let mut legs = self.rooms.take(&room).into_iter();
        let other = legs.find(|leg| !Arc::ptr_eq(leg, of))?;
        other.lock().is_joined = true;
        Some(other)
    }

    /// Has rows wait. Gives the oldest that do where they are too many.
    fn wait(
        &mut self,
        joins: &Joins,
        (since, rows): (Stamp, Vec<Row>),
        attempt: &Leg,
        is_own: bool,
    ) -> Option<Vec<Row>> {
        self.waiting.push_back(Waiting {
            since,
            rows,
            attempt: attempt.clone(),
            is_own,
        });
        let is_full = self.waiting.len() > CAPACITY;
        is_full.then(|| self.give_oldest(joins))?
    }

    /// The rows that have waited longest, unless others have the attempt, or they are another process's to tell.
    fn give_oldest(&mut self, joins: &Joins) -> Option<Vec<Row>> {
        let mut one = self.waiting.pop_front()?;
        let told = one.attempt.lock().clone();
        if !one.is_own {
            legs::put(&told, &mut one.rows);
            return Some(one.rows);
        }
        if told.is_joined || (told.is_prefill_leg() && self.has_decoding_leg(&told)) {
            return None;
        }
        if told.role == Some(ServerRole::Decode)
            && let Some(other) = self.other_leg(&one.attempt)
        {
            legs::put(&other.lock(), &mut one.rows);
        }
        let is_shared =
            self.has_successor || self.predecessor_until.is_some_and(|end| one.since <= end);
        let is_elsewhere = is_shared && (joins.has_front || told.is_prefill_leg());
        let by = if is_elsewhere { "elsewhere" } else { "nothing" };
        if joins.has_front {
            joins.metrics.joins.with(&[by]).inc();
        }
        (!is_elsewhere).then_some(one.rows)
    }

    fn forget_later(&mut self, span: SpanId, now: Stamp) {
        self.ended.push_back((now, span));
        if self.ended.len() > CAPACITY {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, span)) = self.ended.pop_front() {
            self.forget(span);
        }
    }

    fn forget(&mut self, span: SpanId) {
        if let Some(request) = self.by_span.remove(&span) {
            self.attempts -= std::mem::take(&mut request.0.lock().attempts).len();
        }
    }
}

mod named;
mod request;
#[cfg(test)]
mod tests;
