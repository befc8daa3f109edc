//! Spans and log lines of engines that no row has claimed yet, in any order of arrival. Pure and bounded.
//!
//! A request is a root span, and so is a log line, alone in its trace. A scheduler's span has the root as its parent, and the stages have the scheduler's; each may
//! arrive first. Of several schedulers (tensor- and pipeline-parallel ranks) the lowest rank counts. One trace may hold
//! several requests: choices of `n > 1`, retries, or whatever else a client sends in it.

use std::collections::BTreeSet;

use crate::clock::{NANOS, Stamp};
use crate::request::{EngineReport, ServerRole, TimingSource};

use super::bounded_multimap::{BoundedMultimap, Entry};
use super::otlp::{EngineSpan, Scheduler, SpanKind, Stage};

/// The unclaimed spans and log lines.
#[derive(Debug)]
pub struct ReportStore {
    spans_by_trace: BoundedMultimap<u128, EngineSpan>,
    /// The traces that hold a root or router's span with this key.
    traces_by_key: BoundedMultimap<Key, u128>,
}

/// A report that may belong to a row: what was reported of one request so far.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The trace and span id of the root span that it was assembled from, with those below it.
    pub origin: (u128, u64),
    /// When the last part of it arrived, on our clock.
    pub arrived: Stamp,
    /// Whether all parts that are needed have arrived.
    pub is_complete: bool,
    /// The report.
    pub report: EngineReport,
}

/// What a request is found by in any trace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// The engine's id, or the `x-request-id` in a router's span.
    Id(Box<str>),
    /// The number by which the two servers of a pair know a request.
    Room(u64),
}

/// One scheduler's work on a request, assembled from its spans.
#[derive(Debug)]
struct SchedulerWork {
    /// When the last of its spans arrived, on our clock.
    arrived: Stamp,
    /// The end of the scheduler's span.
    end: Stamp,
    scheduler: Scheduler,
    /// Start and end, by [`Stage`].
    stages: [Option<(Stamp, Stamp)>; Stage::KvSend as usize + 1],
    retractions: u32,
}

/// How long an ended request waits for its row. A client that reads slowly ends its request long after the engine has.
pub const ENDED_MAX_AGE_NANOS: i64 = 300 * NANOS;
/// How long the stages of a running request are kept: a long stream's first ones arrive when it begins.
const RUNNING_MAX_AGE_NANOS: i64 = 1800 * NANOS;
/// Spans that are held of one trace: about 800 requests at once.
const MAX_SPANS_OF_TRACE: usize = 4096;
/// Traces with the same engine id, request id or room: a client may reuse its ids, one request after the other.
const MAX_PER_ID: usize = 8;
/// Schedulers (tensor- and pipeline-parallel ranks) that are read of one request.
const MAX_RANKS: usize = 256;
/// Requests in a trace up to which they are looked through. With more of them no match is certain.
const MAX_REQUESTS_OF_TRACE: usize = 256;

impl ReportStore {
    /// Creates an empty store; beyond `capacity` spans, or keys of them, the oldest are evicted.
    pub fn new(capacity: usize) -> ReportStore {
        ReportStore {
            spans_by_trace: BoundedMultimap::new(capacity),
            traces_by_key: BoundedMultimap::new(capacity),
        }
    }

    /// Adds a span. A sender whose batch is not answered in time sends it again: its spans count once.
    pub fn add(&mut self, span: EngineSpan, now: Stamp) {
        if self.spans(span.trace).any(|(_, known)| *known == span) {
            return;
        }
        let keys = match &span.kind {
            SpanKind::Root(root) => [
                root.rid.as_deref().map(|rid| Key::Id(rid.into())),
                root.room.map(Key::Room),
            ],
            SpanKind::Router { request_id } => [Some(Key::Id(request_id.clone())), None],
            _ => [None, None],
        };
        for key in keys.into_iter().flatten() {
            self.traces_by_key.add(key, span.trace, now, MAX_PER_ID);
        }
        self.spans_by_trace
            .add(span.trace, span, now, MAX_SPANS_OF_TRACE);
    }

    /// Returns what spans and log lines report under an engine id. Of a pair, the server that answered counts.
    pub fn by_rid(&self, rid: &str) -> Vec<Candidate> {
        let key = Key::Id(rid.into());
        let has_rid = |root: &EngineReport| root.rid.as_deref() == Some(rid) && is_answering(root);
        self.requests(&key, has_rid)
    }

    /// Returns the complete requests below a router's span with this `x-request-id`.
    pub fn by_request_id(&self, request_id: &str) -> Vec<Candidate> {
        let mut found = self.requests(&Key::Id(request_id.into()), is_answering);
        found.retain(|candidate| {
            candidate.is_complete && candidate.report.request_id.as_deref() == Some(request_id)
        });
        found
    }

