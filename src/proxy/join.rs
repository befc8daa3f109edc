//! Which attempt at a worker hop belongs to which request of the front, where both are in one process.
//!
//! It is decided when the attempt arrives: by the span that the front sent upstream; where a router between them begins
//! traces of its own, by the request id, if only one open request has it. Where the router passes on no header, it is decided once
//! both have read the id that the server gave the response. An attempt that belongs to no request of ours gets a row of its own.
//! Hops of other processes report theirs by header or in their own file.
//!
//! All tables are bounded and forget with time; what is dropped is counted. Pure: time is passed in.

use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;

use ahash::AHashMap as HashMap;
use parking_lot::Mutex;

use crate::clock::{NANOS, Stamp};
use crate::request::{Attempt, ParentSpan, Row, ServerRole, SpanId};
use crate::telemetry::prometheus::Metrics;

use self::attempts::{Request, put_prefill};

pub use self::attempts::{RequestAttempts, SharedAttempt};

/// The attempts and requests of a process.
#[derive(Debug)]
pub struct Joins {
    table: Mutex<Table>,
    /// Whether attempts may belong to a front of this process.
    pub has_front: bool,
    metrics: Metrics,
}

/// A request that attempts are joined to: one of the front or, in a process without a front, one that arrived with one span.
pub type SharedRequest = Arc<Mutex<Request>>;

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<String, OpenRequests>,
    /// Requests by the spans that they are sent upstream with, for a while after their end too.
    by_span: Forgetful<u64, SharedRequest>,
    /// Rows that wait, by when they ended.
    waiting: VecDeque<WaitingRows>,
    /// Attempts that belong to no request here, by their room and by the id in their response.
    by_room: Forgetful<u64, Vec<SharedAttempt>>,
    by_response_id: Forgetful<String, Vec<SharedAttempt>>,
    /// Attempts that ended until then may belong to the front of the process before or after this one.
    shared_until: Option<Stamp>,
}

/// Entries that are forgotten some time after they were told to be, or when there are too many.
#[derive(Debug, Default)]
struct Forgetful<K, V> {
    /// Each with since when it is to be forgotten, if it is.
    entries: HashMap<K, (Option<Stamp>, V)>,
    /// Their keys in the order of that. Some may have gone, or come again, before.
    since: VecDeque<(Stamp, K)>,
}

/// Rows that wait for more to be known of an attempt.
#[derive(Debug)]
struct WaitingRows {
    since: Stamp,
    rows: Vec<Row>,
    attempt: SharedAttempt,
    /// Whether they are the attempt's own; else it is the prefill leg of their request.
    is_own: bool,
}

/// The open requests of one id. Once there were several, an attempt with that id is joined to none, not even to the last one left.
#[derive(Debug, Default)]
struct OpenRequests {
    count: usize,
    only: Option<SharedRequest>,
}

/// What an attempt was joined by, or why it was not: the label of the metric.
const JOINED_BY: &str = "span request_id reply late ambiguous nothing elsewhere";
/// The most spans of ended requests, rooms, ids of responses and waiting rows, each.
const CAPACITY: usize = 65_536;
/// The most attempts of a room or id: the two legs of one request, and some more if a client reuses it.
const MAX_BY_KEY: usize = 8;
/// How long the spans of an ended request and the id of a response are kept, in nanoseconds: longer than routers wait between
/// retries.
const MEMORY: i64 = 60 * NANOS;
/// How long a room is kept, in nanoseconds: longer than nearly every response takes.
const ROOM_MEMORY: i64 = 1800 * NANOS;
/// How long rows wait, in nanoseconds: by then the other leg has reported, and a process that takes over, or is taken over from,
/// knows of the other.
const MAX_WAIT: i64 = 5 * NANOS;

impl Joins {
    /// Creates empty tables; `has_front` if attempts may belong to a front of this process.
    pub fn new(has_front: bool, metrics: Metrics) -> Joins {
        let labels = JOINED_BY.split(' ').filter(|_| has_front);
        labels.for_each(|by| drop(metrics.joins.with(&[by])));
        Joins {
            table: Mutex::default(),
            has_front,
            metrics,
        }
    }

