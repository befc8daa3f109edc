//! Puts the spans of a request together, in whatever order and batches they come; pure.
//!
//! A request is the root span. A scheduler's span names it as its parent, and the stages name the scheduler's: each of
//! them may come first. Of several schedulers (tensor- and pipeline-parallel ranks) the lowest rank is heard. One trace
//! may hold several requests: choices of `n > 1`, retries, or whatever else a client put into it.

use std::collections::{HashMap, VecDeque};

use crate::clock::Stamp;
use crate::request::sequence::TimingSource;
use crate::request::told::Told;

use super::span::{EngineSpan, Part, Root, Scheduler};

/// Requests of which not all has come, and those that a router's span may still name.
#[derive(Debug)]
pub struct Assembly {
    /// By their root spans.
    requests: HashMap<Key, Request>,
    /// By their schedulers' spans.
    shares: HashMap<Key, Share>,
    /// Routers' spans.
    routers: HashMap<Key, Router>,
    /// Root and scheduler spans of each trace that are in the tables.
    traces: HashMap<u128, Trace>,
    /// Root spans of requests that have an id and are not told yet.
    rids: HashMap<Box<str>, Key>,
    /// Every entry that was made, the oldest first, whether it is still there or not.
    made: VecDeque<(Stamp, Entry)>,
    most: usize,
    evicted: u64,
}

/// Trace and span.
type Key = (u128, u64);

#[derive(Clone, Copy, Debug)]
enum Entry {
    Request(Key),
    Share(Key),
    Router(Key),
}

#[derive(Debug, Default)]
struct Trace {
    requests: Vec<u64>,
    shares: Vec<u64>,
}

#[derive(Debug)]
struct Request {
    made: Stamp,
    root: Option<Whole>,
    shares: Vec<u64>,
    /// All came and was told.
    told: Option<Box<Told>>,
}

/// A root span.
#[derive(Debug)]
struct Whole {
    parent: u64,
    start: Stamp,
    end: Stamp,
    says: Box<Root>,
}

/// What one scheduler did for a request.
#[derive(Debug)]
struct Share {
    made: Stamp,
    /// Its span; `None` until it has come.
    scheduler: Option<Served>,
    processed: Option<Stamp>,
    waiting: Option<(Stamp, Stamp)>,
    prefill: Option<(Stamp, Stamp)>,
    retractions: u32,
}

/// A scheduler's span.
#[derive(Clone, Copy, Debug)]
struct Served {
    /// The span of the request.
    root: u64,
    end: Stamp,
    says: Scheduler,
}

#[derive(Debug)]
struct Router {
    made: Stamp,
    request_id: Box<str>,
}

impl Assembly {
    /// Holds so many spans of requests, schedulers and routers at most; beyond it the oldest go.
    pub fn new(most_spans: usize) -> Assembly {
        Assembly {
            requests: HashMap::new(),
            shares: HashMap::new(),
            routers: HashMap::new(),
            traces: HashMap::new(),
            rids: HashMap::new(),
            made: VecDeque::new(),
            most: most_spans,
            evicted: 0,
        }
    }

