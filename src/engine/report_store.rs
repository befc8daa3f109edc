//! Spans and log lines of engines that no row has claimed yet, in any order of arrival. Pure and bounded.
//!
//! A request is a root span. A scheduler's span has the root as its parent, and the stages have the scheduler's; each may
//! arrive first. Of several schedulers (tensor- and pipeline-parallel ranks) the lowest rank counts. One trace may hold
//! several requests: choices of `n > 1`, retries, or whatever else a client sends in it.

use std::collections::BTreeSet;

use crate::clock::{NANOS, Stamp};
use crate::request::attempt::ServerRole;
use crate::request::engine_report::EngineReport;

use super::bounded_multimap::{BoundedMultimap, Entry};
use super::span::{EngineSpan, Scheduler, SpanKind};

mod candidate;
mod scheduler_work;

pub use candidate::{Candidate, Origin};

use scheduler_work::SchedulerWork;

/// The unclaimed spans and log lines.
#[derive(Debug)]
pub struct ReportStore {
    items: BoundedMultimap<Key, Item>,
}

/// What an item is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Trace(u128),
    /// The engine's id.
    Rid(Box<str>),
    /// The `x-request-id` in a router's span.
    RequestId(Box<str>),
    /// The number by which the two servers of a pair know a request.
    Room(u64),
}

#[derive(Debug)]
enum Item {
    /// A span, under its trace.
    Span(EngineSpan),
    /// A log line, under its engine id.
    LogLine(Box<EngineReport>),
    /// The trace that holds the root or router's span with this key.
    InTrace(u128),
}

/// How long an ended request waits for its row. A client that reads slowly ends its request long after the engine has.
const ENDED_MAX_AGE_NANOS: i64 = 300 * NANOS;
/// How long the stages of a running request are kept: a long stream's first ones arrive when it begins.
const RUNNING_MAX_AGE_NANOS: i64 = 1800 * NANOS;
/// Spans that are held of one trace: about 800 requests at once.
const MAX_SPANS_OF_TRACE: usize = 4096;
/// Items with the same engine id, request id or room: a client may reuse its ids, one request after the other.
const MAX_PER_ID: usize = 8;
/// Schedulers (tensor- and pipeline-parallel ranks) that are read of one request.
const MAX_RANKS: usize = 256;
/// Requests in a trace up to which they are looked through. With more of them no match is certain.
const MAX_REQUESTS_OF_TRACE: usize = 256;

impl ReportStore {
    /// Creates an empty store; beyond `capacity` items the oldest are evicted.
    pub fn new(capacity: usize) -> ReportStore {
        ReportStore {
            items: BoundedMultimap::new(capacity),
        }
    }

    /// Adds a span. If it is a request's root, returns the request as known so far.
    pub fn add(&mut self, span: EngineSpan, now: Stamp) -> Option<Candidate> {
        let (trace, id) = (span.trace, span.id);
        let is_known = |(_, other): (_, &EngineSpan)| other.id == id && other.root().is_some();
        let is_root = span.root().is_some();
        // No engine sends a second root under the same id.
        if is_root && self.spans(trace).any(is_known) {
            return None;
        }
        let keys = match &span.kind {
            SpanKind::Root(root) => [
                root.rid.as_deref().map(|rid| Key::Rid(rid.into())),
                root.room.map(Key::Room),
            ],
            SpanKind::Router { request_id } => [Some(Key::RequestId(request_id.clone())), None],
            _ => [None, None],
        };
        for key in keys.into_iter().flatten() {
            self.items.add(key, Item::InTrace(trace), now, MAX_PER_ID);
        }
        let key = Key::Trace(trace);
        self.items
            .add(key, Item::Span(span), now, MAX_SPANS_OF_TRACE);
        is_root.then(|| self.assemble(trace, id))
    }

    /// Adds a log line.
    pub fn add_log_line(&mut self, report: EngineReport, now: Stamp) {
        if let Some(rid) = report.rid.as_deref() {
            let key = Key::Rid(rid.into());
            let line = Item::LogLine(Box::new(report));
            self.items.add(key, line, now, MAX_PER_ID);
        }
    }

    /// Returns what spans and log lines report under an engine id. Of a pair, the server that answered counts.
    pub fn by_rid(&self, rid: &str) -> Vec<Candidate> {
        let key = Key::Rid(rid.into());
        let has_rid = |root: &EngineReport| root.rid.as_deref() == Some(rid) && is_answering(root);
        let roots = self.roots(&key, has_rid);
        let spans = roots.map(|(trace, root)| self.assemble(trace, root.id));
        let entries = self.items.get(&key).iter();
        let lines = entries.filter_map(|entry| match &entry.value {
            Item::LogLine(report) => Some(Candidate {
                origin: Origin::LogLine(entry.number),
                arrived: entry.arrived,
                is_complete: true,
                report: EngineReport::clone(report),
                prefill: None,
            }),
            _ => None,
        });
        spans.chain(lines).collect()
    }

