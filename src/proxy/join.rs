//! Which attempt at a worker hop belongs to which request of the front, where both are in one process.
//!
//! It is decided when the attempt arrives: by the span that the front sent upstream; where a router between them begins
//! traces of its own, by the request id, if one request alone has it. An attempt that belongs to no request of ours gets
//! a row of its own. Hops of other processes report theirs by header or in their own file.
//!
//! All tables are bounded and forget with time; what is dropped is counted. Pure: time is handed in.

use std::collections::VecDeque;

use ahash::AHashMap as HashMap;
use parking_lot::Mutex;

use crate::clock::{NANOS, Stamp};
use crate::request::attempt::{Attempt, Failed, MAX_FAILED, SpanId};
use crate::request::record::Record;
use crate::telemetry::prometheus::Metrics;

/// The attempts and requests of a process.
#[derive(Debug)]
pub struct Joins {
    table: Mutex<Table>,
    /// An attempt may belong to a front of this process.
    has_front: bool,
    metrics: Metrics,
}

/// A request of the front, from its head to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey(u64);

/// Whose an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A request of the front here: it is told in that row.
    Request(RequestKey),
    /// One that has ended: it is told nowhere.
    Ended,
    /// Nobody that is known here: it has a row of its own.
    Nobody,
}

/// The attempts at a request that has ended.
#[derive(Debug, Default)]
pub struct RequestAttempts {
    /// The one that answered, else the last one.
    pub last: Option<Attempt>,
    /// The others, in their order; at most [`MAX_FAILED`].
    pub failed: Vec<Failed>,
    /// The same, whole.
    pub others: Vec<Attempt>,
    /// How many there were.
    pub count: u32,
}

#[derive(Debug, Default)]
struct Table {
    /// Those that are open.
    requests: HashMap<RequestKey, Request>,
    next: u64,
    by_id: HashMap<String, SameId>,
    /// Spans that were sent upstream, for some time after the end of their requests too.
    by_span: HashMap<SpanId, RequestKey>,
    /// Those of ended requests, by when.
    ended: VecDeque<(Stamp, SpanId)>,
    /// Attempts in `requests`.
    attempts: usize,
    /// Failed attempts at requests that no front here knows, by the span that they came with.
    failures_elsewhere: HashMap<SpanId, Vec<(SpanId, Failed)>>,
    elsewhere_since: VecDeque<(Stamp, SpanId)>,
    /// Rows of attempts that are nobody's here, by when they ended.
    own: VecDeque<(Stamp, Vec<Record>)>,
    /// Attempts that ended until then may be the process's before us; with a successor, all may be its.
    predecessor_until: Option<Stamp>,
    has_successor: bool,
}

#[derive(Debug)]
struct Request {
    id: String,
    spans: Vec<SpanId>,
    attempts: Vec<Attempt>,
    answered_by: Option<SpanId>,
}

/// The open requests of one id. Several are never told apart by it, nor is the last that is left of them.
#[derive(Debug)]
struct SameId {
    open: usize,
    only: Option<RequestKey>,
}

