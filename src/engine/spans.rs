//! What engines told and no row has taken: spans by their trace, in whatever order and batches they come, and lines of logs.
//! Pure and bounded.
//!
//! A request is the root span. A scheduler's span names it as its parent, and the stages name the scheduler's: each of
//! them may come first. Of several schedulers (tensor- and pipeline-parallel ranks) the lowest rank is heard. One trace
//! may hold several requests: choices of `n > 1`, retries, or whatever else a client put into it.

use std::collections::BTreeSet;

use crate::clock::{NANOS, Stamp};
use crate::request::attempt::ServerRole;
use crate::request::engine_report::Told;

use super::fifo::{Fifo, Held};
use super::span::{EngineSpan, Part};

mod report;
mod share;

pub use report::{Origin, Report};

use share::Share;

/// Spans and lines that no row has taken.
#[derive(Debug)]
pub struct Spans {
    all: Fifo<Key, Item>,
}

/// What something is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Trace(u128),
    /// The engine's id.
    Rid(Box<str>),
    /// The `x-request-id` that a router's span names.
    Name(Box<str>),
    /// The number by which the servers of a pair know a request.
    Room(u64),
}

#[derive(Debug)]
enum Item {
    /// Under its trace.
    Span(EngineSpan),
    /// Under its engine id.
    Line(Box<Told>),
    /// The trace with a root of that id, or a router's span of that name.
    In(u128),
}

/// How long what has ended is kept for a row that has not come: a client that reads slowly ends its request long after
/// the engine has.
const ENDED: i64 = 300 * NANOS;
/// How long spans of what still runs are kept: those of a long stream begin to come at its begin.
const RUNNING: i64 = 1800 * NANOS;
/// Spans of a trace that are held: some 800 requests at once.
const OF_TRACE: usize = 4096;
/// Of what has the same engine id or name the last so many are kept: a client uses its own again, one after the other.
const SAME_ID: usize = 8;
/// Schedulers of a request that are heard: its tensor- and pipeline-parallel ranks.
const RANKS: usize = 256;
/// Requests of a trace among which one is looked for. Where more are, none is beyond doubt.
const ALIKE: usize = 256;

impl Spans {
    /// Holds so many spans at most; beyond it the oldest go.
    pub fn new(most: usize) -> Spans {
        Spans {
            all: Fifo::new(most),
        }
    }

    /// A span came. Gives what it tells so far if it is a request's root.
    pub fn add(&mut self, span: EngineSpan, now: Stamp) -> Option<Report> {
        let (trace, id) = (span.trace, span.id);
        let is_known = |(_, other): (_, &EngineSpan)| other.id == id && other.root().is_some();
        let is_root = span.root().is_some();
        // A second one under the same id is no engine's.
        if is_root && self.spans(trace).any(is_known) {
            return None;
        }
        let found_by = match &span.part {
            Part::Root(says) => [
                says.rid.as_deref().map(|rid| Key::Rid(rid.into())),
                says.room.map(Key::Room),
            ],
            Part::Router { request_id } => [Some(Key::Name(request_id.clone())), None],
            _ => [None, None],
        };
        for key in found_by.into_iter().flatten() {
            self.all.add(key, Item::In(trace), now, SAME_ID);
        }
        self.all
            .add(Key::Trace(trace), Item::Span(span), now, OF_TRACE);
        is_root.then(|| self.request(trace, id))
    }

    /// A line of a log came.
    pub fn add_line(&mut self, told: Told, now: Stamp) {
        if let Some(rid) = told.rid.as_deref() {
            let key = Key::Rid(rid.into());
            self.all.add(key, Item::Line(Box::new(told)), now, SAME_ID);
        }
    }

    /// What was told under an engine id, by spans or lines; of a pair by the server that answered.
    pub fn by_rid(&self, rid: &str) -> Vec<Report> {
        let key = Key::Rid(rid.into());
        let is_its = |root: &Told| root.rid.as_deref() == Some(rid) && answers(root);
        let spans = self.roots(&key, is_its);
        let spans = spans.map(|(trace, root)| self.request(trace, root.id));
        let lines = self.all.get(&key).iter();
        let lines = lines.filter_map(|held| match &held.value {
            Item::Line(told) => Some(Report {
                of: Origin::Line(held.number),
                came: held.came,
                is_whole: true,
                told: Told::clone(told),
                prefill: None,
            }),
            _ => None,
        });
        spans.chain(lines).collect()
    }

