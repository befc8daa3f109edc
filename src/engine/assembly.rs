//! Puts the spans of a request together, in whatever order and batches they come; pure.
//!
//! A request is the root span. A scheduler's span names it as its parent, and the stages name the scheduler's: each of
//! them may come first. Of several schedulers (tensor- and pipeline-parallel ranks) the lowest rank is heard. One trace
//! may hold several requests: choices of `n > 1`, retries, or whatever else a client put into it.

use std::collections::hash_map::Entry as Place;
use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::clock::{NANOS, Stamp};
use crate::request::sequence::TimingSource;
use crate::request::told::Told;

use super::span::{EngineSpan, Part, Root};

mod share;

use share::{Served, Share};

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
    /// Requests and routers' spans in the order they came, whether still there or not.
    ended: VecDeque<(Stamp, Entry)>,
    /// The same of what schedulers did.
    running: VecDeque<(Stamp, Entry)>,
    /// When the last entry was made: no two are made at the same time.
    last: Stamp,
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
    requests: BTreeSet<u64>,
    shares: BTreeSet<u64>,
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

#[derive(Debug)]
struct Router {
    made: Stamp,
    request_id: Box<str>,
}

/// How long what has ended is kept, nanoseconds: the rest of it comes within seconds, or is lost.
const KEPT: i64 = 30 * NANOS;
/// Entries of what is gone that may stand in the order.
const SPARE: usize = 64;
/// Schedulers of a request that are heard: its tensor- and pipeline-parallel ranks.
const RANKS: usize = 256;
/// Requests or schedulers of a trace among which one is looked for. Where more are, none is beyond doubt.
const ALIKE: usize = 256;

