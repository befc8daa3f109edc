//! Ended requests that wait for the engine's reports, and which report belongs to which row. Pure: time is handed in.
//!
//! If the row has an engine id (rid), that decides. SGLang makes one for each sequence, but a client may choose its own and
//! use it twice. The rules, the strongest first:
//! 1. The same rid, and one of: a span below ours, our request's name in a router's span, our trace, a line of the log.
//! 2. At the deadline, the same rid if only one report has it and the server made it: a router may begin traces of its own.
//! 3. At the deadline, if exactly one row has no report (its client left early, or its body was not read): the same trace,
//!    if that holds one request, preferably one with tokens.
//! 4. Otherwise the same `x-request-id`.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::Stamp;
use crate::offset::OffsetTable;
use crate::request::{
    Endpoint, EngineReport, MissingReason, Moment, Outcome, Row, SpanId, TimingSource,
    relate_engine,
};

use super::bounded_multimap::BoundedMultimap;
use super::otlp::EngineSpan;
use super::report_store::{Candidate, ENDED_MAX_AGE_NANOS, ReportStore};

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

/// A request that has ended and waits for its reports.
#[derive(Debug)]
pub struct EndedRequest {
    /// Its rows.
    pub rows: Vec<Row>,
    /// The source that is expected to report it.
    pub expected_source: TimingSource,
    /// When it ended.
    pub at: Stamp,
    /// How long it may wait at most.
    pub deadline: Stamp,
}

/// A request that waits no longer, with the reports of its rows.
#[derive(Debug)]
pub struct Joined {
    /// The request.
    pub request: EndedRequest,
    /// The reports, each with its row.
    pub matches: Vec<Match>,
}

/// A report matched with a row.
#[derive(Debug)]
pub struct Match {
    /// The index of the row.
    row: usize,
    /// The report.
    pub candidate: Candidate,
    /// How strongly they match.
    strength: MatchStrength,
}

/// How strongly a report matches a row, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MatchStrength {
    /// It lies directly below our own span.
    BelowOurSpan,
    /// A router's span in its trace names our request.
    NamedByRouter,
    /// It is in our trace.
    SameTrace,
    /// It is a log line, which has no trace.
    LogLine,
    /// The server made the id. It is in another trace: some routers begin their own.
    Possible,
    /// It is the only one in the trace, or with the `x-request-id`, of the only row without a report. All others have the row's
    /// engine id.
    Alone,
}

/// Spans in the store for each waiting request.
const SPANS_PER_REQUEST: usize = 8;
/// Released rows that are remembered.
const MAX_RELEASED: usize = 4096;