    /// Takes in spans that came at `now`. What this gives are the requests of which now all that is needed has come, each
    /// once; and once more, with its `request_id`, one whose router's span came after that.
    pub fn add(&mut self, spans: Vec<EngineSpan>, now: Stamp) -> Vec<Told> {
        let mut told = Vec::new();
        let mut touched = Vec::new();
        for span in spans {
            let key = (span.trace, span.id);
            let above = (span.trace, span.parent);
            match span.part {
                Part::Root(says) => {
                    if let Some(rid) = &says.rid {
                        self.rids.insert(rid.clone(), key);
                    }
                    self.request(key, now).root = Some(Whole {
                        parent: span.parent,
                        start: span.start,
                        end: span.end,
                        says,
                    });
                    touched.push(key);
                }
                Part::Router { request_id } => {
                    told.extend(self.named(key, &request_id));
                    self.made.push_back((now, Entry::Router(key)));
                    let router = Router {
                        made: now,
                        request_id,
                    };
                    self.routers.insert(key, router);
                }
                Part::Scheduler(says) => {
                    self.share(key, now).scheduler = Some(Served {
                        root: span.parent,
                        end: span.end,
                        says,
                    });
                    let request = self.request(above, now);
                    if !request.shares.contains(&span.id) {
                        request.shares.push(span.id);
                    }
                    touched.push(above);
                }
                part => {
                    let share = self.share(above, now);
                    share.stage(&part, span.start, span.end);
                    let root = share.scheduler.map(|served| served.root);
                    touched.extend(root.map(|root| (span.trace, root)));
                }
            }
        }
        // Of stages that a request goes through twice, the first counts: none is told before all of the batch is known.
        told.extend(touched.into_iter().filter_map(|key| self.complete(key)));
        self.bound();
        told
    }

    /// What there is of the requests of a trace that have ended, complete or not, but for those that were told. They are
    /// forgotten.
    pub fn take_trace(&mut self, trace: u128) -> Vec<Told> {
        let Some(of) = self.traces.get(&trace) else {
            return Vec::new();
        };
        let requests = of.requests.clone();
        // Their scheduler's span is lost, or they still run. What was never in the queue is what follows a retraction.
        let is_loose = |id: &&u64| {
            let share = self.shares.get(&(trace, **id));
            share.is_some_and(|share| share.scheduler.is_none() && share.waiting.is_some())
        };
        let loose: Vec<u64> = of.shares.iter().filter(is_loose).copied().collect();
        match (&requests[..], &loose[..]) {
            ([root], [share]) => self.adopt((trace, *root), *share),
            ([], [share]) => {
                let mut alone = nothing(trace);
                if let Some(share) = self.remove_share((trace, *share)) {
                    share.tell(&mut alone);
                }
                return vec![alone];
            }
            _ => {}
        }
        let requests = requests.into_iter();
        requests
            .filter_map(|root| self.take((trace, root)))
            .collect()
    }

    /// What there is of one request that was not told, by the engine's id. It is forgotten.
    pub fn take_rid(&mut self, rid: &str) -> Option<Told> {
        let key = *self.rids.get(rid)?;
        self.take(key)
    }

    /// Forgets what came before that. How many requests that were not told this were.
    pub fn expire(&mut self, before: Stamp) -> usize {
        let mut gone = 0;
        while self.made.front().is_some_and(|(made, _)| *made < before) {
            gone += usize::from(self.forget_oldest());
        }
        gone
    }

