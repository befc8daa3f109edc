//! Requests that have ended and wait for what the engine tells of them. Pure: time is handed in.
//!
//! An engine's id (rid) names one sequence for good, so it decides where a row has one. A row without (its client left before
//! anything came, its body was not read) takes what its trace holds, if that is one request, best the one that made tokens,
//! and else what has its `x-request-id`. That is known only when its time is over.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::clock::{NANOS, Stamp};
use crate::request::endpoint::Endpoint;
use crate::request::record::Record;
use crate::request::sequence::TimingSource;
use crate::request::told::Told;

/// Rows that wait, and what came before its row. Both are bounded.
#[derive(Debug)]
pub struct Table {
    /// Requests that may wait; and sequences that were told of and whose request has not ended.
    most: usize,
    next: u64,
    waiting: HashMap<u64, Waiting>,
    /// The rows that wait, by the engine's id.
    by_rid: HashMap<String, (u64, usize)>,
    /// When each is to go out at the latest.
    deadlines: BTreeSet<(Stamp, u64)>,
    early: Early,
    gone: Gone,
}

/// A request that goes out, with what was told of its sequences.
#[derive(Debug)]
pub struct Joined {
    /// Its rows.
    pub rows: Vec<Record>,
    /// What was told of which of them.
    pub told: Vec<Match>,
    /// Who was waited for.
    pub wanted: TimingSource,
}

/// What was told of one row.
#[derive(Debug)]
pub struct Match {
    /// The place of the row.
    pub row: usize,
    /// What was told.
    pub told: Told,
    /// By the row's own engine id.
    pub by_rid: bool,
}

/// Where something that was told belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// To a row that waits.
    Joined,
    /// To a row that may come, or to none of ours.
    Early,
    /// To a row that has gone out untold.
    Late,
    /// To a row that has gone out with it, or with what another source told.
    Again,
}

/// What is asked for when a request's time is over: spans that are no whole request yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// Of this engine id.
    Rid(&'a str),
    /// Of this trace.
    Trace(u128),
}

#[derive(Debug)]
struct Waiting {
    joined: Joined,
    deadline: Stamp,
}

/// What was told before its row came, by all that a row may be found by.
#[derive(Debug, Default)]
struct Early {
    next: u64,
    all: HashMap<u64, Told>,
    by_key: HashMap<Key, Vec<u64>>,
    order: VecDeque<(Stamp, u64)>,
    /// Those that were dropped, for their age or for want of room.
    dropped: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Rid(String),
    Trace(u128),
    Request(String),
}

/// Ids of rows that have gone out of late, and whether they were told of.
#[derive(Debug, Default)]
struct Gone {
    rids: HashMap<String, bool>,
    order: VecDeque<String>,
}

/// How long something told is kept for a row that has not come: a client that reads slowly ends its request long after
/// the engine has.
const EARLY: i64 = 300 * NANOS;
/// Of what has the same trace or request id so many are found by it: one request has no more.
const ALIKE: usize = 256;
/// Ids of rows that have gone out that are remembered.
const GONE: usize = 4096;