    /// The process before or after this one has a front too, until `end`: attempts that belong to no request here may be in its rows.
    pub fn share_until(&self, end: Stamp) {
        self.table.lock().shared_until = Some(end);
    }

    /// Opens a request of the front, which will be sent upstream with `span` as the parent. There are at most as many as the front's
    /// `max_connections`.
    pub fn open(&self, id: &str, span: SpanId) -> SharedRequest {
        let request = SharedRequest::default();
        id.clone_into(&mut request.lock().id);
        request.lock().span = Some(span);
        let mut table = self.table.lock();
        let by_span = &mut table.by_span.entries;
        by_span.insert(span.number(), (None, request.clone()));
        let same = table.by_id.entry(id.to_owned()).or_default();
        same.count += 1;
        same.only = (same.count == 1).then(|| request.clone());
        request
    }

    /// The front read `id` in the response to `request`: joins the attempt whose response had that id, if the request has no
    /// attempt yet. Clients can choose that id; where several attempts have it, none is joined.
    pub fn response_read(&self, request: &SharedRequest, id: &str) {
        if !request.lock().attempts.is_empty() {
            return;
        }
        let mut table = self.table.lock();
        let named = table.by_response_id.take(&id.to_owned());
        let room = named.first().and_then(|one| one.lock().room);
        let is_one = room.is_some() || named.len() == 1;
        if !is_one || named.iter().any(|leg| leg.lock().room != room) {
            return;
        }
        // Of two legs with one id, that of the decode server answers, once it is known which it is.
        let mut answers = named.iter().filter(|leg| leg.lock().may_answer());
        let answer = answers.next().filter(|_| answers.next().is_none());
        let mut request = request.lock();
        request.answered_by = answer.map(|leg| leg.lock().span);
        let in_room = room.map(|room| table.by_room.take(&room));
        for attempt in in_room.unwrap_or(named) {
            attempt.lock().is_joined = true;
            request.insert(&attempt);
            self.metrics.joins.with(&["reply"]).inc();
        }
    }

    /// Closes a request of the front, and returns its attempts. One that was never sent has none that could arrive later.
    pub fn close(&self, request: &SharedRequest, was_sent: bool, now: Stamp) -> RequestAttempts {
        let mut table = self.table.lock();
        let request = &mut *request.lock();
        if let Some(same) = table.by_id.get_mut(&request.id) {
            same.count -= 1;
            if same.count == 0 {
                table.by_id.remove(&request.id);
            }
        }
        if let Some(span) = request.span {
            match was_sent {
                true => table.by_span.forget_later(span.number(), now),
                false => drop(table.by_span.entries.remove(&span.number())),
            }
        }
        let attempts = request.attempts(None);
        request.attempts.clear();
        attempts
    }

    /// Joins an attempt whose head a hop has read, with the request id `id`. Returns also its request, in a process without a front.
    pub fn join(
        &self,
        mut attempt: Attempt,
        id: Option<&str>,
    ) -> (SharedAttempt, Option<SharedRequest>) {
        let parent = attempt.parent.map(|parent| parent.span);
        let mut table = self.table.lock();
        let (request, by) = match self.has_front {
            true => table.request_of(parent, id),
            false => (parent.map(|span| table.request_elsewhere(span)), None),
        };
        if let Some(by) = by {
            self.metrics.joins.with(&[by]).inc();
        }
        attempt.is_joined = self.has_front && request.is_some();
        let attempt = Arc::new(Mutex::new(attempt));
        if let Some(request) = &request
            && by != Some("late")
            && !request.lock().insert(&attempt)
        {
            // It will be missing in its request's row.
            self.metrics.joins_dropped.with(&[]).inc();
        }
        (attempt, request.filter(|_| !self.has_front))
    }

