//! Requests that have ended and wait for what the engine tells of them. Pure: time is handed in.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::clock::{NANOS, Stamp};
use crate::request::record::Record;
use crate::request::sequence::TimingSource;
use crate::request::told::Told;
use crate::telemetry::prometheus::Join;

use super::fifo::Fifo;
use super::join::{
    Ended, Match, Whose, is_random, is_sure, join, join_last, trace_number, we_left,
};
use super::span::EngineSpan;
use super::spans::Spans;

/// Rows that wait, and what was told and not taken. Both are bounded.
#[derive(Debug)]
pub struct Table {
    /// Requests that may wait.
    most: usize,
    next: u64,
    waiting: BTreeMap<Ticket, Ended>,
    /// Those with a row of this engine id.
    by_rid: HashMap<String, Vec<Ticket>>,
    spans: Spans,
    /// Rows that have gone out of late, to tell what comes late or again from what is of a later request with the same id.
    gone: Fifo<Box<str>, Gone>,
    /// Traces and engine ids of which something came since it was last looked.
    traces: BTreeSet<u128>,
    rids: BTreeSet<String>,
}

/// When a request is to go out at the latest, and its number.
type Ticket = (Stamp, u64);

/// A row that has gone out.
#[derive(Debug)]
struct Gone {
    /// The trace of its spans.
    trace: Option<u128>,
    /// The span above them, where that is known.
    parent: Option<u64>,
    was_told: bool,
    /// A line of the log may still come.
    awaits_line: bool,
}

/// A request that goes out, with what was told of its rows.
#[derive(Debug)]
pub struct Joined {
    /// The request.
    pub of: Ended,
    /// What was told of which of its rows.
    pub found: Vec<Match>,
}

/// Spans that a request has, and what they are found by.
const SPANS_EACH: usize = 8;
/// Rows that are remembered when they have gone out, and of each engine id.
const GONE: usize = 4096;
const GONE_OF_ID: usize = 4;
/// A line of the log comes within so much after its row went out, or is another's.
const LINE: i64 = 5 * NANOS;

