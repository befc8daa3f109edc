//! Which of what engines told is of which row; pure.
//!
//! An engine's id (rid) decides where a row has one. SGLang makes it for one sequence, but a client may name its own, and
//! the same twice. So, the strongest first:
//! 1. the same rid, and a span below ours, or the name that a router gave it, or the same trace, or a line of the log;
//! 2. at the deadline, the same rid alone, if it is the only one (a router that begins traces of its own);
//! 3. at the deadline, for the one row that nothing was told of (its client left before anything came, its body was not
//!    read): the same trace, if that holds one request, best the one that made tokens;
//! 4. and else the same `x-request-id`.

use crate::clock::Stamp;
use crate::request::attempt::SpanId;
use crate::request::endpoint::Endpoint;
use crate::request::row::Row;
use crate::request::sequence::TimingSource;

use super::spans::{Report, Spans};

mod whose;

use whose::{came_after_sending, hop_of, is_below, trace_number, whose};

pub use whose::{Whose, is_random, we_left};

/// A request that has ended, and who is to tell of it.
#[derive(Debug)]
pub struct Ended {
    /// Its rows.
    pub rows: Vec<Row>,
    /// Who is to tell of it.
    pub wanted: TimingSource,
    /// When it ended.
    pub at: Stamp,
}

/// What was told of one row.
#[derive(Debug)]
pub struct Match {
    /// The place of the row.
    pub row: usize,
    /// What was told.
    pub report: Report,
    /// How strongly it matches.
    pub by: Whose,
    /// By the row's own engine id and beyond doubt: it bounds the engine's clock.
    pub is_sure: bool,
}

/// What is beyond doubt of the request's rows; with `is_last` also what lacks something.
pub fn join(ended: &Ended, spans: &Spans, is_last: bool) -> Vec<Match> {
    let hop = hop_of(&ended.rows);
    let mut found: Vec<Match> = Vec::new();
    for (row, record) in ended.rows.iter().enumerate() {
        let Some(rid) = record.engine_id.as_deref() else {
            continue;
        };
        let mut reports = spans.by_rid(rid);
        reports.retain(|report| {
            (is_last || report.is_whole) && found.iter().all(|other| other.report.of != report.of)
        });
        for source in [TimingSource::Trace, TimingSource::Log] {
            let own = reports.iter().filter(|report| report.told.source == source);
            let own = own.filter_map(|report| {
                Some((whose(record, hop, &report.told, report.came)?, report))
            });
            // Lines say nothing of whose they are: the nearest.
            let apart = |report: &Report| match source {
                TimingSource::Log => report.came.nanos_since(ended.at).saturating_abs(),
                _ => report.came.nanos(),
            };
            let best = own.min_by_key(|(by, report)| (*by, apart(report)));
            if let Some((by, report)) = best.filter(|(by, _)| *by != Whose::Perhaps) {
                found.push(Match {
                    row,
                    report: report.clone(),
                    by,
                    is_sure: true,
                });
            }
        }
    }
    found
}

/// What there is of the request's rows when their time is over. `is_alone`: no other row has had this engine id of late.
pub fn join_last(ended: &Ended, spans: &Spans, is_alone: impl Fn(&str) -> bool) -> Vec<Match> {
    let mut found = join(ended, spans, true);
    for (row, record) in ended.rows.iter().enumerate() {
        let Some(rid) = record.engine_id.as_deref() else {
            continue;
        };
        if !ended.has(row, &found) && is_alone(rid) {
            found.extend(perhaps(ended, row, record, spans.by_rid(rid)));
        }
    }
    let mut untold =
        (0..ended.rows.len()).filter(|row| found.iter().all(|other| other.row != *row));
    if let (Some(row), None) = (untold.next(), untold.next()) {
        found.extend(by_trace(ended, row, spans, &found));
    }
    found
}

impl Ended {
    /// Whether the wanted source has told of all rows.
    pub fn is_whole(&self, found: &[Match]) -> bool {
        (0..self.rows.len()).all(|row| self.has(row, found))
    }

    fn has(&self, row: usize, found: &[Match]) -> bool {
        found
            .iter()
            .any(|of| of.row == row && of.report.told.source == self.wanted)
    }
}

/// The one request that nothing speaks against, if it is one.
fn perhaps(ended: &Ended, row: usize, record: &Row, reports: Vec<Report>) -> Option<Match> {
    let hop = hop_of(&ended.rows);
    let is_perhaps =
        |report: &Report| whose(record, hop, &report.told, report.came) == Some(Whose::Perhaps);
    let mut reports = reports.into_iter().filter(is_perhaps);
    let (report, None) = (reports.next()?, reports.next()) else {
        return None;
    };
    let is_sure = report.told.rid.as_deref().is_some_and(is_random);
    Some(Match {
        row,
        report,
        by: Whose::Perhaps,
        is_sure,
    })
}

/// What the row's trace holds, or what its request id names.
fn by_trace(ended: &Ended, row: usize, spans: &Spans, taken: &[Match]) -> Option<Match> {
    let record = ended.rows.get(row)?;
    // A trace that began here is this request's alone, so all of its parts are; others hold what a client puts into them.
    let is_own = ended.rows.first()?.parent_span_id.is_none();
    let trace = trace_of(record).map(|trace| spans.by_trace(trace));
    let mut found = trace.unwrap_or_default();
    found.retain(|report| {
        (is_own || report.is_whole) && taken.iter().all(|other| other.report.of != report.of)
    });
    let hop = hop_of(&ended.rows);
    let named = || one_of(record, hop, spans.by_name(record.request_id()), true);
    let report = one_of(record, hop, found, is_own).or_else(named)?;
    Some(Match {
        row,
        report,
        by: Whose::Perhaps,
        is_sure: false,
    })
}

/// Of what was found, what is of the row: that below our own span where any is (`is_own` says that no other will do), that
/// with tokens where any has some (the others never ran), and only what is beyond doubt.
fn one_of(row: &Row, hop: Option<SpanId>, mut found: Vec<Report>, is_own: bool) -> Option<Report> {
    let below = |report: &Report| is_below(row, hop, &report.told);
    let needs = !is_own || found.iter().any(below);
    found.retain(|report| {
        let is_of = below(report) || (!needs && came_after_sending(row, report.came));
        is_of && may_be(row, report.told.rid.as_deref())
    });
    let has_tokens = |report: &Report| report.told.output_tokens.is_some_and(|tokens| tokens > 0);
    if found.iter().any(has_tokens) {
        found.retain(has_tokens);
    }
    let mut found = found.into_iter();
    let first = found.next()?;
    let is_same = |other: Report| first.told.rid.is_some() && other.told.rid == first.told.rid;
    found.all(is_same).then_some(first)
}

/// Whether something told under this id may be of the row. Of some endpoints the row's own id is not the engine's.
fn may_be(row: &Row, rid: Option<&str>) -> bool {
    let is_rid = matches!(
        row.endpoint(),
        Endpoint::Generate | Endpoint::Completions | Endpoint::Chat
    );
    rid.is_none() || row.engine_id.is_none() || !is_rid
}

/// The trace of a row. What has an upper half of zeros may be an engine's own number for something else.
fn trace_of(row: &Row) -> Option<u128> {
    trace_number(row).filter(|trace| trace >> 64 != 0)
}