    /// Ends an attempt; `request` is what [`Joins::join`] returned, and `rows` are the attempt's own, if it belongs to no request of a
    /// front here. Returns the rows to be written now.
    pub fn end(
        &self,
        attempt: &SharedAttempt,
        request: Option<SharedRequest>,
        rows: Option<Vec<Row>>,
        now: Stamp,
    ) -> Option<Vec<Row>> {
        let mut table = self.table.lock();
        let data = attempt.lock();
        let (has_answered, parent, room) = (data.has_answered(), data.parent, data.room);
        drop(data);
        if let (Some(request), Some(ParentSpan { span, .. })) = (request, parent) {
            let is_only = request.lock().attempts.len() == 1;
            // A first attempt that answered has no retries.
            match has_answered && is_only {
                true => drop(table.by_span.entries.remove(&span.number())),
                false => table.by_span.forget_later(span.number(), now),
            }
        }
        if !self.has_front && room.is_none() {
            return rows;
        }
        // A front's row or the other leg may yet take it.
        table.wait(self, (now, rows?), attempt, true)
    }

    /// Puts the prefill leg of a request into its rows, and returns them: now, or from [`Joins::sweep`] once the leg has reported.
    pub fn with_leg(
        &self,
        leg: &SharedAttempt,
        mut rows: Vec<Row>,
        now: Stamp,
    ) -> Option<Vec<Row>> {
        if leg.lock().ended.is_none() {
            let mut table = self.table.lock();
            return table.wait(self, (now, rows), leg, false);
        }
        put_prefill(&leg.lock(), &mut rows);
        Some(rows)
    }

    /// The body of what is sent to `attempt`'s server names a room.
    pub fn add_room(&self, attempt: &SharedAttempt, room: u64, now: Stamp) {
        if !attempt.lock().is_joined {
            self.table.lock().by_room.add(room, attempt, now);
        }
    }

    /// The response to `attempt` has the id `id`.
    pub fn add_response_id(&self, attempt: &SharedAttempt, id: &str, now: Stamp) {
        if self.has_front && !attempt.lock().is_joined {
            let by_id = &mut self.table.lock().by_response_id;
            by_id.add(id.to_owned(), attempt, now);
        }
    }

    /// Forgets what is old, sets the metrics of the tables' sizes, and returns the rows that have waited long enough, or whose leg
    /// has reported: all of them at [`Stamp::MAX`].
    pub fn sweep(&self, now: Stamp) -> Vec<Vec<Row>> {
        let mut table = self.table.lock();
        let entries = &self.metrics.join_entries;
        entries.with(&["requests"]).set(table.by_id.len() as i64);
        let spans = table.by_span.entries.len();
        entries.with(&["spans"]).set(spans as i64);
        let is_due = |one: &WaitingRows| {
            let has_waited = now.nanos_since(one.since) > MAX_WAIT;
            has_waited || (!one.is_own && one.attempt.lock().ended.is_some())
        };
        let waiting = std::mem::take(&mut table.waiting).into_iter();
        let (due, waiting): (VecDeque<_>, _) = waiting.partition(is_due);
        table.waiting = waiting;
        let due = due.into_iter();
        let rows = due.filter_map(|one| table.release(self, one)).collect();
        // Only now: at the end everything is old, and rows found their other legs by their rooms.
        table.by_span.sweep(now, MEMORY);
        table.by_response_id.sweep(now, MEMORY);
        table.by_room.sweep(now, ROOM_MEMORY);
        rows
    }
}

impl Table {
    /// Returns the request that an attempt belongs to, and the label to be counted.
    fn request_of(
        &self,
        parent: Option<SpanId>,
        id: Option<&str>,
    ) -> (Option<SharedRequest>, Option<&'static str>) {
        let sent = parent.and_then(|span| self.by_span.entries.get(&span.number()));
        if let Some((closed, request)) = sent {
            let by = if closed.is_some() { "late" } else { "span" };
            return (Some(request.clone()), Some(by));
        }
        match id.and_then(|id| self.by_id.get(id)).map(|same| &same.only) {
            Some(Some(request)) => (Some(request.clone()), Some("request_id")),
            Some(None) => (None, Some("ambiguous")),
            None => (None, None),
        }
    }

    /// Returns the request of another process that was sent with `span`. There are at most as many with an open attempt as the hops'
    /// `max_connections`.
    fn request_elsewhere(&mut self, span: SpanId) -> SharedRequest {
        let (_, request) = self.by_span.entries.entry(span.number()).or_default();
        request.clone()
    }