impl Table {
    /// An empty one for `most` requests that wait.
    pub fn new(most: usize) -> Table {
        Table {
            most,
            next: 0,
            waiting: BTreeMap::new(),
            by_rid: HashMap::new(),
            spans: Spans::new(most.saturating_mul(SPANS_EACH)),
            gone: Fifo::new(GONE),
            traces: BTreeSet::new(),
            rids: BTreeSet::new(),
        }
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A request has ended and may wait until `deadline`. Gives it back if all has been told.
    ///
    /// # Errors
    /// Its rows, when there is no room.
    pub fn ended(&mut self, ended: Ended, deadline: Stamp) -> Result<Option<Joined>, Vec<Record>> {
        if self.waiting.len() >= self.most {
            return Err(ended.rows);
        }
        let found = join(&ended, &self.spans, false);
        if ended.is_whole(&found) {
            let now = ended.at;
            return Ok(Some(self.out(ended, found, now)));
        }
        let ticket = (deadline, self.next);
        self.next += 1;
        for rid in rids(&ended.rows) {
            self.by_rid.entry(rid.to_owned()).or_default().push(ticket);
        }
        self.waiting.insert(ticket, ended);
        Ok(None)
    }

    /// A span came. Says if its row has gone out.
    pub fn span(&mut self, span: EngineSpan, now: Stamp) -> Option<Join> {
        self.traces.insert(span.trace);
        let report = self.spans.add(span, now)?;
        let late = self.late(&report.told, now)?;
        self.spans.take(&report);
        Some(late)
    }

    /// A line of the log came. Says if its row has gone out.
    pub fn line(&mut self, told: Told, now: Stamp) -> Option<Join> {
        let late = self.late(&told, now);
        if late.is_none() {
            self.rids.extend(told.rid.clone());
            self.spans.add_line(told, now);
        }
        late
    }

    /// Requests of which all has been told by now.
    pub fn whole(&mut self) -> Vec<Joined> {
        let mut rids = std::mem::take(&mut self.rids);
        for trace in std::mem::take(&mut self.traces) {
            rids.extend(self.spans.rids(trace).map(str::to_owned));
        }
        let tickets = rids.iter().filter_map(|rid| self.by_rid.get(rid)).flatten();
        let tickets: BTreeSet<Ticket> = tickets.copied().collect();
        let mut tickets: Vec<(Whose, Ticket)> = tickets
            .into_iter()
            .filter_map(|ticket| Some((self.found(ticket)?.iter().map(|of| of.by).max()?, ticket)))
            .collect();
        // Who is surest takes first.
        tickets.sort_unstable();
        let whole = tickets.into_iter().filter_map(|(_, ticket)| {
            let found = self.found(ticket)?;
            let ended = self.leave(ticket)?;
            let now = found.iter().map(|of| of.report.came).max()?;
            Some(self.out(ended, found, now))
        });
        whole.collect()
    }

    /// The requests whose time is over by `now`, with what there is of them.
    pub fn due(&mut self, now: Stamp) -> Vec<Joined> {
        let mut out = Vec::new();
        while let Some((ticket, _)) = self
            .waiting
            .first_key_value()
            .filter(|((at, _), _)| *at <= now)
            && let ticket = *ticket
            && let Some(ended) = self.leave(ticket)
        {
            let is_alone =
                |rid: &str| !self.by_rid.contains_key(rid) && self.gone.get(rid).is_empty();
            let found = join_last(&ended, &self.spans, is_alone);
            out.push(self.out(ended, found, now));
        }
        out
    }

    /// Forgets what was told of rows that do not come. Gives how many requests were forgotten.
    pub fn forget(&mut self, now: Stamp) -> usize {
        self.gone.bound(now, |_| false);
        self.spans.forget(now)
    }

    /// What was told of a request that waits, if that is all.
    fn found(&self, ticket: Ticket) -> Option<Vec<Match>> {
        let ended = self.waiting.get(&ticket)?;
        let found = join(ended, &self.spans, false);
        ended.is_whole(&found).then_some(found)
    }

    fn leave(&mut self, ticket: Ticket) -> Option<Ended> {
        let ended = self.waiting.remove(&ticket)?;
        for rid in rids(&ended.rows) {
            if let Some(tickets) = self.by_rid.get_mut(rid) {
                tickets.retain(|own| *own != ticket);
                if tickets.is_empty() {
                    self.by_rid.remove(rid);
                }
            }
        }
        Some(ended)
    }

    /// A request goes out.
    fn out(&mut self, of: Ended, found: Vec<Match>, now: Stamp) -> Joined {
        found
            .iter()
            .for_each(|found| self.spans.take(&found.report));
        for (row, record) in of.rows.iter().enumerate() {
            let Some(rid) = record.sequence.engine_id.as_deref() else {
                continue;
            };
            let mut own = found
                .iter()
                .filter(|found| found.row == row)
                .map(|found| &found.report.told);
            let by_trace = own.clone().find(|told| told.source == TimingSource::Trace);
            let gone = Gone {
                trace: by_trace.map_or_else(|| trace_number(record), |told| told.trace),
                parent: by_trace.and_then(|told| told.parent),
                was_told: own.clone().next().is_some(),
                awaits_line: !we_left(record) && own.all(|told| told.source != TimingSource::Log),
            };
            self.gone.add(rid.into(), gone, now, GONE_OF_ID);
        }
        Joined { of, found }
    }

    /// What became of something that was told if its row has gone out.
    fn late(&mut self, told: &Told, now: Stamp) -> Option<Join> {
        let rid = told.rid.as_deref()?;
        let mut own = self
            .by_rid
            .get(rid)
            .into_iter()
            .flatten()
            .filter_map(|ticket| self.waiting.get(ticket));
        let waits = |ended: &Ended| {
            let has_line = || {
                join(ended, &self.spans, false)
                    .iter()
                    .any(|of| of.by == Whose::Line)
            };
            // Another line is another request's.
            is_sure(ended, told, now) && (told.source == TimingSource::Trace || !has_line())
        };
        if own.any(waits) {
            return None;
        }
        let all = self.gone.get_mut(rid);
        let last = all.last()?.value.was_told;
        let was_told = if told.source == TimingSource::Log {
            let is_near = |at: Stamp| now.nanos_since(at) <= LINE;
            let mut awaiting = all
                .iter_mut()
                .filter(|gone| gone.value.awaits_line && is_near(gone.came));
            awaiting.next()?.value.awaits_line = false;
            last
        } else {
            let is_of = |gone: &&Gone| {
                gone.trace == told.trace && (gone.parent.is_none() || gone.parent == told.parent)
            };
            let known = all
                .iter()
                .map(|gone| &gone.value)
                .find(is_of)
                .map(|gone| gone.was_told);
            // A router began a trace of its own.
            known.or_else(|| (!last && is_random(rid)).then_some(false))?
        };
        Some(if was_told { Join::Again } else { Join::Late })
    }
}

fn rids(rows: &[Record]) -> impl Iterator<Item = &str> {
    rows.iter()
        .filter_map(|row| row.sequence.engine_id.as_deref())
}

#[cfg(test)]
mod tests;