    /// Returns the requests in a trace, complete or not; none if the trace holds too many.
    pub fn by_trace(&self, trace: u128) -> Vec<Candidate> {
        let request = |(_, span): (_, &EngineSpan)| match span.kind {
            SpanKind::Root(_) => Some(span.id),
            SpanKind::Scheduler(_) => Some(span.parent),
            _ => None,
        };
        let ids: BTreeSet<u64> = self.spans(trace).filter_map(request).collect();
        if ids.len() > MAX_REQUESTS_OF_TRACE {
            return Vec::new();
        }
        let found = ids.into_iter().map(|id| self.assemble(trace, id));
        found
            .filter(|candidate| is_answering(&candidate.report))
            .collect()
    }

    /// Assembles the requests with a wanted root in the traces under `key`.
    fn requests(&self, key: &Key, is_wanted: impl Fn(&EngineReport) -> bool) -> Vec<Candidate> {
        let traces = self.traces_by_key.get(key).iter().map(|entry| entry.value);
        let mut found = Vec::new();
        for trace in traces.collect::<BTreeSet<u128>>() {
            let roots = self
                .spans(trace)
                .filter(|(_, span)| span.root().is_some_and(&is_wanted));
            let roots = roots.take(MAX_REQUESTS_OF_TRACE);
            found.extend(roots.map(|(_, root)| self.assemble(trace, root.id)));
        }
        found
    }

    /// Removes what has arrived of a request: its root's trace and id.
    pub fn remove_request(&mut self, trace: u128, id: u64) {
        self.remove(&self.assemble(trace, id));
    }

    /// Removes the spans of a candidate that a row has claimed.
    pub fn remove(&mut self, candidate: &Candidate) {
        let (report, (trace, id)) = (&candidate.report, candidate.origin);
        let room = report.room.filter(|_| report.prefill.is_some());
        if let Some(prefill) = room.and_then(|room| self.prefill(room)) {
            self.remove(&prefill);
        }
        let schedulers = self.schedulers(trace, id);
        let schedulers: Vec<u64> = schedulers.map(|(_, span, _)| span.id).collect();
        let is_claimed = |span: &EngineSpan| {
            let is_root = span.id == id && span.root().is_some();
            is_root || span.scheduler_of(id).is_some() || schedulers.contains(&span.parent)
        };
        self.spans_by_trace
            .retain(&trace, |entry| !is_claimed(&entry.value));
        let rid = report.rid.as_deref().map(|rid| Key::Id(rid.into()));
        for key in rid.into_iter().chain(report.room.map(Key::Room)) {
            self.traces_by_key
                .retain(&key, |entry| entry.value != trace);
        }
    }

    /// Drops what is too old, and the oldest spans if the store is full. Returns the source of each request dropped.
    pub fn forget(&mut self, now: Stamp) -> impl Iterator<Item = TimingSource> + use<> {
        self.traces_by_key.evict(now, |_| ENDED_MAX_AGE_NANOS);
        let max_age = |entries: &[Entry<EngineSpan>]| {
            let spans = || entries.iter().map(|entry| &entry.value);
            let schedulers = spans().filter(|span| matches!(span.kind, SpanKind::Scheduler(_)));
            let ended: Vec<u64> = schedulers.map(|span| span.id).collect();
            // Stages arrive before their scheduler's span, which is sent at its end. Other requests of the trace, such as the
            // prefill server's of a pair, may have ended long before.
            let mut stages = spans().filter(|span| matches!(span.kind, SpanKind::Stage(_)));
            match stages.any(|stage| !ended.contains(&stage.parent)) {
                true => RUNNING_MAX_AGE_NANOS,
                false => ENDED_MAX_AGE_NANOS,
            }
        };
        let dropped = self.spans_by_trace.evict(now, max_age).into_iter();
        dropped.filter_map(|span| span.root().map(|root| root.source))
    }