    /// Lets rows wait. Returns the oldest that do, if they are too many.
    fn wait(
        &mut self,
        joins: &Joins,
        (since, rows): (Stamp, Vec<Row>),
        attempt: &SharedAttempt,
        is_own: bool,
    ) -> Option<Vec<Row>> {
        self.waiting.push_back(WaitingRows {
            since,
            rows,
            attempt: attempt.clone(),
            is_own,
        });
        if self.waiting.len() <= CAPACITY {
            return None;
        }
        let oldest = self.waiting.pop_front()?;
        self.release(joins, oldest)
    }

    /// Returns rows that have waited, unless other rows have the attempt or another process writes it.
    fn release(&mut self, joins: &Joins, mut waited: WaitingRows) -> Option<Vec<Row>> {
        let attempt = waited.attempt.lock().clone();
        if !waited.is_own {
            put_prefill(&attempt, &mut waited.rows);
            return Some(waited.rows);
        }
        let is_decode = |leg: &Attempt| leg.role == Some(ServerRole::Decode);
        let pair = attempt
            .room
            .and_then(|room| self.by_room.entries.get(&room));
        let mut legs = pair.iter().flat_map(|(_, legs)| legs);
        let has_decode_leg = legs.any(|leg| is_decode(&leg.lock()));
        if attempt.is_joined || (attempt.is_prefill_leg() && has_decode_leg) {
            return None;
        }
        let room = attempt.room.filter(|_| is_decode(&attempt));
        let pair = room.map(|room| self.by_room.take(&room));
        let is_other = |leg: &&SharedAttempt| !Arc::ptr_eq(leg, &waited.attempt);
        if let Some(prefill) = pair.iter().flatten().find(is_other) {
            prefill.lock().is_joined = true;
            put_prefill(&prefill.lock(), &mut waited.rows);
        }
        let is_shared = self.shared_until.is_some_and(|end| waited.since <= end);
        let is_elsewhere = is_shared && (joins.has_front || attempt.is_prefill_leg());
        if joins.has_front {
            let by = if is_elsewhere { "elsewhere" } else { "nothing" };
            joins.metrics.joins.with(&[by]).inc();
        }
        (!is_elsewhere).then_some(waited.rows)
    }
}

impl<K: Clone + Eq + Hash, V> Forgetful<K, V> {
    fn forget_later(&mut self, key: K, now: Stamp) {
        if let Some((since, _)) = self.entries.get_mut(&key) {
            *since = Some(now);
        }
        self.since.push_back((now, key));
        if self.since.len() > CAPACITY {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((at, key)) = self.since.pop_front() else {
            return;
        };
        let entry = self.entries.get(&key);
        if entry.is_some_and(|(since, _)| *since == Some(at)) {
            self.entries.remove(&key);
        }
    }

    /// Forgets what is to be forgotten since more than `memory` nanoseconds.
    fn sweep(&mut self, now: Stamp, memory: i64) {
        let is_old = |(at, _): &(Stamp, K)| now.nanos_since(*at) > memory;
        while self.since.front().is_some_and(is_old) {
            self.forget_oldest();
        }
    }
}

impl<K: Clone + Eq + Hash> Forgetful<K, Vec<SharedAttempt>> {
    fn take(&mut self, key: &K) -> Vec<SharedAttempt> {
        let entry = self.entries.remove(key);
        entry.map(|(_, attempts)| attempts).unwrap_or_default()
    }

    /// Adds an attempt, once however often it is added.
    fn add(&mut self, key: K, attempt: &SharedAttempt, now: Stamp) {
        let (_, attempts) = self.entries.entry(key.clone()).or_default();
        let is_first = attempts.is_empty();
        let is_new = !attempts.iter().any(|one| Arc::ptr_eq(one, attempt));
        if is_new && attempts.len() < MAX_BY_KEY {
            attempts.push(attempt.clone());
        }
        if is_first {
            self.forget_later(key, now);
        }
    }
}

mod attempts;
#[cfg(test)]
mod tests;