    /// Returns the complete requests below a router's span with this `x-request-id`.
    pub fn by_request_id(&self, request_id: &str) -> Vec<Candidate> {
        let roots = self.roots(&Key::RequestId(request_id.into()), is_answering);
        let found = roots.map(|(trace, root)| self.assemble(trace, root.id));
        let has_id = |report: &EngineReport| report.request_id.as_deref() == Some(request_id);
        found
            .filter(|candidate| candidate.is_complete && has_id(&candidate.report))
            .collect()
    }

    /// Returns the requests in a trace, complete or not; none if the trace holds too many.
    pub fn by_trace(&self, trace: u128) -> Vec<Candidate> {
        let roots = self.spans(trace).filter(|(_, span)| span.root().is_some());
        let mut ids = self.scheduled(trace);
        ids.extend(roots.map(|(_, span)| span.id));
        if ids.len() > MAX_REQUESTS_OF_TRACE {
            return Vec::new();
        }
        let found = ids.into_iter().map(|id| self.assemble(trace, id));
        found
            .filter(|candidate| is_answering(&candidate.report))
            .collect()
    }

    /// Returns the engine ids of the requests in a trace that may be complete, and of those that share a room with them. Servers send
    /// roots and schedulers in messages of their own: many a root has no scheduler yet.
    pub fn rids(&self, trace: u128) -> impl Iterator<Item = &str> {
        let scheduled = self.scheduled(trace);
        let spans = self.spans(trace);
        let spans = spans.filter(move |(_, span)| scheduled.contains(&span.id));
        spans.filter_map(|(_, span)| span.root()).flat_map(|root| {
            let others = root.room.into_iter().flat_map(|room| self.in_room(room));
            let others = others.filter_map(|(_, span)| span.root());
            others.chain([root]).filter_map(|root| root.rid.as_deref())
        })
    }

    /// The ids of the requests in a trace that have a scheduler's span.
    fn scheduled(&self, trace: u128) -> BTreeSet<u64> {
        let is_scheduler = |span: &EngineSpan| matches!(span.kind, SpanKind::Scheduler(_));
        let spans = self.spans(trace).filter(|(_, span)| is_scheduler(span));
        spans.map(|(_, span)| span.parent).collect()
    }

    /// The root spans of a room, with their traces.
    fn in_room(&self, room: u64) -> impl Iterator<Item = (u128, &EngineSpan)> {
        self.roots(&Key::Room(room), move |root| root.room == Some(room))
    }