    /// The whole requests below a router's span of this `x-request-id`.
    pub fn by_name(&self, request_id: &str) -> Vec<Report> {
        let key = Key::Name(request_id.into());
        let all = self.roots(&key, answers);
        let all = all.map(|(trace, root)| self.request(trace, root.id));
        let is_named = |told: &Told| told.request_id.as_deref() == Some(request_id);
        all.filter(|report| report.is_whole && is_named(&report.told))
            .collect()
    }

    /// The requests of a trace, of which some may lack something. None of a trace that holds very many.
    pub fn by_trace(&self, trace: u128) -> Vec<Report> {
        let mut ids = BTreeSet::new();
        for (_, span) in self.spans(trace) {
            match span.part {
                Part::Root(_) => drop(ids.insert(span.id)),
                Part::Scheduler(_) => drop(ids.insert(span.parent)),
                _ => {}
            }
        }
        if ids.len() > ALIKE {
            return Vec::new();
        }
        let mut found: Vec<Report> = ids.into_iter().map(|id| self.request(trace, id)).collect();
        found.retain(|report| answers(&report.told));
        found
    }

    /// The engine ids of the requests in a trace, and of those that its servers share with servers of other traces.
    pub fn rids(&self, trace: u128) -> impl Iterator<Item = &str> {
        let roots = move || self.spans(trace).filter_map(|(_, span)| span.root());
        let rooms = roots().filter_map(|root| root.room);
        let others = rooms.flat_map(|room| self.in_room(room));
        let others = others.filter_map(|(_, span)| span.root());
        roots().chain(others).filter_map(|root| root.rid.as_deref())
    }

    /// The roots of a room.
    fn in_room(&self, room: u64) -> impl Iterator<Item = (u128, &EngineSpan)> {
        self.roots(&Key::Room(room), move |root| root.room == Some(room))
    }

