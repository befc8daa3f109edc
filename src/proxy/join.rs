//! Which attempt at a worker hop belongs to which request of the front, where both are in one process.
//!
//! An attempt names the span that the front sent upstream, so that is looked up first. A router that starts traces
//! of its own loses it; then the request id decides, if only one request of late had it. The response that the
//! front reads names the attempt that answered, which settles it for good. An attempt that belongs to no request
//! of ours gets a row of its own. Hops of other processes report theirs by header or in their own file.
//!
//! All tables are bounded and forget with time; what is dropped is counted. Pure: time is handed in.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use crate::clock::{NANOS, Stamp};
use crate::request::attempt::{Attempt, Failed, MAX_FAILED, SpanId};
use crate::request::record::Record;
use crate::telemetry::prometheus::Metrics;

mod joined;

use joined::Joined;

/// The attempts and requests of a process.
#[derive(Debug)]
pub struct Joins {
    table: Mutex<Table>,
    /// A front of this process may yet claim an attempt.
    has_front: bool,
    metrics: Metrics,
}

/// A request of the front, from its head to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey(u64);

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
    /// Rows of attempts that turned out to be none of this request's.
    pub released: Vec<Vec<Record>>,
}

#[derive(Debug, Default)]
struct Table {
    requests: HashMap<RequestKey, Request>,
    next: u64,
    by_span: HashMap<SpanId, RequestKey>,
    by_id: HashMap<String, Vec<RequestKey>>,
    /// Requests that have ended, by when.
    ended: VecDeque<(Stamp, RequestKey)>,
    /// By their own span.
    attempts: HashMap<SpanId, Entry>,
    /// Attempts that have ended and that nobody has claimed, by when.
    unclaimed: VecDeque<(Stamp, SpanId)>,
    /// Failed attempts at requests that no front here knows, by the span that they came with.
    failures_elsewhere: HashMap<SpanId, Vec<(SpanId, Failed)>>,
    elsewhere_since: VecDeque<(Stamp, SpanId)>,
    /// Attempts that ended until then may be the process's before us; with a successor, all may be its.
    predecessor_until: Option<Stamp>,
    has_successor: bool,
    /// Whether what stands between front and hops keeps our spans; unknown at first.
    spans_survive: Option<bool>,
}

#[derive(Debug)]
struct Request {
    id: String,
    spans: Vec<SpanId>,
    attempts: Vec<SpanId>,
    answered_by: Option<SpanId>,
    has_ended: bool,
}

#[derive(Debug)]
struct Entry {
    attempt: Attempt,
    of: Option<(RequestKey, Link)>,
    /// The hop is done with it, and will not ask again.
    is_over: bool,
    /// The row that it would have of its own.
    rows: Option<Vec<Record>>,
}

/// By what an attempt was joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Span,
    RequestId,
    Response,
}

/// Requests, attempts and failures elsewhere that are held at a time, each.
const CAPACITY: usize = 65_536;
/// How long a request that has ended still takes late attempts, and a failed attempt is remembered: longer than
/// routers back off between retries.
const MEMORY: i64 = 60 * NANOS;
/// How long an attempt that has ended waits for the front to read its response.
const CLAIM_WAIT: i64 = 5 * NANOS;

impl Joins {
    /// Empty tables; `has_front` when a front of this process may claim attempts.
    pub fn new(has_front: bool, metrics: Metrics) -> Joins {
        let all = Joined::ALL.into_iter().filter(|_| has_front);
        all.for_each(|joined| metrics.expect_joined(joined.name()));
        Joins {
            table: Mutex::default(),
            has_front,
            metrics,
        }
    }

    /// Whether a front of this process may claim attempts.
    pub fn has_front(&self) -> bool {
        self.has_front
    }

    /// The process before this one has a front too, until `end` if that is known: its rows hold the attempts that nobody
    /// claims here.
    pub fn shared_with_predecessor(&self, end: Option<Stamp>) {
        self.table.lock().predecessor_until = Some(end.unwrap_or(Stamp::from_nanos(i64::MAX)));
    }

    /// The same of the process after this one.
    pub fn shared_with_successor(&self) {
        self.table.lock().has_successor = true;
    }