    /// The wanted root spans in the traces under `key`, with their traces.
    fn roots<'a, F: Fn(&EngineReport) -> bool + Copy>(
        &'a self,
        key: &Key,
        is_wanted: F,
    ) -> impl Iterator<Item = (u128, &'a EngineSpan)> + use<'a, F> {
        let entries = self.items.get(key).iter();
        let traces = entries.filter_map(|entry| match entry.value {
            Item::InTrace(trace) => Some(trace),
            _ => None,
        });
        let traces: BTreeSet<u128> = traces.collect();
        traces.into_iter().flat_map(move |trace| {
            let is_root = move |span: &&EngineSpan| span.root().is_some_and(is_wanted);
            let roots = self.spans(trace).map(|(_, span)| span).filter(is_root);
            roots
                .map(move |root| (trace, root))
                .take(MAX_REQUESTS_OF_TRACE)
        })
    }

    /// Returns the prefill server's part of a request of this room; without a room, the only one in the trace.
    fn prefill(&self, room: Option<u64>, trace: u128) -> Option<Candidate> {
        let in_room = room.into_iter().flat_map(|room| self.in_room(room));
        let in_trace = self.spans(trace).filter(|_| room.is_none());
        let all = in_room.chain(in_trace.map(|(_, span)| (trace, span)));
        let is_prefill =
            |root: &EngineReport| root.role == Some(ServerRole::Prefill) && root.room == room;
        let mut roots = all.filter(|(_, span)| span.root().is_some_and(is_prefill));
        let (trace, root) = roots.next()?;
        let is_only = room.is_some() || roots.next().is_none();
        is_only.then(|| self.assemble(trace, root.id))
    }

    /// Removes the spans or line of a candidate that a row has claimed.
    pub fn remove(&mut self, candidate: &Candidate) {
        if let Some(prefill) = &candidate.prefill {
            self.remove(prefill);
        }
        if let Some(room) = candidate.report.room {
            self.items.retain(&Key::Room(room), |_| false);
        }
        let rid = candidate.report.rid.as_deref();
        let rid = rid.map(|rid| Key::Rid(rid.into()));
        match candidate.origin {
            Origin::LogLine(number) => {
                if let Some(rid) = rid {
                    self.items.retain(&rid, |entry| entry.number != number);
                }
            }
            Origin::Request(trace, id) => {
                let schedulers = self.schedulers(trace, id).map(|(_, span, _)| span.id);
                let schedulers: Vec<u64> = schedulers.collect();
                let is_part = |span: &EngineSpan| {
                    let is_root = span.id == id && span.root().is_some();
                    is_root || span.scheduler_of(id).is_some() || schedulers.contains(&span.parent)
                };
                self.items.retain(
                    &Key::Trace(trace),
                    |entry| !matches!(&entry.value, Item::Span(span) if is_part(span)),
                );
                if let Some(rid) = rid {
                    let mut is_first = true;
                    self.items.retain(&rid, |entry| {
                        !(matches!(entry.value, Item::InTrace(of) if of == trace)
                            && std::mem::take(&mut is_first))
                    });
                }
            }
        }
    }

    /// Drops what is too old, and the oldest items if the store is full. Returns the number of requests dropped.
    pub fn forget(&mut self, now: Stamp) -> usize {
        let is_younger = |entry: &Entry<Item>, age: i64| entry.arrived >= now.plus_nanos(-age);
        let is_kept = |entries: &[Entry<Item>], is_full: bool| {
            let ended = |entry: &Entry<Item>| match &entry.value {
                Item::Span(span) => matches!(span.kind, SpanKind::Scheduler(_)).then_some(span.id),
                _ => None,
            };
            let ended: Vec<u64> = entries.iter().filter_map(ended).collect();
            // Stages arrive before their scheduler's span, which is sent at its end. Other requests of the trace may have
            // ended long before.
            let is_running = |entry: &Entry<Item>| match &entry.value {
                Item::Span(span) => {
                    let is_stage = matches!(span.kind, SpanKind::Stage(_));
                    let is_open = is_stage && !ended.contains(&span.parent);
                    is_open && is_younger(entry, RUNNING_MAX_AGE_NANOS)
                }
                _ => false,
            };
            match is_full {
                true => entries.iter().all(is_running),
                false => {
                    let is_young = |last| is_younger(last, ENDED_MAX_AGE_NANOS);
                    entries.last().is_some_and(is_young) || entries.iter().any(is_running)
                }
            }
        };
        let dropped = self.items.evict(now, is_kept);
        let is_request = |item: &&Item| match item {
            Item::Span(span) => span.root().is_some(),
            Item::LogLine(_) => true,
            Item::InTrace(_) => false,
        };
        dropped.iter().filter(is_request).count()
    }

    /// The spans of a trace, each with its arrival.
    fn spans(&self, trace: u128) -> impl Iterator<Item = (Stamp, &EngineSpan)> {
        let entries = self.items.get(&Key::Trace(trace)).iter();
        entries.filter_map(|entry| match &entry.value {
            Item::Span(span) => Some((entry.arrived, span)),
            _ => None,
        })
    }

    /// The scheduler spans of a request, each with its arrival.
    fn schedulers(
        &self,
        trace: u128,
        request: u64,
    ) -> impl Iterator<Item = (Stamp, &EngineSpan, Scheduler)> {
        let all = self
            .spans(trace)
            .filter_map(move |(arrived, span)| Some((arrived, span, span.scheduler_of(request)?)));
        all.take(MAX_RANKS)
    }

    /// Assembles a request from the spans that have arrived.
    fn assemble(&self, trace: u128, id: u64) -> Candidate {
        let mut candidate = Candidate::new(Origin::Request(trace, id), trace);
        let root = self.spans(trace).find_map(|(arrived, span)| {
            Some((arrived, span, span.root().filter(|_| span.id == id)?))
        });
        if let Some((_, span, root)) = root {
            candidate.report = EngineReport {
                trace: Some(trace),
                parent: Some(span.parent).filter(|id| *id != 0),
                received: Some(span.start),
                finished: Some(span.end),
                ..root.clone()
            };
        }
        let works = self
            .schedulers(trace, id)
            .map(|(arrived, span, scheduler)| {
                let mut work = SchedulerWork::new(arrived, span, scheduler);
                let below = self
                    .spans(trace)
                    .filter(|(_, below)| below.parent == span.id);
                below.for_each(|(arrived, below)| work.add(arrived, below));
                work
            });
        if let Some(work) = works.min_by_key(|work| (!work.is_complete(), work.rank())) {
            candidate.arrived = work.arrived;
            candidate.is_complete = work.is_complete();
            work.put(&mut candidate.report);
        }
        let Some((arrived, span, root)) = root else {
            candidate.is_complete = false;
            return candidate;
        };
        candidate.arrived = candidate.arrived.max(arrived);
        let mut routers = self
            .spans(trace)
            .filter(|(_, router)| router.id == span.parent);
        candidate.report.request_id = routers.find_map(|(_, router)| match &router.kind {
            SpanKind::Router { request_id } => Some(request_id.to_string()),
            _ => None,
        });
        if root.role == Some(ServerRole::Decode) {
            candidate.add_prefill(self.prefill(root.room, trace));
        }
        candidate
    }
}

/// Whether the server answers the client: of a pair, the decode server does.
fn is_answering(root: &EngineReport) -> bool {
    root.role != Some(ServerRole::Prefill)
}

impl EngineSpan {
    /// The attributes of a scheduler's span of this request.
    fn scheduler_of(&self, request: u64) -> Option<Scheduler> {
        match self.kind {
            SpanKind::Scheduler(scheduler) if self.parent == request => Some(scheduler),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
