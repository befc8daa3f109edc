//! Requests that have ended and wait for what the engine tells of them. Pure: time is handed in.
//!
//! An engine's id (rid) decides where a row has one. SGLang makes it for one sequence, but a client may name its own, and the
//! same twice: so the trace must be the row's too, or a router's span of it names the request. Where neither is so (a router
//! that begins traces of its own) it is taken when the row's time is over, if it is alone. A row without (its client left before
//! anything came, its body was not read) takes what its trace holds, if that is one request, best the one that made tokens,
//! and else what has its `x-request-id`. That is known only when its time is over.

use std::collections::{BTreeSet, HashMap};

use crate::clock::{NANOS, Stamp};
use crate::request::attempt::SpanId;
use crate::request::endpoint::Endpoint;
use crate::request::record::Record;
use crate::request::sequence::TimingSource;
use crate::request::told::Told;

use early::{Early, Found, Key};
use gone::{Gone, Name};
use whose::{Whose, came_after_sending, hop_of, is_below, is_random, number, whose};

pub use whose::we_left;

/// Rows that wait, and what came before its row. Both are bounded.
#[derive(Debug)]
pub struct Table {
    /// Requests that may wait; and sequences that were told of and whose request has not ended.
    most: usize,
    next: u64,
    waiting: HashMap<u64, Waiting>,
    /// The rows that wait, by the engine's id.
    by_rid: HashMap<String, Vec<(u64, usize)>>,
    /// When each is to go out at the latest.
    deadlines: BTreeSet<(Stamp, u64)>,
    early: Early,
    gone: Gone,
    /// The last moment that was handed in.
    now: Stamp,
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
    /// By the row's own engine id and beyond doubt: it bounds the engine's clock.
    pub is_sure: bool,
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

/// How long something told is kept for a row that has not come: a client that reads slowly ends its request long after
/// the engine has.
const EARLY: i64 = 300 * NANOS;
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
            now: Stamp::from_nanos(0),
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
            self.take_own(&mut joined, row);
        }
        if joined.is_whole() {
            self.went(&joined);
            return Ok(Some(joined));
        }
        let key = self.next;
        self.next += 1;
        for row in 0..joined.rows.len() {
            if let Some(rid) = joined.rid(row) {
                let rows = self.by_rid.entry(rid.to_owned()).or_default();
                rows.push((key, row));
            }
        }
        self.deadlines.insert((deadline, key));
        self.waiting.insert(key, Waiting { joined, deadline });
        Ok(None)
    }

    /// Something was told. Gives the request of which that was all.
    pub fn told(&mut self, told: Told, now: Stamp) -> (Came, Option<Joined>) {
        self.now = now;
        self.early.withdraw(&told);
        let place = self.place(&told, now);
        let waiting = place.and_then(|(key, row)| Some((key, row, self.waiting.get_mut(&key)?)));
        let Some((key, row, waiting)) = waiting else {
            let gone = self.gone.was_told(&told, now);
            let came = gone.map(|was_told| if was_told { Came::Again } else { Came::Late });
            if came.is_none() {
                self.early.add((now, told), self.most);
            }
            return (came.unwrap_or(Came::Early), None);
        };
        waiting.joined.add(row, told, true);
        let is_whole = waiting.joined.is_whole();
        let whole = if is_whole { self.take(key) } else { None };
        whole.iter().for_each(|joined| self.went(joined));
        (Came::Joined, whole)
    }

    /// The row that waits and that this is of beyond doubt.
    fn place(&self, told: &Told, now: Stamp) -> Option<(u64, usize)> {
        let places = self.by_rid.get(told.rid.as_ref()?)?.iter();
        let own = places.filter_map(|(key, row)| {
            let joined = &self.waiting.get(key)?.joined;
            let whose = sure(joined.rows.get(*row)?, hop_of(&joined.rows), told, now)?;
            let has = joined.has_of(*row, told.source);
            // Another line is another request's.
            (whose != Whose::Line || !has).then_some(((whose, has), (*key, *row)))
        });
        let first = own.min_by_key(|(rank, _)| *rank);
        first.map(|(_, place)| place)
    }

    /// Takes what came before under a row's own id and is of it beyond doubt.
    fn take_own(&mut self, joined: &mut Joined, row: usize) {
        let (Some(record), Some(rid)) = (joined.rows.get(row), joined.rid(row)) else {
            return;
        };
        let (key, hop) = (Key::Rid(rid.to_owned()), hop_of(&joined.rows));
        let best = [TimingSource::Trace, TimingSource::Log].map(|source| {
            let own = self.early.find(&key).filter_map(|(id, (came, told))| {
                let is_of = told.source == source && !joined.has_of(row, source);
                Some((sure(record, hop, told, *came).filter(|_| is_of)?, id))
            });
            // Lines say nothing of whose they are: the newest.
            match source {
                TimingSource::Log => own.max(),
                _ => own.min(),
            }
        });
        for (_, id) in best.into_iter().flatten() {
            let told = self.early.remove(id);
            told.into_iter()
                .for_each(|(_, told)| joined.add(row, told, true));
        }
    }

    /// Takes what came under a row's own id in another trace, if there is one such request and one such row.
    fn take_alone(&mut self, joined: &mut Joined, row: usize) {
        let (Some(record), Some(rid)) = (joined.rows.get(row), joined.rid(row)) else {
            return;
        };
        if self.by_rid.contains_key(rid) || self.gone.has(rid) {
            return;
        }
        let (is_random, hop) = (is_random(rid), hop_of(&joined.rows));
        let key = Key::Rid(rid.to_owned());
        let mut perhaps = self
            .early
            .find(&key)
            .filter(|(_, (came, told))| whose(record, hop, told, *came) == Some(Whose::Perhaps));
        let (Some((id, _)), None) = (perhaps.next(), perhaps.next()) else {
            return;
        };
        drop(perhaps);
        let told = self.early.remove(id);
        told.into_iter()
            .for_each(|(_, told)| joined.add(row, told, is_random));
    }

    /// Remembers what has gone out.
    fn went(&mut self, joined: &Joined) {
        for (row, record) in joined.rows.iter().enumerate() {
            let Some(rid) = joined.rid(row) else { continue };
            let mut own = joined.told.iter().filter(|told| told.row == row);
            let was_told = own.clone().next().is_some();
            let by_trace = own.find(|told| told.told.source == TimingSource::Trace);
            let name = Name {
                trace: by_trace.map_or_else(|| number(record), |by| by.told.trace),
                parent: by_trace.and_then(|by| by.told.parent),
                was_told,
                has_line: !we_left(record) && !joined.has_of(row, TimingSource::Log),
            };
            self.gone.add(rid, name, self.now);
        }
    }

    /// The requests whose time is over by `now`, with what `late` has of them.
    pub fn due(&mut self, now: Stamp, late: &mut dyn FnMut(Ask<'_>) -> Vec<Told>) -> Vec<Joined> {
        self.now = now;
        let mut out = Vec::new();
        while let Some((_, key)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            let Some(mut joined) = self.take(*key) else {
                // It has one as long as it waits.
                break;
            };
            self.complete(&mut joined, now, late);
            self.went(&joined);
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
                && let Some(rows) = self.by_rid.get_mut(rid)
            {
                rows.retain(|(own, _)| *own != key);
                if rows.is_empty() {
                    self.by_rid.remove(rid);
                }
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
        // A trace that began here is this request's alone, so all of its parts are; others hold what a client puts into them.
        let first = joined.rows.first();
        let is_own = first.is_some_and(|row| row.facts.parent_span.is_none());
        let whole = first.filter(|_| is_own).and_then(trace_of);
        let parts = whole.map(|trace| late(Ask::Trace(trace)));
        let mut parts: Vec<Told> = parts.unwrap_or_default();
        for row in 0..joined.rows.len() {
            let Some(rid) = joined.rid(row).filter(|_| !joined.has(row)) else {
                continue;
            };
            let of_rid = |told: &Told| told.rid.as_deref() == Some(rid);
            let (mine, rest): (Vec<Told>, Vec<Told>) = parts.into_iter().partition(of_rid);
            parts = rest;
            let others = match mine.is_empty() {
                true => late(Ask::Rid(rid)),
                false => Vec::new(),
            };
            for told in mine {
                joined.add(row, told, true);
            }
            for told in others {
                self.early.add((now, told), self.most);
            }
            self.take_own(joined, row);
            if !joined.has(row) {
                self.take_alone(joined, row);
            }
        }
        let parts = parts.into_iter().map(|told| (now, told)).collect();
        self.take_by_trace(joined, parts, is_own);
    }

    /// Takes for the one row that nothing was told of what `parts` and its trace hold, or what its request id names.
    fn take_by_trace(&mut self, joined: &mut Joined, mut parts: Vec<Found>, is_own: bool) {
        let is_told = |row: &usize| joined.told.iter().any(|told| told.row == *row);
        let mut untold = (0..joined.rows.len()).filter(|row| !is_told(row));
        let (Some(row), None) = (untold.next(), untold.next()) else {
            return;
        };
        let Some(record) = joined.rows.get(row) else {
            return;
        };
        let trace = trace_of(record).map(Key::Trace);
        let early = trace.map(|trace| self.early.take(&trace));
        parts.extend(early.into_iter().flatten());
        let hop = hop_of(&joined.rows);
        let (mut own, mut others) = of_row(record, hop, parts, is_own);
        if own.is_empty() {
            let named = Key::Request(record.facts.req_id.clone());
            let (by_name, rest) = of_row(record, hop, self.early.take(&named), true);
            own = by_name;
            others.extend(rest);
        }
        for (_, told) in own {
            joined.add(row, told, false);
        }
        for found in others {
            self.early.add(found, self.most);
        }
    }
}

impl Joined {
    fn rid(&self, row: usize) -> Option<&str> {
        self.rows.get(row)?.sequence.engine_id.as_deref()
    }

    /// Whether the wanted source has told of this row.
    fn has(&self, row: usize) -> bool {
        self.has_of(row, self.wanted)
    }

    fn has_of(&self, row: usize, source: TimingSource) -> bool {
        let mut told = self.told.iter();
        told.any(|told| told.row == row && told.told.source == source)
    }

    fn is_whole(&self) -> bool {
        (0..self.rows.len()).all(|row| self.has(row))
    }

    /// What a source told twice is taken once.
    fn add(&mut self, row: usize, told: Told, is_sure: bool) {
        if !self.has_of(row, told.source) {
            self.told.push(Match { row, told, is_sure });
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
    number(row).filter(|trace| trace >> 64 != 0)
}

/// By what it is the row's beyond doubt.
fn sure(row: &Record, hop: Option<SpanId>, told: &Told, came: Stamp) -> Option<Whose> {
    whose(row, hop, told, came).filter(|whose| *whose != Whose::Perhaps)
}

/// Of what was found, what is of the row, and the rest: that below our own span where any is (`is_own` says that no other
/// will do), that with tokens where any has some (the others never ran), and only what is beyond doubt.
fn of_row(
    row: &Record,
    hop: Option<SpanId>,
    found: Vec<Found>,
    is_own: bool,
) -> (Vec<Found>, Vec<Found>) {
    let below = |(_, told): &Found| is_below(row, hop, told);
    let needs = !is_own || found.iter().any(below);
    let fits = |found: &Found| {
        let (came, told) = found;
        let is_of = below(found) || (!needs && came_after_sending(row, *came));
        is_of && may_be(row, told.rid.as_deref())
    };
    let (mut own, mut rest): (Vec<Found>, Vec<Found>) = found.into_iter().partition(fits);
    let has_tokens = |(_, told): &Found| told.output_tokens.is_some_and(|tokens| tokens > 0);
    if own.iter().any(has_tokens) {
        let (ran, never): (Vec<Found>, Vec<Found>) = own.into_iter().partition(has_tokens);
        own = ran;
        rest.extend(never);
    }
    let first = own.first().and_then(|(_, told)| told.rid.clone());
    let is_one = match &first {
        Some(_) => own.iter().all(|(_, told)| told.rid == first),
        None => own.len() <= 1,
    };
    if !is_one {
        rest.append(&mut own);
    }
    (own, rest)
}

mod early;
mod gone;
#[cfg(test)]
mod tests;
mod whose;