impl Table {
    /// An empty one for `most` requests that wait.
    pub fn new(most: usize) -> Table {
        Table {
            most,
            next: 0,
            waiting: HashMap::new(),
            by_rid: HashMap::new(),
            deadlines: BTreeSet::new(),
            early: Early::default(),
            gone: Gone::default(),
        }
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// When the next of them is to go out.
    pub fn next_deadline(&self) -> Option<Stamp> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// A request has ended; it may wait for `wanted` until `deadline`. Gives it back if all has been told.
    ///
    /// # Errors
    /// Its rows, when there is no room.
    pub fn ended(
        &mut self,
        rows: Vec<Record>,
        wanted: TimingSource,
        deadline: Stamp,
    ) -> Result<Option<Joined>, Vec<Record>> {
        if self.waiting.len() >= self.most {
            return Err(rows);
        }
        let mut joined = Joined {
            rows,
            told: Vec::new(),
            wanted,
        };
        for row in 0..joined.rows.len() {
            let Some(rid) = joined.rid(row).map(str::to_owned) else {
                continue;
            };
            for told in self.early.take(&Key::Rid(rid)) {
                joined.add(row, told, true);
            }
        }
        if joined.is_whole() {
            self.gone.add(&joined);
            return Ok(Some(joined));
        }
        let key = self.next;
        self.next += 1;
        for row in 0..joined.rows.len() {
            if let Some(rid) = joined.rid(row) {
                self.by_rid.insert(rid.to_owned(), (key, row));
            }
        }
        self.deadlines.insert((deadline, key));
        self.waiting.insert(key, Waiting { joined, deadline });
        Ok(None)
    }

    /// Something was told. Gives the request of which that was all.
    pub fn told(&mut self, told: Told, now: Stamp) -> (Came, Option<Joined>) {
        let place = told.rid.as_ref().and_then(|rid| self.by_rid.get(rid));
        let place = place.copied();
        let waiting = place.and_then(|(key, row)| Some((key, row, self.waiting.get_mut(&key)?)));
        let Some((key, row, waiting)) = waiting else {
            let gone = told.rid.as_ref().and_then(|rid| self.gone.rids.get(rid));
            let came = gone.map(|was_told| if *was_told { Came::Again } else { Came::Late });
            if came.is_none() {
                self.early.add(told, now, self.most);
            }
            return (came.unwrap_or(Came::Early), None);
        };
        waiting.joined.add(row, told, true);
        let is_whole = waiting.joined.is_whole();
        let whole = if is_whole { self.take(key) } else { None };
        whole.iter().for_each(|joined| self.gone.add(joined));
        (Came::Joined, whole)
    }

    /// The requests whose time is over by `now`, with what `late` has of them.
    pub fn due(&mut self, now: Stamp, late: &mut dyn FnMut(Ask<'_>) -> Vec<Told>) -> Vec<Joined> {
        let mut out = Vec::new();
        while let Some((_, key)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            let Some(mut joined) = self.take(*key) else {
                // It has one as long as it waits.
                break;
            };
            self.complete(&mut joined, now, late);
            self.gone.add(&joined);
            out.push(joined);
        }
        out
    }

    /// What was told of rows that have not come is forgotten when it is old. Gives how many were, for their age or for
    /// want of room, since this was last asked.
    pub fn forget(&mut self, now: Stamp) -> usize {
        self.early.forget(now.plus_nanos(-EARLY));
        std::mem::take(&mut self.early.dropped)
    }

    fn take(&mut self, key: u64) -> Option<Joined> {
        let Waiting { joined, deadline } = self.waiting.remove(&key)?;
        self.deadlines.remove(&(deadline, key));
        for row in 0..joined.rows.len() {
            if let Some(rid) = joined.rid(row)
                && self.by_rid.get(rid).is_some_and(|(own, _)| *own == key)
            {
                self.by_rid.remove(rid);
            }
        }
        Some(joined)
    }

    /// Takes what there is besides whole requests under the rows' own ids.
    fn complete(
        &mut self,
        joined: &mut Joined,
        now: Stamp,
        late: &mut dyn FnMut(Ask<'_>) -> Vec<Told>,
    ) {
        for row in 0..joined.rows.len() {
            if joined.has(row) {
                continue;
            }
            let parts = joined.rid(row).map(|rid| late(Ask::Rid(rid)));
            for told in parts.into_iter().flatten() {
                joined.add(row, told, true);
            }
        }
        let is_told = |row: &usize| joined.told.iter().any(|told| told.row == *row);
        let mut untold = (0..joined.rows.len()).filter(|row| !is_told(row));
        let (Some(row), None) = (untold.next(), untold.next()) else {
            return;
        };
        let Some(record) = joined.rows.get(row) else {
            return;
        };
        // A trace that began here is this request's alone; others hold what a client puts into them.
        let is_own = record.facts.parent_span.is_none();
        let trace = trace_of(record);
        let mut found = trace.map(|trace| self.early.take(&Key::Trace(trace)));
        if let (Some(trace), Some(found)) = (trace, &mut found) {
            found.extend(
                is_own
                    .then(|| late(Ask::Trace(trace)))
                    .into_iter()
                    .flatten(),
            );
        }
        let (mut own, mut others) = of_row(record, found.unwrap_or_default(), is_own);
        if own.is_empty() {
            let named = Key::Request(record.facts.req_id.clone());
            let (by_name, rest) = of_row(record, self.early.take(&named), true);
            own = by_name;
            others.extend(rest);
        }
        for told in own {
            joined.add(row, told, false);
        }
        for told in others {
            self.early.add(told, now, self.most);
        }
    }
}

impl Joined {
    /// Nothing was waited for.
    pub fn unasked(rows: Vec<Record>, wanted: TimingSource) -> Joined {
        Joined {
            rows,
            told: Vec::new(),
            wanted,
        }
    }

    fn rid(&self, row: usize) -> Option<&str> {
        self.rows.get(row)?.sequence.engine_id.as_deref()
    }

    /// Whether the wanted source has told of this row.
    fn has(&self, row: usize) -> bool {
        let mut told = self.told.iter();
        told.any(|told| told.row == row && told.told.source == self.wanted)
    }

    fn is_whole(&self) -> bool {
        (0..self.rows.len()).all(|row| self.has(row))
    }

    /// What a source told twice is taken once.
    fn add(&mut self, row: usize, told: Told, by_rid: bool) {
        let is_second = |before: &Match| before.row == row && before.told.source == told.source;
        if !self.told.iter().any(is_second) {
            self.told.push(Match { row, told, by_rid });
        }
    }
}

/// Whether something told under this id may be of the row. Of some endpoints the row's own id is not the engine's.
fn may_be(row: &Record, rid: Option<&str>) -> bool {
    let is_rid = matches!(
        row.facts.endpoint,
        Endpoint::Generate | Endpoint::Completions | Endpoint::Chat
    );
    rid.is_none() || row.sequence.engine_id.is_none() || !is_rid
}

/// The trace of a row. What has an upper half of zeros may be an engine's own number for something else.
fn trace_of(row: &Record) -> Option<u128> {
    let trace = u128::from_str_radix(row.facts.trace_id.as_deref()?, 16).ok()?;
    (trace >> 64 != 0).then_some(trace)
}

/// Of what was found, what is of the row, and the rest: that below our own span where any is (`is_own` says that no other
/// will do), that with tokens where any has some (the others never ran), and only what is beyond doubt.
fn of_row(row: &Record, found: Vec<Told>, is_own: bool) -> (Vec<Told>, Vec<Told>) {
    let span = row.facts.span.map(|span| span.number());
    let is_below = |told: &Told| span.is_some() && told.parent == span;
    let needs = !is_own || found.iter().any(is_below);
    let fits = |told: &Told| (!needs || is_below(told)) && may_be(row, told.rid.as_deref());
    let (mut own, mut rest): (Vec<Told>, Vec<Told>) = found.into_iter().partition(fits);
    let has_tokens = |told: &Told| told.output_tokens.is_some_and(|tokens| tokens > 0);
    if own.iter().any(has_tokens) {
        let (ran, never): (Vec<Told>, Vec<Told>) = own.into_iter().partition(has_tokens);
        own = ran;
        rest.extend(never);
    }
    let first = own.first().and_then(|told| told.rid.clone());
    let is_one = match &first {
        Some(_) => own.iter().all(|told| told.rid == first),
        None => own.len() <= 1,
    };
    if !is_one {
        rest.append(&mut own);
    }
    (own, rest)
}

impl Early {
    fn add(&mut self, told: Told, now: Stamp, most: usize) {
        // Once more, with the name that a router gave it.
        let rid = told.rid.clone().map(Key::Rid);
        let before = rid.and_then(|rid| self.by_key.get(&rid));
        let mut before = before.into_iter().flatten().copied();
        let is_same = |id: &u64| {
            let other = self.all.get(id);
            other.is_some_and(|other| other.source == told.source)
        };
        if let Some(id) = before.find(is_same) {
            self.remove(id);
        }
        while self.all.len() >= most {
            let Some((_, oldest)) = self.order.pop_front() else {
                break;
            };
            self.dropped += usize::from(self.remove(oldest).is_some());
        }
        let id = self.next;
        self.next += 1;
        for key in Key::all(&told) {
            let ids = self.by_key.entry(key).or_default();
            if ids.len() < ALIKE {
                ids.push(id);
            }
        }
        self.order.push_back((now, id));
        self.all.insert(id, told);
        if self.order.len() > 2 * most {
            // Those that were taken left their place.
            self.order.retain(|(_, id)| self.all.contains_key(id));
        }
    }

    fn take(&mut self, key: &Key) -> Vec<Told> {
        let ids = self.by_key.get(key).cloned().unwrap_or_default();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    fn remove(&mut self, id: u64) -> Option<Told> {
        let told = self.all.remove(&id)?;
        for key in Key::all(&told) {
            if let Some(ids) = self.by_key.get_mut(&key) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
        Some(told)
    }

    fn forget(&mut self, before: Stamp) {
        while let Some((_, oldest)) = self.order.front().copied().filter(|(at, _)| *at < before) {
            self.order.pop_front();
            self.dropped += usize::from(self.remove(oldest).is_some());
        }
    }
}

impl Key {
    fn all(told: &Told) -> impl Iterator<Item = Key> {
        let rid = told.rid.clone().map(Key::Rid);
        let trace = told.trace.map(Key::Trace);
        let request = told.request_id.clone().map(Key::Request);
        [rid, trace, request].into_iter().flatten()
    }
}

impl Gone {
    fn add(&mut self, joined: &Joined) {
        for row in 0..joined.rows.len() {
            let Some(rid) = joined.rid(row) else { continue };
            let was_told = joined.told.iter().any(|told| told.row == row);
            if self.rids.insert(rid.to_owned(), was_told).is_none() {
                self.order.push_back(rid.to_owned());
            }
            if self.order.len() > GONE
                && let Some(oldest) = self.order.pop_front()
            {
                self.rids.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests;