    /// The spans of a trace, each with its arrival.
    fn spans(&self, trace: u128) -> impl Iterator<Item = (Stamp, &EngineSpan)> {
        let entries = self.spans_by_trace.get(&trace).iter();
        entries.map(|entry| (entry.arrived, &entry.value))
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
        let mut candidate = Candidate {
            origin: (trace, id),
            arrived: Stamp::from_nanos(i64::MIN),
            is_complete: false,
            report: EngineReport {
                trace: Some(trace),
                ..EngineReport::of(TimingSource::Trace)
            },
        };
        let root = self.spans(trace).find_map(|(arrived, span)| {
            Some((arrived, span, span.root().filter(|_| span.id == id)?))
        });
        if let Some((arrived, span, root)) = root {
            let mut above = self.spans(trace).filter(|(_, of)| of.id == span.parent);
            candidate.arrived = arrived;
            candidate.is_complete = root.source == TimingSource::Log;
            candidate.report = EngineReport {
                request_id: above.find_map(|(_, span)| match &span.kind {
                    SpanKind::Router { request_id } => Some(request_id.to_string()),
                    _ => None,
                }),
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
            candidate.arrived = candidate.arrived.max(work.arrived);
            candidate.is_complete = root.is_some() && work.is_complete();
            work.put(&mut candidate.report);
        }
        if candidate.report.role == Some(ServerRole::Decode) {
            let prefill = candidate.report.room.and_then(|room| self.prefill(room));
            candidate.is_complete &= prefill.as_ref().is_some_and(|of| of.is_complete);
            if let Some(prefill) = prefill {
                candidate.arrived = candidate.arrived.max(prefill.arrived);
                candidate.report.prefill = Some(Box::new(prefill.report));
            }
        }
        candidate
    }

    /// Returns the prefill server's part of a request of a pair.
    fn prefill(&self, room: u64) -> Option<Candidate> {
        let is_prefill = |root: &EngineReport| root.room == Some(room) && !is_answering(root);
        self.requests(&Key::Room(room), is_prefill)
            .into_iter()
            .next()
    }
}

impl SchedulerWork {
    /// Starts with the scheduler's own span.
    fn new(arrived: Stamp, span: &EngineSpan, scheduler: Scheduler) -> SchedulerWork {
        SchedulerWork {
            arrived,
            end: span.end,
            scheduler,
            stages: Default::default(),
            retractions: span.retractions,
        }
    }

    /// Adds a span below the scheduler's.
    fn add(&mut self, arrived: Stamp, span: &EngineSpan) {
        self.arrived = self.arrived.max(arrived);
        self.retractions = self.retractions.saturating_add(span.retractions);
        if let SpanKind::Stage(stage) = span.kind {
            // A retracted request passes the stages again: the first time counts.
            let known = &mut self.stages[stage as usize];
            if known.is_none_or(|(start, _)| span.start < start) {
                *known = Some((span.start, span.end));
            }
        }
    }

    fn stage(&self, stage: Stage) -> Option<(Stamp, Stamp)> {
        self.stages[stage as usize]
    }

    fn end_of(&self, stage: Stage) -> Option<Stamp> {
        self.stage(stage).map(|(_, end)| end)
    }

    /// Returns the pipeline- and tensor-parallel ranks. The lowest scheduler's clock is the server's.
    fn rank(&self) -> (u64, u64) {
        let of = &self.scheduler;
        (of.pp_rank.unwrap_or(0), of.tp_rank.unwrap_or(0))
    }

    /// Whether all stages have arrived that are needed, and no scheduler has a lower rank.
    fn is_complete(&self) -> bool {
        let (pp, tp) = self.rank();
        // Each data-parallel rank has tensor-parallel ranks of its own, which may not begin with 0.
        let is_own = self.scheduler.dp_rank.is_some_and(|rank| rank > 0);
        let is_lowest = pp == 0 && (tp == 0 || is_own);
        let has = |stage: &Stage| self.stage(*stage).is_some();
        let is_aborted = self.scheduler.is_aborted && has(&Stage::Process);
        let has_run = [Stage::Waiting, Stage::Prefill].iter().all(has);
        let of_decode = [Stage::Bootstrap, Stage::KvTransfer, Stage::DecodeWaiting];
        is_lowest && (is_aborted || has_run || of_decode.iter().all(has))
    }

    /// Puts the scheduler's times and attributes into the request's report.
    fn put(&self, report: &mut EngineReport) {
        let [waiting, bootstrap] = [Stage::Waiting, Stage::Bootstrap].map(|of| self.stage(of));
        let queued = bootstrap.or(waiting).map(|(start, _)| start);
        report.queue_start = queued.or(self.end_of(Stage::Process));
        report.queue_end = self.end_of(Stage::Waiting);
        report.prefill_end = self.end_of(Stage::Prefill);
        report.kv_reserved = self.end_of(Stage::Bootstrap);
        report.kv_arrived = self.end_of(Stage::KvTransfer);
        // A server that also prefills has this span too, between prefill and its first decode step.
        report.decode_start = bootstrap.and_then(|_| self.end_of(Stage::DecodeWaiting));
        let sending = self.stage(Stage::KvSend);
        report.sending_nanos = sending.map(|(start, end)| end.nanos_since(start));
        // An abort ends the open stages together with the scheduler's span: they were not completed.
        for moment in [
            &mut report.prefill_end,
            &mut report.kv_reserved,
            &mut report.kv_arrived,
            &mut report.decode_start,
        ] {
            *moment = moment.filter(|at| *at != self.end);
        }
        report.num_retractions = Some(self.retractions.into());
        report.dp_rank = self.scheduler.dp_rank;
        // The trace does not hold the queue times after a retraction.
        let waited = waiting.filter(|_| self.retractions == 0);
        report.queue_nanos = waited.map(|(start, end)| end.nanos_since(start));
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
pub(super) mod tests;