    /// Spans of requests, schedulers and routers that are held.
    pub fn len(&self) -> usize {
        self.requests.len() + self.shares.len() + self.routers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Requests that were not told and had to go for others, since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    fn request(&mut self, key: Key, now: Stamp) -> &mut Request {
        self.requests.entry(key).or_insert_with(|| {
            self.made.push_back((now, Entry::Request(key)));
            self.traces.entry(key.0).or_default().requests.push(key.1);
            Request {
                made: now,
                root: None,
                shares: Vec::new(),
                told: None,
            }
        })
    }

    fn share(&mut self, key: Key, now: Stamp) -> &mut Share {
        self.shares.entry(key).or_insert_with(|| {
            self.made.push_back((now, Entry::Share(key)));
            self.traces.entry(key.0).or_default().shares.push(key.1);
            Share {
                made: now,
                scheduler: None,
                processed: None,
                waiting: None,
                prefill: None,
                retractions: 0,
            }
        })
    }

    /// Tells a request if all that is needed has come, and keeps what a router's span may ask for.
    fn complete(&mut self, key: Key) -> Option<Told> {
        let request = self.requests.get(&key)?;
        let (None, Some(_)) = (&request.told, &request.root) else {
            return None;
        };
        let shares = request.shares.iter();
        let mut shares = shares.filter_map(|id| self.shares.get(&(key.0, *id)));
        if !shares.any(Share::is_whole) {
            return None;
        }
        let told = self.tell(key)?;
        self.forget_parts(key);
        if let Some(request) = self.requests.get_mut(&key)
            && told.request_id.is_none()
        {
            request.told = Some(Box::new(told.clone()));
        } else {
            self.remove_request(key);
        }
        Some(told)
    }

    /// A router's span came: the requests below it that were told before.
    fn named(&mut self, router: Key, request_id: &str) -> Vec<Told> {
        let of = self.traces.get(&router.0);
        let requests = of.map(|of| of.requests.clone()).unwrap_or_default();
        let mut named = Vec::new();
        for root in requests {
            let key = (router.0, root);
            let Some(request) = self.requests.get(&key) else {
                continue;
            };
            let parent = request.root.as_ref().map(|root| root.parent);
            if let (true, Some(told)) = (parent == Some(router.1), &request.told) {
                let mut told = Told::clone(told);
                told.request_id = Some(request_id.into());
                named.push(told);
                self.remove_request(key);
            }
        }
        named
    }

    /// Gives a request without a scheduler the one that was at work meanwhile.
    fn adopt(&mut self, key: Key, id: u64) {
        let share = self.shares.get(&(key.0, id));
        let (Some(request), Some(share)) = (self.requests.get_mut(&key), share) else {
            return;
        };
        let (Some(root), Some((start, _))) = (&request.root, share.waiting) else {
            return;
        };
        if request.shares.is_empty() && (root.start..=root.end).contains(&start) {
            request.shares.push(id);
        }
    }

    fn take(&mut self, key: Key) -> Option<Told> {
        let request = self.requests.get(&key)?;
        if request.told.is_some() {
            return None;
        }
        let told = self.tell(key);
        self.forget_parts(key);
        self.remove_request(key);
        told
    }

    /// What there is of a request; `None` where that is nothing.
    fn tell(&self, key: Key) -> Option<Told> {
        let request = self.requests.get(&key)?;
        let mut told = nothing(key.0);
        let shares = request.shares.iter();
        let shares = shares.filter_map(|id| self.shares.get(&(key.0, *id)));
        let lowest = shares.min_by_key(|share| (!share.is_whole(), share.rank()));
        if let Some(share) = lowest {
            share.tell(&mut told);
        }
        if let Some(root) = &request.root {
            let says = &root.says;
            told.rid = says.rid.as_deref().map(Into::into);
            told.parent = Some(root.parent).filter(|id| *id != 0);
            told.received = Some(root.start);
            told.finished = Some(root.end);
            told.first_token = says
                .first_token_nanos
                .map(|nanos| root.start.plus_nanos(nanos));
            told.prompt_tokens = says.prompt_tokens;
            told.cached_tokens = says.cached_tokens;
            told.output_tokens = says.output_tokens;
            let router = self.routers.get(&(key.0, root.parent));
            told.request_id = router.map(|router| router.request_id.to_string());
        }
        Some(told)
    }

    /// Of a request that is told.
    fn forget_parts(&mut self, key: Key) {
        let Some(request) = self.requests.get_mut(&key) else {
            return;
        };
        let shares = std::mem::take(&mut request.shares);
        let rid = request.root.as_ref().and_then(|root| root.says.rid.clone());
        for share in shares {
            self.remove_share((key.0, share));
        }
        if let Some(rid) = rid
            && self.rids.get(&rid) == Some(&key)
        {
            self.rids.remove(&rid);
        }
    }

    fn remove_request(&mut self, key: Key) {
        self.requests.remove(&key);
        self.remove_from_trace(key, |trace| &mut trace.requests);
    }

    fn remove_share(&mut self, key: Key) -> Option<Share> {
        let share = self.shares.remove(&key);
        self.remove_from_trace(key, |trace| &mut trace.shares);
        share
    }

    fn remove_from_trace(&mut self, key: Key, list: fn(&mut Trace) -> &mut Vec<u64>) {
        let Some(trace) = self.traces.get_mut(&key.0) else {
            return;
        };
        list(trace).retain(|id| *id != key.1);
        if trace.requests.is_empty() && trace.shares.is_empty() {
            self.traces.remove(&key.0);
        }
    }

    fn bound(&mut self) {
        while self.made.len() > self.most {
            self.evicted += u64::from(self.forget_oldest());
        }
    }

    /// Whether it was a request that was not told.
    fn forget_oldest(&mut self) -> bool {
        let Some((made, entry)) = self.made.pop_front() else {
            return false;
        };
        match entry {
            Entry::Request(key) if self.requests.get(&key).is_some_and(|r| r.made == made) => {
                let is_told = self.requests.get(&key).is_some_and(|r| r.told.is_some());
                self.forget_parts(key);
                self.remove_request(key);
                !is_told
            }
            Entry::Share(key) if self.shares.get(&key).is_some_and(|s| s.made == made) => {
                self.remove_share(key);
                false
            }
            Entry::Router(key) if self.routers.get(&key).is_some_and(|r| r.made == made) => {
                self.routers.remove(&key);
                false
            }
            _ => false,
        }
    }
}

impl Share {
    fn stage(&mut self, part: &Part, start: Stamp, end: Stamp) {
        // A retracted request goes through them again: the first counts.
        let first = |known: Option<(Stamp, Stamp)>| match known {
            Some(known) if known.0 <= start => Some(known),
            _ => Some((start, end)),
        };
        match part {
            Part::Process => self.processed = Some(end),
            Part::Waiting => self.waiting = first(self.waiting),
            Part::Prefill { retractions } => {
                self.prefill = first(self.prefill);
                self.retractions = self.retractions.saturating_add(*retractions);
            }
            Part::Root(_) | Part::Scheduler(_) | Part::Router { .. } => {}
        }
    }