impl JoinTable {
    /// Creates an empty table for at most `capacity` waiting requests.
    pub fn new(capacity: usize) -> JoinTable {
        JoinTable {
            capacity,
            last_number: 0,
            waiting: BTreeMap::new(),
            store: ReportStore::new(capacity.saturating_mul(SPANS_PER_REQUEST)),
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

/// Returns the matches of the request's rows. `is_last`, at its deadline: incomplete reports count too, and the weaker rules.
fn join(ended: &EndedRequest, store: &ReportStore, is_last: bool) -> Vec<Match> {
    let hop = hop_of(&ended.rows);
    let mut matches: Vec<Match> = Vec::new();
    for (index, row) in ended.rows.iter().enumerate() {
        let Some(rid) = row.engine_id.as_deref() else {
            continue;
        };
        let mut candidates = store.by_rid(rid);
        candidates
            .retain(|candidate| (is_last || candidate.is_complete) && is_free(candidate, &matches));
        for source in [TimingSource::Log, TimingSource::Trace] {
            // A log line does not say which request it is about: the nearest in time is taken.
            let distance = |candidate: &Candidate| match source {
                TimingSource::Log => candidate.arrived.nanos_since(ended.at).saturating_abs(),
                _ => candidate.arrived.nanos(),
            };
            let of_source = candidates.iter().filter(|of| of.report.source == source);
            let rated = of_source.filter_map(|of| Some((MatchStrength::of(row, hop, of)?, of)));
            let rated: Vec<(MatchStrength, &Candidate)> = rated.collect();
            let is_only = is_last && rated.len() == 1 && !ended.is_reported(index, &matches);
            let best = rated
                .into_iter()
                .min_by_key(|(strength, of)| (*strength, distance(of)));
            let best = best.filter(|(strength, _)| *strength < MatchStrength::Possible || is_only);
            matches.extend(best.map(|(strength, candidate)| Match {
                row: index,
                candidate: candidate.clone(),
                strength,
            }));
        }
    }
    let mut without = (0..ended.rows.len()).filter(|row| matches.iter().all(|of| of.row != *row));
    if is_last
        && let (Some(row), None) = (without.next(), without.next())
        && let Some(candidate) = by_trace(ended, row, store, &matches)
    {
        let strength = MatchStrength::Alone;
        matches.push(Match {
            row,
            candidate,
            strength,
        });
    }
    matches
}

impl EndedRequest {
    /// Whether the expected source has reported all rows.
    fn is_complete(&self, matches: &[Match]) -> bool {
        (0..self.rows.len()).all(|row| self.is_reported(row, matches))
    }

    fn is_reported(&self, row: usize, matches: &[Match]) -> bool {
        matches
            .iter()
            .any(|of| of.row == row && of.candidate.report.source == self.expected_source)
    }
}

/// Whether no row has claimed the candidate yet.
fn is_free(candidate: &Candidate, matches: &[Match]) -> bool {
    matches
        .iter()
        .all(|other| other.candidate.origin != candidate.origin)
}

/// Returns the only request in the row's trace, or else the only one with its `x-request-id`.
fn by_trace(
    ended: &EndedRequest,
    index: usize,
    store: &ReportStore,
    taken: &[Match],
) -> Option<Candidate> {
    let (first, row) = (ended.rows.first()?, ended.rows.get(index)?);
    // A trace that began here holds this request alone, so incomplete parts are its too. A client's may hold other requests.
    let is_own = first.parent_span_id.is_none();
    // If the upper half of its id is zero, it may be a number that an engine made for something else.
    let trace = trace_number(row).filter(|trace| trace >> 64 != 0);
    let trace = trace.map(|trace| store.by_trace(trace));
    let mut candidates = trace.unwrap_or_default();
    candidates.retain(|candidate| (is_own || candidate.is_complete) && is_free(candidate, taken));
    let hop = hop_of(&ended.rows);
    let named = || only_one(row, hop, store.by_request_id(row.request_id()), true);
    only_one(row, hop, candidates, is_own).or_else(named)
}

/// Returns the row's candidate, if there is only one: below our own span if any is (required unless `is_own`), and with tokens
/// if any has some, since the others never ran.
fn only_one(
    row: &Row,
    hop: Option<SpanId>,
    mut candidates: Vec<Candidate>,
    is_own: bool,
) -> Option<Candidate> {
    let below = |candidate: &Candidate| is_below(row, hop, candidate);
    // The response id of other endpoints is not the engine's. A report with the row's own would have been found by it.
    let has_rid = matches!(
        row.endpoint(),
        Endpoint::Generate | Endpoint::Completions | Endpoint::Chat
    ) && row.engine_id.is_some();
    let must_be_below = !is_own || candidates.iter().any(below);
    candidates.retain(|candidate| {
        let is_its = below(candidate) || (!must_be_below && is_after_sending(row, candidate));
        is_its && (!has_rid || candidate.report.rid.is_none())
    });
    let has_tokens = |candidate: &Candidate| candidate.report.output_tokens > Some(0);
    if candidates.iter().any(has_tokens) {
        candidates.retain(has_tokens);
    }
    let mut candidates = candidates.into_iter();
    let first = candidates.next()?;
    let rid = &first.report.rid;
    let is_same = |other: Candidate| rid.is_some() && other.report.rid == *rid;
    candidates.all(is_same).then_some(first)
}

impl MatchStrength {
    /// Returns how strongly a candidate with the row's engine id matches the row; `None` if it cannot be the row's. `hop`: see
    /// [`hop_of`].
    fn of(row: &Row, hop: Option<SpanId>, candidate: &Candidate) -> Option<MatchStrength> {
        let report = &candidate.report;
        if is_below(row, hop, candidate) {
            return Some(MatchStrength::BelowOurSpan);
        }
        if !is_after_sending(row, candidate) {
            return None;
        }
        if report.source == TimingSource::Log {
            return (!is_cancelled(row)).then_some(MatchStrength::LogLine);
        }
        if report.request_id.as_deref() == Some(row.request_id()) {
            return Some(MatchStrength::NamedByRouter);
        }
        if report.trace.is_some() && report.trace == trace_number(row) {
            return Some(MatchStrength::SameTrace);
        }
        let is_random = report.rid.as_deref().is_some_and(is_random);
        is_random.then_some(MatchStrength::Possible)
    }
}

/// Returns the span of the hop's last attempt, which is the one that answered if any did. The first row of a request has it
/// for all.
fn hop_of(rows: &[Row]) -> Option<SpanId> {
    let attempts = &rows.first()?.internal.trace.attempts;
    attempts.last().map(|last| last.span)
}

/// Whether the candidate lies directly below our own span or the hop's.
fn is_below(row: &Row, hop: Option<SpanId>, candidate: &Candidate) -> bool {
    let mut own = row.span_id.into_iter().chain(hop);
    own.any(|span| candidate.report.parent == Some(span.number()))
}

/// Whether the candidate arrived after the row's request was sent. Otherwise it cannot be about it.
fn is_after_sending(row: &Row, candidate: &Candidate) -> bool {
    let sent = row.timeline.last_send();
    sent.is_none_or(|sent| candidate.arrived >= sent)
}

/// Returns the id of the row's trace as a number.
fn trace_number(row: &Row) -> Option<u128> {
    u128::from_str_radix(row.trace_id.as_deref()?, 16).ok()
}

/// Whether we closed the upstream request before the end of its response. The engine may notice that seconds later, and SGLang
/// logs no such request.
pub fn is_cancelled(row: &Row) -> bool {
    matches!(
        row.outcome(),
        Outcome::ClientAbort | Outcome::Timeout | Outcome::ProxyError
    )
}

/// Whether an engine id is a random UUID, as SGLang makes them. Such an id is unique, and no client chose it.
fn is_random(rid: &str) -> bool {
    let id = rid.split('_').next().unwrap_or_default().as_bytes();
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let [version, variant] = [12, 16].map(|at| id.get(at).copied());
    id.len() == 32
        && id.iter().all(is_hex)
        && version == Some(b'4')
        && matches!(variant, Some(b'8' | b'9' | b'a' | b'b'))
}

#[cfg(test)]
mod tests;