    /// Such roots in the traces that are known by `key`.
    fn roots<'a, F: Fn(&Told) -> bool + Copy>(
        &'a self,
        key: &Key,
        is_wanted: F,
    ) -> impl Iterator<Item = (u128, &'a EngineSpan)> + use<'a, F> {
        let held = self.all.get(key).iter();
        let traces = held.filter_map(|held| match held.value {
            Item::In(trace) => Some(trace),
            _ => None,
        });
        let traces: BTreeSet<u128> = traces.collect();
        traces.into_iter().flat_map(move |trace| {
            let is_root = move |span: &&EngineSpan| span.root().is_some_and(is_wanted);
            let roots = self.spans(trace).map(|(_, span)| span).filter(is_root);
            roots.map(move |root| (trace, root)).take(ALIKE)
        })
    }

    /// What the prefill server of a pair told of what a decode server has in this room; without one, of all that this trace has.
    fn prefill(&self, room: Option<u64>, trace: u128) -> Option<Report> {
        let in_room = room.into_iter().flat_map(|room| self.in_room(room));
        let of_trace = self.spans(trace).filter(|_| room.is_none());
        let all = in_room.chain(of_trace.map(|(_, span)| (trace, span)));
        let prefills = |span: &EngineSpan| {
            let root = span.root();
            root.is_some_and(|root| root.role == Some(ServerRole::Prefill) && root.room == room)
        };
        let mut roots = all.filter(|(_, span)| prefills(span));
        let (trace, root) = roots.next()?;
        let is_one = room.is_some() || roots.next().is_none();
        is_one.then(|| self.request(trace, root.id))
    }

    /// A row took what this is made of.
    pub fn take(&mut self, report: &Report) {
        if let Some(prefill) = &report.prefill {
            self.take(prefill);
        }
        if let Some(room) = report.told.room {
            self.all.retain(&Key::Room(room), |_| false);
        }
        let rid = report.told.rid.as_deref().map(|rid| Key::Rid(rid.into()));
        match report.of {
            Origin::Line(number) => {
                if let Some(rid) = rid {
                    self.all.retain(&rid, |held| held.number != number);
                }
            }
            Origin::Request(trace, id) => {
                let schedulers = self.schedulers(trace, id).map(|(_, span)| span.id);
                let schedulers: Vec<u64> = schedulers.collect();
                let is_part = |span: &EngineSpan| {
                    let is_root = span.id == id && span.root().is_some();
                    is_root || span.is_scheduler_of(id) || schedulers.contains(&span.parent)
                };
                self.all.retain(
                    &Key::Trace(trace),
                    |held| !matches!(&held.value, Item::Span(span) if is_part(span)),
                );
                if let Some(rid) = rid {
                    let mut is_first = true;
                    self.all.retain(&rid, |held| {
                        !(matches!(held.value, Item::In(of) if of == trace)
                            && std::mem::take(&mut is_first))
                    });
                }
            }
        }
    }

    /// Forgets what is old, and the oldest where there is no room. Gives how many requests these were.
    pub fn forget(&mut self, now: Stamp) -> usize {
        let is_new = |held: &Held<Item>, age: i64| held.came >= now.plus_nanos(-age);
        let is_kept = |slot: &[Held<Item>], is_full: bool| {
            let ended = |held: &Held<Item>| match &held.value {
                Item::Span(span) => matches!(span.part, Part::Scheduler(_)).then_some(span.id),
                _ => None,
            };
            let ended: Vec<u64> = slot.iter().filter_map(ended).collect();
            // Stages come first, their scheduler's span at its end: others of the trace may be over long before.
            let is_running = |held: &Held<Item>| {
                let is_open = |span: &EngineSpan| !ended.contains(&span.parent);
                let is_stage = held.value.is_stage() && is_new(held, RUNNING);
                is_stage && matches!(&held.value, Item::Span(span) if is_open(span))
            };
            match is_full {
                true => slot.iter().all(is_running),
                false => {
                    let has_new = slot.last().is_some_and(|last| is_new(last, ENDED));
                    has_new || slot.iter().any(is_running)
                }
            }
        };
        let gone = self.all.forget(now, is_kept);
        let is_request = |item: &&Item| match item {
            Item::Span(span) => span.root().is_some(),
            Item::Line(_) => true,
            Item::In(_) => false,
        };
        gone.iter().filter(is_request).count()
    }

    fn spans(&self, trace: u128) -> impl Iterator<Item = (Stamp, &EngineSpan)> {
        let held = self.all.get(&Key::Trace(trace)).iter();
        held.filter_map(|held| match &held.value {
            Item::Span(span) => Some((held.came, span)),
            _ => None,
        })
    }

    fn schedulers(&self, trace: u128, request: u64) -> impl Iterator<Item = (Stamp, &EngineSpan)> {
        let all = self
            .spans(trace)
            .filter(move |(_, span)| span.is_scheduler_of(request));
        all.take(RANKS)
    }

    /// What a scheduler did, and when the last of that came.
    fn share(&self, trace: u128, scheduler: u64) -> (Stamp, Share) {
        let mut last = Stamp::from_nanos(i64::MIN);
        let mut share = Share::default();
        let stages = self.spans(trace);
        for (came, span) in stages.filter(|(_, span)| span.parent == scheduler) {
            last = last.max(came);
            share.add(span);
        }
        (last, share)
    }

    /// What there is of a request.
    fn request(&self, trace: u128, id: u64) -> Report {
        let mut report = Report::new(Origin::Request(trace, id), trace);
        let root = self
            .spans(trace)
            .find_map(|(came, span)| Some((came, span, span.root().filter(|_| span.id == id)?)));
        if let Some((_, span, says)) = root {
            report.told = Told {
                trace: Some(trace),
                parent: Some(span.parent).filter(|id| *id != 0),
                received: Some(span.start),
                finished: Some(span.end),
                ..says.clone()
            };
        }
        let shares = self.schedulers(trace, id).map(|(came, span)| {
            let (last, mut share) = self.share(trace, span.id);
            share.add(span);
            (last.max(came), share)
        });
        if let Some((last, share)) =
            shares.min_by_key(|(_, share)| (!share.is_whole(), share.rank()))
        {
            report.came = last;
            report.is_whole = share.is_whole();
            share.tell(&mut report.told);
        }
        let Some((came, span, says)) = root else {
            report.is_whole = false;
            return report;
        };
        report.came = report.came.max(came);
        let routers = self
            .spans(trace)
            .filter(|(_, router)| router.id == span.parent);
        let name = routers.filter_map(|(_, router)| match &router.part {
            Part::Router { request_id } => Some(request_id.to_string()),
            _ => None,
        });
        report.told.request_id = { name }.next();
        if says.role == Some(ServerRole::Decode) {
            report.add_prefill(self.prefill(says.room, trace));
        }
        report
    }
}

/// Of a pair the server that decoded answers.
fn answers(root: &Told) -> bool {
    root.role != Some(ServerRole::Prefill)
}

impl Item {
    fn is_stage(&self) -> bool {
        matches!(self, Item::Span(span) if matches!(span.part, Part::Stage(_)))
    }
}

impl EngineSpan {
    fn root(&self) -> Option<&Told> {
        match &self.part {
            Part::Root(root) => Some(root),
            _ => None,
        }
    }

    fn is_scheduler_of(&self, request: u64) -> bool {
        self.parent == request && matches!(self.part, Part::Scheduler(_))
    }
}

#[cfg(test)]
mod tests;
