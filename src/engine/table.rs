//! Requests that have ended and wait for what the engine tells of them. Pure: time is handed in.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::clock::Stamp;
use crate::request::engine_report::Told;
use crate::request::row::Row;

use super::fifo::Fifo;
use super::join::{Ended, Match, Whose, is_random, join, join_last};
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
    /// Engine ids of rows that have gone out of late, and whether anything was told of them.
    gone: Fifo<Box<str>, bool>,
    /// Traces and engine ids of which something came since it was last looked.
    traces: BTreeSet<u128>,
    rids: BTreeSet<String>,
}

/// When a request is to go out at the latest, and its number.
type Ticket = (Stamp, u64);

/// A request that goes out, with what was told of its rows.
#[derive(Debug)]
pub struct Joined {
    /// The request.
    pub of: Ended,
    /// What was told of which of its rows.
    pub found: Vec<Match>,
}

impl Joined {
    /// A request of which nothing is told.
    pub fn without(of: Ended) -> Joined {
        let found = Vec::new();
        Joined { of, found }
    }
}

/// Spans that a request has, and what they are found by.
const SPANS_EACH: usize = 8;
/// Rows that are remembered when they have gone out.
const GONE: usize = 4096;

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
    pub fn ended(&mut self, ended: Ended, deadline: Stamp) -> Result<Option<Joined>, Vec<Row>> {
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

    /// A span came. Says whether it came too late: its row has gone out with nothing.
    pub fn span(&mut self, span: EngineSpan, now: Stamp) -> bool {
        self.traces.insert(span.trace);
        let Some(report) = self.spans.add(span, now) else {
            return false;
        };
        let was_told = self.has_gone(report.told.rid.as_deref());
        if was_told.is_some() {
            self.spans.take(&report);
        }
        was_told == Some(false)
    }

    /// A line of the log came. Says whether it came too late, as [`Table::span`].
    pub fn line(&mut self, told: Told, now: Stamp) -> bool {
        let was_told = self.has_gone(told.rid.as_deref());
        if was_told.is_none() {
            self.rids.extend(told.rid.clone());
            self.spans.add_line(told, now);
        }
        was_told == Some(false)
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
        self.gone.forget(now, |_, _| true);
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
            if let Some(rid) = record.engine_id.as_deref() {
                let was_told = found.iter().any(|found| found.row == row);
                self.gone.add(rid.into(), was_told, now, 1);
            }
        }
        Joined { of, found }
    }

    /// Whether the row of this engine id has gone out: then, whether anything was told of it. An id that a client may use again
    /// says neither.
    fn has_gone(&self, rid: Option<&str>) -> Option<bool> {
        let rid = rid.filter(|rid| is_random(rid) && !self.by_rid.contains_key(*rid))?;
        self.gone.get(rid).last().map(|gone| gone.value)
    }
}

fn rids(rows: &[Row]) -> impl Iterator<Item = &str> {
    rows.iter().filter_map(|row| row.engine_id.as_deref())
}

#[cfg(test)]
mod tests;