    /// The front has read a request's head. `None` when the table is full of open requests: its attempts then
    /// join by its response alone.
    pub fn open(&self, id: &str) -> Option<RequestKey> {
        let mut table = self.table.lock();
        if table.requests.len() >= CAPACITY && !table.forget_oldest_request() {
            self.metrics.join_dropped();
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
        if let Some(joined) = self.table.lock().claim(key, by) {
            self.metrics.joined(joined.name());
        }
    }

    /// How many attempts at a request have come to a hop so far, and which of them failed.
    pub fn so_far(&self, key: RequestKey) -> (u32, Vec<Failed>) {
        let table = self.table.lock();
        let Some(request) = table.requests.get(&key) else {
            return (0, Vec::new());
        };
        let attempts = request.attempts.iter();
        let others = attempts.filter(|span| Some(**span) != request.answered_by);
        let others = others.filter_map(|span| table.attempts.get(span));
        let failed = others.filter(|entry| !entry.attempt.has_answered());
        let failed = failed.map(|entry| entry.attempt.failed());
        let count = u32::try_from(request.attempts.len()).unwrap_or(u32::MAX);
        (count, failed.take(MAX_FAILED).collect())
    }

    /// A request of the front has ended.
    pub fn close(&self, key: RequestKey, now: Stamp) -> RequestAttempts {
        self.table.lock().close(key, now)
    }

    /// A hop has read the head of `attempt`, which came with the span `parent` and the request id `id`. Whether it may
    /// need a row of its own; if not, it is in the front's row.
    pub fn arrived(&self, attempt: &Attempt, parent: Option<SpanId>, id: Option<&str>) -> bool {
        let mut table = self.table.lock();
        let (of, joined) = table.find(parent, id);
        if let Some(joined) = joined {
            self.metrics.joined(joined.name());
        }
        if joined == Some(Joined::Late) {
            return false;
        }
        if table.attempts.len() < CAPACITY {
            table.insert(attempt.clone(), of);
        } else {
            // It will be missing in its request's row.
            self.metrics.join_dropped();
        }
        !matches!(of, Some((_, Link::Span)))
    }

    /// An attempt has got further.
    pub fn update(&self, attempt: &Attempt, parent: Option<SpanId>, now: Stamp) {
        let mut table = self.table.lock();
        if let Some(entry) = table.attempts.get_mut(&attempt.span) {
            entry.attempt.clone_from(attempt);
        }
        if !self.has_front && attempt.status.is_some() && !attempt.has_answered() {
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

    /// An attempt has ended; `rows` is what it would have of its own. Gives what is to be written now.
    pub fn ended(
        &self,
        attempt: &Attempt,
        parent: Option<SpanId>,
        rows: Option<Vec<Record>>,
        now: Stamp,
    ) -> Option<Vec<Record>> {
        let mut table = self.table.lock();
        if !self.has_front {
            if !attempt.has_answered() {
                table.remember(attempt, parent, now);
            }
            table.attempts.remove(&attempt.span);
            return rows;
        }
        table.end(attempt, rows, now, &self.metrics)
    }

    /// Forgets what is old and tells how full the tables are; gives the rows of attempts that nobody has claimed in time.
    pub fn sweep(&self, now: Stamp) -> Vec<Vec<Record>> {
        let mut table = self.table.lock();
        for (name, entries) in [
            ("requests", table.requests.len()),
            ("spans", table.by_span.len()),
            ("attempts", table.attempts.len()),
            ("failures_elsewhere", table.failures_elsewhere.len()),
        ] {
            self.metrics.join_entries(name, entries);
        }
        let is_old = |at: Stamp, memory| now.nanos_since(at) > memory;
        while table
            .ended
            .front()
            .is_some_and(|(at, _)| is_old(*at, MEMORY))
        {
            table.forget_oldest_request();
        }
        while let Some((at, parent)) = table.elsewhere_since.front().copied()
            && is_old(at, MEMORY)
        {
            table.elsewhere_since.pop_front();
            table.failures_elsewhere.remove(&parent);
        }
        let mut rows = Vec::new();
        while table
            .unclaimed
            .front()
            .is_some_and(|(at, _)| is_old(*at, CLAIM_WAIT))
        {
            rows.extend(table.give_up_oldest(&self.metrics));
        }
        rows
    }

    /// Gives the rows of all attempts that nobody has claimed.
    pub fn flush(&self) -> Vec<Vec<Record>> {
        let mut table = self.table.lock();
        let mut rows = Vec::new();
        while !table.unclaimed.is_empty() {
            rows.extend(table.give_up_oldest(&self.metrics));
        }
        rows
    }
}

impl Table {
    fn open(&mut self, id: &str) -> RequestKey {
        let key = RequestKey(self.next);
        self.next += 1;
        self.by_id.entry(id.to_owned()).or_default().push(key);
        let request = Request {
            id: id.to_owned(),
            spans: Vec::new(),
            attempts: Vec::new(),
            answered_by: None,
            has_ended: false,
        };
        self.requests.insert(key, request);
        key
    }

    /// The request that an attempt belongs to, as far as its arrival shows, and what is to be counted.
    fn find(
        &mut self,
        parent: Option<SpanId>,
        id: Option<&str>,
    ) -> (Option<(RequestKey, Link)>, Option<Joined>) {
        let by_span = parent.and_then(|span| self.by_span.get(&span)).copied();
        if let Some(key) = by_span {
            self.spans_survive = Some(true);
            let has_ended = self.requests.get(&key).is_none_or(|r| r.has_ended);
            return match has_ended {
                true => (None, Some(Joined::Late)),
                false => (Some((key, Link::Span)), Some(Joined::Span)),
            };
        }
        // Where spans come through, one without ours is somebody else's, whatever its request id.
        if self.spans_survive == Some(true) {
            return (None, None);
        }
        let same_id = id.and_then(|id| self.by_id.get(id)).map(Vec::as_slice);
        match same_id.unwrap_or_default() {
            [key] if self.requests.get(key).is_some_and(|r| !r.has_ended) => {
                (Some((*key, Link::RequestId)), Some(Joined::RequestId))
            }
            [] | [_] => (None, None),
            _ => (None, Some(Joined::Ambiguous)),
        }
    }

    fn insert(&mut self, attempt: Attempt, of: Option<(RequestKey, Link)>) {
        let span = attempt.span;
        if let Some(request) = of.and_then(|(key, _)| self.requests.get_mut(&key)) {
            request.attempts.push(span);
        }
        let entry = Entry {
            attempt,
            of,
            is_over: false,
            rows: None,
        };
        self.attempts.insert(span, entry);
    }

    fn claim(&mut self, key: RequestKey, by: SpanId) -> Option<Joined> {
        let request = self.requests.get_mut(&key)?;
        request.answered_by = Some(by);
        // One at a hop of another process is not here.
        let entry = self.attempts.get_mut(&by)?;
        let before = entry.of.replace((key, Link::Response));
        entry.rows = None;
        if before.is_some_and(|(of, _)| of == key) {
            return None;
        }
        request.attempts.push(by);
        self.spans_survive = Some(false);
        // Its request id had misled.
        if let Some(other) = before.and_then(|(of, _)| self.requests.get_mut(&of)) {
            other.attempts.retain(|span| *span != by);
        }
        if before.is_none() {
            self.unclaimed.retain(|(_, span)| *span != by);
        }
        Some(Joined::Response)
    }

    fn close(&mut self, key: RequestKey, now: Stamp) -> RequestAttempts {
        let mut closed = RequestAttempts::default();
        let Some(request) = self.requests.get_mut(&key) else {
            return closed;
        };
        request.has_ended = true;
        self.ended.push_back((now, key));
        let answered_by = request.answered_by;
        let mut own = Vec::new();
        for span in std::mem::take(&mut request.attempts) {
            let Some(entry) = self.attempts.get_mut(&span) else {
                continue;
            };
            let by_id_alone = matches!(entry.of, Some((_, Link::RequestId)));
            let is_own = !by_id_alone || answered_by == Some(span) || !entry.attempt.has_answered();
            let is_over = entry.is_over;
            if is_own {
                own.push(entry.attempt.clone());
            } else {
                entry.of = None;
            }
            if is_over {
                let entry = self.attempts.remove(&span);
                let rows = entry.and_then(|entry| entry.rows);
                closed.released.extend(rows.filter(|_| !is_own));
            }
        }
        let last = match answered_by {
            Some(by) => own.iter().position(|attempt| attempt.span == by),
            None => own.len().checked_sub(1),
        };
        closed.last = last.map(|place| own.remove(place));
        let answered = usize::from(closed.last.is_some() || answered_by.is_some());
        closed.count = u32::try_from(own.len() + answered).unwrap_or(u32::MAX);
        own.truncate(MAX_FAILED);
        closed.failed = own.iter().map(Attempt::failed).collect();
        closed.others = own;
        closed
    }

    fn end(
        &mut self,
        attempt: &Attempt,
        rows: Option<Vec<Record>>,
        now: Stamp,
        metrics: &Metrics,
    ) -> Option<Vec<Record>> {
        let Some(entry) = self.attempts.get_mut(&attempt.span) else {
            if rows.is_some() {
                metrics.joined(Joined::Nothing.name());
            }
            return rows;
        };
        entry.attempt.clone_from(attempt);
        entry.is_over = true;
        match entry.of {
            Some((key, link)) => {
                let is_open = self.requests.get(&key).is_some_and(|r| !r.has_ended);
                if !is_open {
                    self.attempts.remove(&attempt.span);
                } else if link == Link::RequestId {
                    entry.rows = rows;
                }
                None
            }
            None => {
                entry.rows = rows;
                self.unclaimed.push_back((now, attempt.span));
                if self.unclaimed.len() > CAPACITY {
                    self.give_up_oldest(metrics)
                } else {
                    None
                }
            }
        }
    }

    fn give_up_oldest(&mut self, metrics: &Metrics) -> Option<Vec<Record>> {
        let (at, span) = self.unclaimed.pop_front()?;
        let rows = self.attempts.remove(&span)?.rows;
        let is_elsewhere =
            self.has_successor || self.predecessor_until.is_some_and(|end| at <= end);
        let joined = match is_elsewhere {
            true => Joined::Elsewhere,
            false => Joined::Nothing,
        };
        metrics.joined(joined.name());
        rows.filter(|_| !is_elsewhere)
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
        if self.elsewhere_since.len() > CAPACITY
            && let Some((_, oldest)) = self.elsewhere_since.pop_front()
        {
            self.failures_elsewhere.remove(&oldest);
        }
    }

    /// Forgets the request that ended longest ago; false when none has.
    fn forget_oldest_request(&mut self) -> bool {
        let Some((_, key)) = self.ended.pop_front() else {
            return false;
        };
        if let Some(request) = self.requests.remove(&key) {
            for span in &request.spans {
                self.by_span.remove(span);
            }
            if let Some(keys) = self.by_id.get_mut(&request.id) {
                keys.retain(|other| *other != key);
                if keys.is_empty() {
                    self.by_id.remove(&request.id);
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