/// What joined an attempt, or did not, as the metric names it.
const JOINED: [&str; 6] = [
    "span",
    "request_id",
    "late",
    "ambiguous",
    "nothing",
    "elsewhere",
];
/// Open requests, spans of ended ones, attempts, rows that wait, and failures elsewhere that are held at a time, each.
const CAPACITY: usize = 65_536;
/// Attempts at one request that are held: routers give up long before.
const MOST_ATTEMPTS: usize = 64;
/// How long the spans of a request that has ended, and a failed attempt, are remembered: longer than routers back
/// off between retries.
const MEMORY: i64 = 60 * NANOS;
/// How long an attempt's own row waits: by then a process that takes over, or is taken over from, knows that there are two.
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
    pub fn open(&self, id: &str) -> Option<RequestKey> {
        let mut table = self.table.lock();
        if table.requests.len() >= CAPACITY {
            self.metrics.joins_dropped.with(&[]).inc();
            return None;
        }
        Some(table.open(id))
    }

    /// The front is about to send a request upstream with `span` as the parent.
    pub fn sent(&self, key: RequestKey, span: SpanId) {
        let mut table = self.table.lock();
        if let Some(request) = table.requests.get_mut(&key) {
            request.spans.push(span);
            table.by_span.insert(span, key);
        }
    }

    /// The front has read a response that names the attempt behind it.
    pub fn answered(&self, key: RequestKey, by: SpanId) {
        if let Some(request) = self.table.lock().requests.get_mut(&key) {
            request.answered_by = Some(by);
        }
    }

    /// How many attempts at a request have come to a hop so far, and which of them failed.
    pub fn so_far(&self, key: RequestKey) -> (u32, Vec<Failed>) {
        let table = self.table.lock();
        let Some(request) = table.requests.get(&key) else {
            return (0, Vec::new());
        };
        let attempts = request.attempts.iter();
        let failed = attempts
            .filter(|a| Some(a.span) != request.answered_by && !a.has_answered())
            .map(Attempt::failed);
        let count = u32::try_from(request.attempts.len()).unwrap_or(u32::MAX);
        (count, failed.take(MAX_FAILED).collect())
    }

    /// A request of the front has ended.
    pub fn close(&self, key: RequestKey, now: Stamp) -> RequestAttempts {
        let request = self.table.lock().close(key, now);
        request.map_or_else(RequestAttempts::default, Request::into_attempts)
    }

    /// A hop has read the head of `attempt`, which came with the span `parent` and the request id `id`. Whose it is.
    pub fn arrived(&self, attempt: &Attempt, parent: Option<SpanId>, id: Option<&str>) -> Owner {
        let mut table = self.table.lock();
        let (owner, by) = table.owner(parent, id);
        if let Some(by) = by {
            self.metrics.joins.with(&[by]).inc();
        }
        if let Owner::Request(key) = owner
            && !table.insert(key, attempt)
        {
            // It will be missing in its request's row.
            self.metrics.joins_dropped.with(&[]).inc();
        }
        owner
    }

    /// An attempt has got further, or has ended.
    pub fn update(&self, owner: Owner, attempt: &Attempt, parent: Option<SpanId>, now: Stamp) {
        let mut table = self.table.lock();
        if let Owner::Request(key) = owner {
            let request = table.requests.get_mut(&key);
            let mut held = request.into_iter().flat_map(|r| r.attempts.iter_mut());
            if let Some(held) = held.rfind(|held| held.span == attempt.span) {
                held.clone_from(attempt);
            }
        } else if !self.has_front && attempt.outcome.is_some() && !attempt.has_answered() {
            table.remember(attempt, parent, now);
        }
    }

    /// Attempts that came with the span `parent` before this one and failed, where no front is in this process.
    pub fn earlier(&self, parent: SpanId, own: SpanId) -> Vec<Failed> {
        let table = self.table.lock();
        let all = table.failures_elsewhere.get(&parent).into_iter().flatten();
        let others = all.filter(|(span, _)| *span != own);
        others.map(|(_, failed)| failed.clone()).collect()
    }

    /// An attempt that is nobody's here has ended, with these rows. Gives what is to be written now.
    pub fn ended(&self, rows: Vec<Record>, now: Stamp) -> Option<Vec<Record>> {
        if !self.has_front {
            return Some(rows);
        }
        let mut table = self.table.lock();
        table.own.push_back((now, rows));
        let is_full = table.own.len() > CAPACITY;
        is_full.then(|| table.give_oldest(&self.metrics))?
    }

    /// Forgets what is old and tells how full the tables are; gives the rows that have waited.
    pub fn sweep(&self, now: Stamp) -> Vec<Vec<Record>> {
        let mut table = self.table.lock();
        for (name, entries) in [
            ("requests", table.requests.len()),
            ("spans", table.by_span.len()),
            ("attempts", table.attempts),
            ("failures_elsewhere", table.failures_elsewhere.len()),
        ] {
            self.metrics.join_entries.with(&[name]).set(entries as i64);
        }
        let is_old = |front: Option<&(Stamp, SpanId)>| {
            front.is_some_and(|(at, _)| now.nanos_since(*at) > MEMORY)
        };
        while is_old(table.ended.front()) {
            table.forget_oldest_span();
        }
        while is_old(table.elsewhere_since.front()) {
            table.forget_oldest_failures();
        }
        let has_waited = |(at, _): &(Stamp, _)| now.nanos_since(*at) > WAIT;
        let mut rows = Vec::new();
        while table.own.front().is_some_and(has_waited) {
            rows.extend(table.give_oldest(&self.metrics));
        }
        rows
    }

    /// Gives all rows that wait.
    pub fn flush(&self) -> Vec<Vec<Record>> {
        let mut table = self.table.lock();
        let waiting = 0..table.own.len();
        waiting
            .filter_map(|_| table.give_oldest(&self.metrics))
            .collect()
    }
}

