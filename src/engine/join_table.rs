//! Ended requests that wait for the engine's reports. Pure: time is handed in.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::clock::Stamp;
use crate::request::engine_report::EngineReport;
use crate::request::row::Row;

use super::bounded_multimap::BoundedMultimap;
use super::join::{EndedRequest, Match, MatchStrength, is_random, join, join_last};
use super::report_store::ReportStore;
use super::span::EngineSpan;

/// The requests that wait, and the reports that none has claimed. Both are bounded.
#[derive(Debug)]
pub struct JoinTable {
    /// The maximum number of waiting requests.
    capacity: usize,
    next_number: u64,
    waiting: BTreeMap<Ticket, EndedRequest>,
    /// The waiting requests that have a row with this engine id.
    by_rid: HashMap<String, Vec<Ticket>>,
    store: ReportStore,
    /// Engine ids of the rows released recently, and whether any report was joined.
    released: BoundedMultimap<Box<str>, bool>,
    /// Traces and engine ids with arrivals since the last [`JoinTable::take_complete`].
    new_traces: BTreeSet<u128>,
    new_rids: BTreeSet<String>,
}

/// A waiting request's deadline and number.
type Ticket = (Stamp, u64);

/// A request that waits no longer, with the reports of its rows.
#[derive(Debug)]
pub struct Joined {
    /// The request.
    pub request: EndedRequest,
    /// The reports, each with its row.
    pub matches: Vec<Match>,
}

impl Joined {
    /// A request without any report.
    pub fn without(request: EndedRequest) -> Joined {
        Joined {
            request,
            matches: Vec::new(),
        }
    }
}

/// Items of the store for each waiting request: its spans and what they are found by.
const ITEMS_PER_REQUEST: usize = 8;
/// Released rows that are remembered.
const MAX_RELEASED: usize = 4096;

impl JoinTable {
    /// Creates an empty table for at most `capacity` waiting requests.
    pub fn new(capacity: usize) -> JoinTable {
        JoinTable {
            capacity,
            next_number: 0,
            waiting: BTreeMap::new(),
            by_rid: HashMap::new(),
            store: ReportStore::new(capacity.saturating_mul(ITEMS_PER_REQUEST)),
            released: BoundedMultimap::new(MAX_RELEASED),
            new_traces: BTreeSet::new(),
            new_rids: BTreeSet::new(),
        }
    }

    /// Returns the number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Adds an ended request that may wait until `deadline`. Returns it at once if all of its rows are reported.
    ///
    /// # Errors
    /// Its rows, if the table is full.
    pub fn add_request(
        &mut self,
        request: EndedRequest,
        deadline: Stamp,
    ) -> Result<Option<Joined>, Vec<Row>> {
        if self.waiting.len() >= self.capacity {
            return Err(request.rows);
        }
        let matches = join(&request, &self.store, false);
        if request.is_complete(&matches) {
            let now = request.at;
            return Ok(Some(self.release(request, matches, now)));
        }
        let ticket = (deadline, self.next_number);
        self.next_number += 1;
        for rid in rids(&request.rows) {
            self.by_rid.entry(rid.to_owned()).or_default().push(ticket);
        }
        self.waiting.insert(ticket, request);
        Ok(None)
    }

    /// Adds a span. Returns whether it was too late: its row was released without a report.
    pub fn add_span(&mut self, span: EngineSpan, now: Stamp) -> bool {
        self.new_traces.insert(span.trace);
        let Some(root) = self.store.add(span, now) else {
            return false;
        };
        let was_reported = self.was_reported(root.report.rid.as_deref());
        if was_reported.is_some() {
            self.store.remove(&root);
        }
        was_reported == Some(false)
    }

    /// Adds a log line. Returns whether it was too late, as [`JoinTable::add_span`].
    pub fn add_log_line(&mut self, report: EngineReport, now: Stamp) -> bool {
        let was_reported = self.was_reported(report.rid.as_deref());
        if was_reported.is_none() {
            self.new_rids.extend(report.rid.clone());
            self.store.add_log_line(report, now);
        }
        was_reported == Some(false)
    }

    /// Removes and returns the requests whose rows are all reported by now.
    pub fn take_complete(&mut self) -> Vec<Joined> {
        let mut rids = std::mem::take(&mut self.new_rids);
        for trace in std::mem::take(&mut self.new_traces) {
            rids.extend(self.store.rids(trace).map(str::to_owned));
        }
        let tickets = rids.iter().filter_map(|rid| self.by_rid.get(rid)).flatten();
        let tickets: BTreeSet<Ticket> = tickets.copied().collect();
        let weakest = |ticket| {
            let matches = self.complete_matches(ticket)?;
            Some((matches.iter().map(|of| of.strength).max()?, ticket))
        };
        let mut tickets: Vec<(MatchStrength, Ticket)> =
            tickets.into_iter().filter_map(weakest).collect();
        // The strongest claims come first.
        tickets.sort_unstable();
        let complete = tickets.into_iter().filter_map(|(_, ticket)| {
            let matches = self.complete_matches(ticket)?;
            let ended = self.remove(ticket)?;
            let now = matches.iter().map(|of| of.candidate.arrived).max()?;
            Some(self.release(ended, matches, now))
        });
        complete.collect()
    }

    /// Removes and returns the requests whose deadline has passed by `now`, with the reports that there are.
    pub fn take_due(&mut self, now: Stamp) -> Vec<Joined> {
        let mut due = Vec::new();
        while let Some((ticket, _)) = self
            .waiting
            .first_key_value()
            .filter(|((deadline, _), _)| *deadline <= now)
            && let ticket = *ticket
            && let Some(ended) = self.remove(ticket)
        {
            let is_only =
                |rid: &str| !self.by_rid.contains_key(rid) && self.released.get(rid).is_empty();
            let matches = join_last(&ended, &self.store, is_only);
            due.push(self.release(ended, matches, now));
        }
        due
    }

    /// Drops old reports that no row has claimed. Returns the number of requests dropped.
    pub fn forget(&mut self, now: Stamp) -> usize {
        self.released.evict(now, |_, _| true);
        self.store.forget(now)
    }

    /// Returns the matches of a waiting request if all of its rows are reported.
    fn complete_matches(&self, ticket: Ticket) -> Option<Vec<Match>> {
        let ended = self.waiting.get(&ticket)?;
        let matches = join(ended, &self.store, false);
        ended.is_complete(&matches).then_some(matches)
    }

    fn remove(&mut self, ticket: Ticket) -> Option<EndedRequest> {
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

    /// Removes the request's reports from the store, and remembers its engine ids.
    fn release(&mut self, request: EndedRequest, matches: Vec<Match>, now: Stamp) -> Joined {
        for of in &matches {
            self.store.remove(&of.candidate);
        }
        for (index, row) in request.rows.iter().enumerate() {
            if let Some(rid) = row.engine_id.as_deref() {
                let was_reported = matches.iter().any(|of| of.row == index);
                self.released.add(rid.into(), was_reported, now, 1);
            }
        }
        Joined { request, matches }
    }

    /// Returns whether the row with this engine id was released with a report; `None` if none was released, or if a client may
    /// use the id again.
    fn was_reported(&self, rid: Option<&str>) -> Option<bool> {
        let rid = rid.filter(|rid| is_random(rid) && !self.by_rid.contains_key(*rid))?;
        self.released.get(rid).last().map(|entry| entry.value)
    }
}

fn rids(rows: &[Row]) -> impl Iterator<Item = &str> {
    rows.iter().filter_map(|row| row.engine_id.as_deref())
}

#[cfg(test)]
mod tests;
