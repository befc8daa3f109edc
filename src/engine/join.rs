//! Which engine report belongs to which row; pure.
//!
//! If the row has an engine id (rid), that decides. SGLang makes one for each sequence, but a client may choose its own and
//! use it twice. The rules, the strongest first:
//! 1. The same rid, and one of: a span below ours, our request's name in a router's span, our trace, a line of the log.
//! 2. At the deadline, the same rid if only one report has it: a router may begin traces of its own.
//! 3. At the deadline, if exactly one row has no report (its client left early, or its body was not read): the same trace,
//!    if that holds one request, preferably one with tokens.
//! 4. Otherwise the same `x-request-id`.

use crate::clock::Stamp;
use crate::request::attempt::SpanId;
use crate::request::endpoint::Endpoint;
use crate::request::row::Row;
use crate::request::sequence::TimingSource;

use super::report_store::{Candidate, ReportStore};

mod match_strength;

use match_strength::{hop_of, is_after_sending, is_below, trace_number};

pub use match_strength::{MatchStrength, is_cancelled, is_random};

/// A request that has ended and waits for its reports.
#[derive(Debug)]
pub struct EndedRequest {
    /// Its rows.
    pub rows: Vec<Row>,
    /// The source that is expected to report it.
    pub expected_source: TimingSource,
    /// When it ended.
    pub at: Stamp,
}

/// A report matched with a row.
#[derive(Debug)]
pub struct Match {
    /// The index of the row.
    pub row: usize,
    /// The report.
    pub candidate: Candidate,
    /// How strongly they match.
    pub strength: MatchStrength,
    /// Whether they certainly belong together, by the row's own engine id: the report then bounds the engine's clock.
    pub is_certain: bool,
}

/// Returns the certain matches of the request's rows. `is_last`: incomplete reports count too.
pub fn join(ended: &EndedRequest, store: &ReportStore, is_last: bool) -> Vec<Match> {
    let hop = hop_of(&ended.rows);
    let mut matches: Vec<Match> = Vec::new();
    for (index, row) in ended.rows.iter().enumerate() {
        let Some(rid) = row.engine_id.as_deref() else {
            continue;
        };
        let mut candidates = store.by_rid(rid);
        candidates
            .retain(|candidate| (is_last || candidate.is_complete) && is_free(candidate, &matches));
        for source in [TimingSource::Trace, TimingSource::Log] {
            let of_source = candidates.iter().filter(|of| of.report.source == source);
            let rated = of_source.filter_map(|of| Some((MatchStrength::of(row, hop, of)?, of)));
            // A log line does not say which request it is about: the nearest in time is taken.
            let distance = |candidate: &Candidate| match source {
                TimingSource::Log => candidate.arrived.nanos_since(ended.at).saturating_abs(),
                _ => candidate.arrived.nanos(),
            };
            let best = rated.min_by_key(|(strength, candidate)| (*strength, distance(candidate)));
            if let Some((strength, candidate)) = best
                && strength != MatchStrength::Possible
            {
                matches.push(Match {
                    row: index,
                    candidate: candidate.clone(),
                    strength,
                    is_certain: true,
                });
            }
        }
    }
    matches
}

/// Returns the matches of the request's rows at its deadline. `is_only`: whether no other row has had this engine id recently.
pub fn join_last(
    ended: &EndedRequest,
    store: &ReportStore,
    is_only: impl Fn(&str) -> bool,
) -> Vec<Match> {
    let hop = hop_of(&ended.rows);
    let mut matches = join(ended, store, true);
    for (index, row) in ended.rows.iter().enumerate() {
        if let Some(rid) = row.engine_id.as_deref()
            && !ended.is_reported(index, &matches)
            && is_only(rid)
            && let Some(candidate) = only_possible(row, hop, store.by_rid(rid))
        {
            matches.push(Match::possible(index, candidate, is_random(rid)));
        }
    }
    let mut without = (0..ended.rows.len()).filter(|row| matches.iter().all(|of| of.row != *row));
    if let (Some(index), None) = (without.next(), without.next())
        && let Some(candidate) = by_trace(ended, index, store, &matches)
    {
        matches.push(Match::possible(index, candidate, false));
    }
    matches
}

impl Match {
    fn possible(row: usize, candidate: Candidate, is_certain: bool) -> Match {
        let strength = MatchStrength::Possible;
        Match {
            row,
            candidate,
            strength,
            is_certain,
        }
    }
}

impl EndedRequest {
    /// Whether the expected source has reported all rows.
    pub fn is_complete(&self, matches: &[Match]) -> bool {
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

/// Returns the candidate that nothing contradicts, if there is exactly one.
fn only_possible(
    row: &Row,
    hop: Option<SpanId>,
    mut candidates: Vec<Candidate>,
) -> Option<Candidate> {
    let possible = Some(MatchStrength::Possible);
    candidates.retain(|candidate| MatchStrength::of(row, hop, candidate) == possible);
    candidates.pop().filter(|_| candidates.is_empty())
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
    let trace = trace_of(row).map(|trace| store.by_trace(trace));
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
    let must_be_below = !is_own || candidates.iter().any(below);
    candidates.retain(|candidate| {
        let is_its = below(candidate) || (!must_be_below && is_after_sending(row, candidate));
        is_its && may_match(row, candidate.report.rid.as_deref())
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

/// Whether a report with this engine id may be about the row. Some endpoints' response id is not the engine's.
fn may_match(row: &Row, rid: Option<&str>) -> bool {
    let is_rid = matches!(
        row.endpoint(),
        Endpoint::Generate | Endpoint::Completions | Endpoint::Chat
    );
    rid.is_none() || row.engine_id.is_none() || !is_rid
}

/// Returns the row's trace. `None` if the upper half is zero: it may be a number that an engine made for something else.
fn trace_of(row: &Row) -> Option<u128> {
    trace_number(row).filter(|trace| trace >> 64 != 0)
}