impl Assembly {
    /// Holds so many spans of requests, schedulers and routers at most; beyond it the oldest go.
    pub fn new(most_spans: usize) -> Assembly {
        Assembly {
            requests: HashMap::new(),
            shares: HashMap::new(),
            routers: HashMap::new(),
            traces: HashMap::new(),
            rids: HashMap::new(),
            ended: VecDeque::new(),
            running: VecDeque::new(),
            last: Stamp::from_nanos(i64::MIN),
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
                    let root = &mut self.request(key, now).root;
                    // A second one under the same id is no engine's.
                    if root.is_none() {
                        let rid = says.rid.clone();
                        *root = Some(Whole {
                            parent: span.parent,
                            start: span.start,
                            end: span.end,
                            says,
                        });
                        self.rids.extend(rid.map(|rid| (rid, key)));
                        touched.push(key);
                    }
                }
                Part::Router { request_id } => {
                    let made = self.made(now);
                    if let Place::Vacant(place) = self.routers.entry(key) {
                        let request_id =
                            place.insert(Router { made, request_id }).request_id.clone();
                        self.ended.push_back((made, Entry::Router(key)));
                        told.extend(self.named(key, &request_id));
                    }
                }
                Part::Scheduler(says) => {
                    let shares = &mut self.request(above, now).shares;
                    let is_known = shares.contains(&span.id);
                    if !is_known && shares.len() >= RANKS {
                        continue;
                    }
                    if !is_known {
                        shares.push(span.id);
                    }
                    self.share(key, now).scheduler = Some(Served {
                        root: span.parent,
                        end: span.end,
                        says,
                    });
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
        self.bound(now);
        told
    }

    /// What there is of the requests of a trace that have ended, complete or not, but for those that were told. They are
    /// forgotten. Nothing of a trace that holds very many.
    pub fn take_trace(&mut self, trace: u128) -> Vec<Told> {
        let Some(of) = self.traces.get(&trace).filter(|of| !of.is_crowded()) else {
            return Vec::new();
        };
        let requests: Vec<u64> = of.requests.iter().copied().collect();
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

    /// Forgets what came before that; what has ended is forgotten after half a minute anyway. Gives how many requests that
    /// were not told this were.
    pub fn expire(&mut self, before: Stamp) -> usize {
        let mut gone = 0;
        while self.oldest().is_some_and(|made| made < before) {
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

    /// Requests that were not told and are forgotten, since the start: they lacked something for too long after their end,
    /// or had to go for others.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// When something that came at `now` was made: a nanosecond after what was made before, at the earliest.
    fn made(&mut self, now: Stamp) -> Stamp {
        self.last = now.max(self.last.plus_nanos(1));
        self.last
    }

    fn request(&mut self, key: Key, now: Stamp) -> &mut Request {
        let made = self.made(now);
        self.requests.entry(key).or_insert_with(|| {
            self.ended.push_back((made, Entry::Request(key)));
            self.traces.entry(key.0).or_default().requests.insert(key.1);
            Request {
                made,
                root: None,
                shares: Vec::new(),
                told: None,
            }
        })
    }

    fn share(&mut self, key: Key, now: Stamp) -> &mut Share {
        let made = self.made(now);
        self.shares.entry(key).or_insert_with(|| {
            self.running.push_back((made, Entry::Share(key)));
            self.traces.entry(key.0).or_default().shares.insert(key.1);
            Share::new(made)
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
        let of = self.traces.get(&router.0).filter(|of| !of.is_crowded());
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

    fn remove_from_trace(&mut self, key: Key, list: fn(&mut Trace) -> &mut BTreeSet<u64>) {
        let Some(trace) = self.traces.get_mut(&key.0) else {
            return;
        };
        list(trace).remove(&key.1);
        if trace.requests.is_empty() && trace.shares.is_empty() {
            self.traces.remove(&key.0);
        }
    }

    fn bound(&mut self, now: Stamp) {
        let before = now.plus_nanos(-KEPT);
        while self.ended.front().is_some_and(|(made, _)| *made < before) {
            let oldest = self.ended.pop_front();
            self.evicted += u64::from(self.forget(oldest));
        }
        while self.len() > self.most {
            self.evicted += u64::from(self.forget_oldest());
        }
        // Most are gone long before the oldest of them.
        if self.running.len() + self.ended.len() > 2 * self.len() + SPARE {
            let mut orders = [
                std::mem::take(&mut self.ended),
                std::mem::take(&mut self.running),
            ];
            for order in &mut orders {
                order.retain(|(made, entry)| self.is_there(*made, *entry));
            }
            [self.ended, self.running] = orders;
        }
    }

    /// Whether this is still the entry that was made then.
    fn is_there(&self, made: Stamp, entry: Entry) -> bool {
        let since = match entry {
            Entry::Request(key) => self.requests.get(&key).map(|request| request.made),
            Entry::Share(key) => self.shares.get(&key).map(|share| share.made),
            Entry::Router(key) => self.routers.get(&key).map(|router| router.made),
        };
        since == Some(made)
    }

    fn oldest(&self) -> Option<Stamp> {
        let fronts = [self.ended.front(), self.running.front()];
        fronts.into_iter().flatten().map(|(made, _)| *made).min()
    }

    /// Whether it was a request that was not told.
    fn forget_oldest(&mut self) -> bool {
        let ended = self.ended.front().map(|(made, _)| *made);
        let oldest = match self.running.front() {
            Some((made, _)) if ended.is_none_or(|ended| *made < ended) => self.running.pop_front(),
            _ => self.ended.pop_front(),
        };
        self.forget(oldest)
    }

    fn forget(&mut self, oldest: Option<(Stamp, Entry)>) -> bool {
        let Some((made, entry)) = oldest else {
            return false;
        };
        if !self.is_there(made, entry) {
            return false;
        }
        match entry {
            Entry::Request(key) => {
                let is_told = self.requests.get(&key).is_some_and(|r| r.told.is_some());
                self.forget_parts(key);
                self.remove_request(key);
                !is_told
            }
            Entry::Share(key) => {
                self.remove_share(key);
                false
            }
            Entry::Router(key) => {
                self.routers.remove(&key);
                false
            }
        }
    }
}

impl Trace {
    /// Whether looking for one would cost too much.
    fn is_crowded(&self) -> bool {
        self.requests.len().max(self.shares.len()) > ALIKE
    }
}

fn nothing(trace: u128) -> Told {
    Told {
        trace: Some(trace),
        ..Told::of(TimingSource::Trace)
    }
}

#[cfg(test)]
mod tests;