    /// Tensor- and pipeline-parallel ranks; that of the lowest is the clock of the server.
    fn rank(&self) -> (u64, u64) {
        let rank = |rank: Option<u64>| rank.unwrap_or(0);
        let ranks = |served: Served| (rank(served.says.pp_rank), rank(served.says.tp_rank));
        self.scheduler.map_or((u64::MAX, u64::MAX), ranks)
    }

    /// Whether all has come that is needed of this scheduler, and there is no lower one.
    fn is_whole(&self) -> bool {
        let Some(Served {
            says: scheduler, ..
        }) = self.scheduler
        else {
            return false;
        };
        let (pp, tp) = self.rank();
        // Each data-parallel rank has tensor-parallel ranks of its own, which may not begin with 0.
        let is_lowest = pp == 0 && (tp == 0 || scheduler.dp_rank.is_some_and(|rank| rank > 0));
        let is_cut_short = scheduler.is_cut_short && self.processed.is_some();
        is_lowest && (is_cut_short || (self.waiting.is_some() && self.prefill.is_some()))
    }

    fn tell(&self, told: &mut Told) {
        told.queue_start = self.waiting.map(|(start, _)| start).or(self.processed);
        told.queue_end = self.waiting.map(|(_, end)| end);
        told.prefill_end = self.prefill.map(|(_, end)| end);
        let Some(served) = self.scheduler else {
            return;
        };
        let scheduler = served.says;
        // An abort ends what is open at the very moment it ends the scheduler's span: prefill was not done.
        if told.prefill_end == Some(served.end) {
            told.prefill_end = None;
        }
        let retractions = scheduler.retractions.saturating_add(self.retractions);
        told.num_retractions = Some(u64::from(retractions));
        told.dp_rank = scheduler.dp_rank;
        // The later times in the queue are not in the trace.
        told.queue_nanos = self
            .waiting
            .filter(|_| retractions == 0)
            .map(|(start, end)| end.nanos_since(start));
    }
}

fn nothing(trace: u128) -> Told {
    Told {
        trace: Some(trace),
        ..Told::of(TimingSource::Trace)
    }
}
