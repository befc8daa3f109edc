//! Ended requests that wait for the engine's reports. Pure: time is handed in.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::Stamp;
use crate::offset::OffsetTable;
use crate::request::{EngineReport, MissingReason, Moment, Row, TimingSource, relate_engine};

use super::bounded_multimap::BoundedMultimap;
use super::join::{EndedRequest, Match, MatchStrength, is_random, join};
use super::otlp::EngineSpan;
use super::report_store::{ENDED_MAX_AGE_NANOS, ReportStore};

/// The requests that wait, and the reports that none has claimed. Both are bounded.
#[derive(Debug)]
pub struct JoinTable {
    /// The maximum number of waiting requests.
    capacity: usize,
    /// The number of the last request or log line.
    last_number: u64,
    waiting: BTreeMap<Ticket, EndedRequest>,
    store: ReportStore,
    /// Engine ids of the rows released recently, and whether any report was joined.
    released: BoundedMultimap<Box<str>, bool>,
    /// Whether anything has been added since the last [`JoinTable::take_ready`].
    has_news: bool,
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

    /// Returns the rows with their reports put in. The reports also bound the offset of the engine's clock.
    pub fn into_rows(self, clocks: &mut OffsetTable) -> Vec<Row> {
        let (request, mut matches) = (self.request, self.matches);
        let mut rows = request.rows;
        // The trace takes precedence over the log.
        matches.sort_by_key(|of| of.candidate.report.source == TimingSource::Log);
        for (row, index) in rows.iter_mut().zip(0..) {
            let mut is_reported = false;
            for of in matches.iter().filter(|of| of.row == index) {
                of.candidate.report.put(row);
                is_reported = true;
            }
            row.internal.missing_reason = match (is_reported, request.expected_source) {
                (true, _) => (!has_server_times(row)).then_some(MissingReason::Incomplete),
                (false, TimingSource::Log) => Some(MissingReason::NoLogLine),
                (false, _) => Some(MissingReason::NoSpans),
            };
        }
        if !matches.is_empty() {
            // A report that may be of an earlier attempt at another server, or of another request with the same id, gives no bound.
            let are_certain = matches.iter().all(|of| of.strength < MatchStrength::Alone);
            relate_engine(&mut rows, clocks, are_certain);
        }
        if let [first, others @ ..] = &mut rows[..] {
            for row in others {
                row.prefill_host.clone_from(&first.prefill_host);
                let worker = &first.internal.prefill_worker;
                row.internal.prefill_worker.clone_from(worker);
            }
        }
        rows
    }
}

/// Whether a row has all that a root span and its stages report: the server's receipt, its queue time and its first token.
fn has_server_times(row: &Row) -> bool {
    let has = |moment| row.timeline.raw(moment).is_some();
    has(Moment::ServerCreated) && row.pure_queue().is_some() && has(Moment::ServerFirstToken)
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
            last_number: 0,
            waiting: BTreeMap::new(),
            store: ReportStore::new(capacity.saturating_mul(ITEMS_PER_REQUEST)),
            released: BoundedMultimap::new(MAX_RELEASED),
            has_news: false,
        }
    }

    /// Returns the number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Adds an ended request.
    ///
    /// # Errors
    /// The request, if the table is full.
    pub fn add_request(&mut self, request: EndedRequest) -> Result<(), EndedRequest> {
        if self.waiting.len() >= self.capacity {
            return Err(request);
        }
        self.has_news = true;
        self.last_number += 1;
        let ticket = (request.deadline, self.last_number);
        self.waiting.insert(ticket, request);
        Ok(())
    }

    /// Adds a span. Returns whether it was too late: its row was released without a report.
    pub fn add_span(&mut self, span: EngineSpan, now: Stamp) -> bool {
        self.has_news = true;
        let rid = span.root().and_then(|root| root.rid.as_deref());
        let was_reported = self.was_reported(rid);
        let (trace, id) = (span.trace, span.id);
        self.store.add(span, now);
        if was_reported.is_some() {
            // With the spans below it, which arrived before.
            self.store.remove_request(trace, id);
        }
        was_reported == Some(false)
    }

    /// Adds a log line. Returns whether it was too late, as [`JoinTable::add_span`].
    pub fn add_log_line(&mut self, report: EngineReport, now: Stamp) -> bool {
        self.last_number += 1;
        self.add_span(EngineSpan::of_log_line(report, self.last_number), now)
    }

    /// Removes and returns the requests whose rows are all reported by `now`, and those whose deadline has passed, with the
    /// reports that there are.
    pub fn take_ready(&mut self, now: Stamp) -> Vec<Joined> {
        let has_news = std::mem::take(&mut self.has_news);
        let waiting = self.waiting.iter().filter(|_| has_news);
        let complete = waiting.filter_map(|(ticket, ended)| {
            let matches = join(ended, &self.store, false);
            ended.is_complete(&matches).then_some((*ticket, matches))
        });
        let mut complete: Vec<(Ticket, Vec<Match>)> = complete.collect();
        // The strongest claims come first. Who else claims the same report waits.
        complete.sort_by_key(|(_, matches)| matches.iter().map(|of| of.strength).max());
        let mut claimed = BTreeSet::new();
        let mut claims = |of: &Match| claimed.insert(of.candidate.origin);
        let found = complete.len();
        complete.retain(|(_, matches)| matches.iter().all(&mut claims));
        // Another report may complete it as well.
        self.has_news = complete.len() < found;
        let mut ready = Vec::new();
        for (ticket, matches) in complete {
            ready.extend(self.release(ticket, matches, now));
        }
        while let Some((ticket, ended)) = self.waiting.first_key_value()
            && ended.deadline <= now
        {
            let matches = join(ended, &self.store, true);
            ready.extend(self.release(*ticket, matches, now));
        }
        ready
    }

    /// Drops old reports that no row has claimed. Returns the source of each request dropped.
    pub fn forget(&mut self, now: Stamp) -> impl Iterator<Item = TimingSource> + use<> {
        self.released.evict(now, |_| ENDED_MAX_AGE_NANOS);
        self.store.forget(now)
    }

    /// Removes a request and its reports, and remembers its engine ids.
    fn release(&mut self, ticket: Ticket, matches: Vec<Match>, now: Stamp) -> Option<Joined> {
        let request = self.waiting.remove(&ticket)?;
        for of in &matches {
            self.store.remove(&of.candidate);
        }
        for (index, row) in request.rows.iter().enumerate() {
            if let Some(rid) = row.engine_id.as_deref() {
                let was_reported = matches.iter().any(|of| of.row == index);
                self.released.add(rid.into(), was_reported, now, 1);
            }
        }
        Some(Joined { request, matches })
    }

    /// Returns whether the row with this engine id was released with a report; `None` if none was released, or if a client may
    /// use the id again.
    fn was_reported(&self, rid: Option<&str>) -> Option<bool> {
        let released = self.released.get(rid.filter(|rid| is_random(rid))?);
        released.last().map(|entry| entry.value)
    }
}

#[cfg(test)]
mod tests;