impl Table {
    fn open(&mut self, id: &str) -> RequestKey {
        let key = RequestKey(self.next);
        self.next += 1;
        match self.by_id.get_mut(id) {
            Some(same) => (same.open, same.only) = (same.open + 1, None),
            None => {
                let (open, only) = (1, Some(key));
                self.by_id.insert(id.to_owned(), SameId { open, only });
            }
        }
        let request = Request {
            id: id.to_owned(),
            spans: Vec::new(),
            attempts: Vec::new(),
            answered_by: None,
        };
        self.requests.insert(key, request);
        key
    }

    /// Whose an attempt is, and what is to be counted.
    fn owner(&self, parent: Option<SpanId>, id: Option<&str>) -> (Owner, Option<&'static str>) {
        if let Some(key) = parent.and_then(|span| self.by_span.get(&span)) {
            return match self.requests.contains_key(key) {
                true => (Owner::Request(*key), Some("span")),
                false => (Owner::Ended, Some("late")),
            };
        }
        match id.and_then(|id| self.by_id.get(id)).map(|same| same.only) {
            Some(Some(key)) => (Owner::Request(key), Some("request_id")),
            Some(None) => (Owner::Nobody, Some("ambiguous")),
            None => (Owner::Nobody, None),
        }
    }

    /// Whether there was room.
    fn insert(&mut self, key: RequestKey, attempt: &Attempt) -> bool {
        let is_full = self.attempts >= CAPACITY;
        let request = self.requests.get_mut(&key);
        let request = request.filter(|r| !is_full && r.attempts.len() < MOST_ATTEMPTS);
        let Some(request) = request else { return false };
        request.attempts.push(attempt.clone());
        self.attempts += 1;
        true
    }

    fn close(&mut self, key: RequestKey, now: Stamp) -> Option<Request> {
        let request = self.requests.remove(&key)?;
        self.attempts -= request.attempts.len();
        if let Some(same) = self.by_id.get_mut(&request.id) {
            same.open -= 1;
            if same.open == 0 {
                self.by_id.remove(&request.id);
            }
        }
        for span in &request.spans {
            self.ended.push_back((now, *span));
        }
        while self.ended.len() > CAPACITY {
            self.forget_oldest_span();
        }
        Some(request)
    }

    fn remember(&mut self, attempt: &Attempt, parent: Option<SpanId>, now: Stamp) {
        let Some(parent) = parent else { return };
        let is_new = !self.failures_elsewhere.contains_key(&parent);
        let failed = self.failures_elsewhere.entry(parent).or_default();
        let failure = (attempt.span, attempt.failed());
        match failed.iter().position(|(span, _)| *span == attempt.span) {
            Some(place) => failed[place] = failure,
            None if failed.len() < MAX_FAILED => failed.push(failure),
            None => {}
        }
        if is_new {
            self.elsewhere_since.push_back((now, parent));
        }
        if self.elsewhere_since.len() > CAPACITY {
            self.forget_oldest_failures();
        }
    }

    /// The rows that have waited longest, unless they are another process's to tell.
    fn give_oldest(&mut self, metrics: &Metrics) -> Option<Vec<Record>> {
        let (at, rows) = self.own.pop_front()?;
        let is_elsewhere =
            self.has_successor || self.predecessor_until.is_some_and(|end| at <= end);
        metrics
            .joins
            .with(&[if is_elsewhere { "elsewhere" } else { "nothing" }])
            .inc();
        (!is_elsewhere).then_some(rows)
    }

    fn forget_oldest_span(&mut self) {
        if let Some((_, span)) = self.ended.pop_front() {
            self.by_span.remove(&span);
        }
    }

    fn forget_oldest_failures(&mut self) {
        if let Some((_, parent)) = self.elsewhere_since.pop_front() {
            self.failures_elsewhere.remove(&parent);
        }
    }
}

impl Request {
    fn into_attempts(self) -> RequestAttempts {
        let mut others = self.attempts;
        let last = match self.answered_by {
            Some(by) => others.iter().position(|attempt| attempt.span == by),
            None => others.len().checked_sub(1),
        };
        let last = last.map(|place| others.remove(place));
        // One at a hop of another process is not here.
        let answered = usize::from(last.is_some() || self.answered_by.is_some());
        let count = u32::try_from(others.len() + answered).unwrap_or(u32::MAX);
        others.truncate(MAX_FAILED);
        RequestAttempts {
            last,
            failed: others.iter().map(Attempt::failed).collect(),
            others,
            count,
        }
    }
}

#[cfg(test)]
mod tests;
