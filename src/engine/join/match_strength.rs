//! Whether a report under a row's engine id is about that row: a client may use an id of its own twice.

use crate::engine::report_store::Candidate;
use crate::request::attempt::SpanId;
use crate::request::engine_report::EngineReport;
use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::sequence::TimingSource;
use crate::request::timeline::{ClockOf, Relation};

/// How strongly a report matches a row, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MatchStrength {
    /// It lies directly below our own span.
    BelowOurSpan,
    /// A router's span in its trace names our request.
    NamedByRouter,
    /// It is in our trace.
    SameTrace,
    /// It is a log line, which has no trace.
    LogLine,
    /// Nothing contradicts it. It is in another trace: some routers begin their own.
    Possible,
}

impl MatchStrength {
    /// Returns how strongly a candidate with the row's engine id matches the row; `None` if it cannot be the row's. `hop`: see
    /// [`hop_of`].
    pub fn of(row: &Row, hop: Option<SpanId>, candidate: &Candidate) -> Option<MatchStrength> {
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
        (is_random || is_in_time(row, report)).then_some(MatchStrength::Possible)
    }
}

/// Returns the span of the hop's last attempt, which is the one that answered if any did. The first row of a request has it
/// for all.
pub fn hop_of(rows: &[Row]) -> Option<SpanId> {
    let attempts = &rows.first()?.internal.trace.attempts;
    attempts.last().map(|last| last.span)
}

/// Whether the candidate lies directly below our own span or the hop's.
pub fn is_below(row: &Row, hop: Option<SpanId>, candidate: &Candidate) -> bool {
    let mut own = row.span_id.into_iter().chain(hop);
    own.any(|span| candidate.report.parent == Some(span.number()))
}

/// Whether the candidate arrived after the row's request was sent. Otherwise it cannot be about it.
pub fn is_after_sending(row: &Row, candidate: &Candidate) -> bool {
    let sent = row.timeline.last_send();
    sent.is_none_or(|sent| candidate.arrived >= sent)
}

/// Returns the id of the row's trace as a number.
pub fn trace_number(row: &Row) -> Option<u128> {
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
pub fn is_random(rid: &str) -> bool {
    let id = rid.split('_').next().unwrap_or_default().as_bytes();
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let [version, variant] = [12, 16].map(|at| id.get(at).copied());
    id.len() == 32
        && id.iter().all(is_hex)
        && version == Some(b'4')
        && matches!(variant, Some(b'8' | b'9' | b'a' | b'b'))
}

/// Whether the server may have received the report's request after the row's was sent, as far as its clock is known.
fn is_in_time(row: &Row, report: &EngineReport) -> bool {
    let Relation::Apart(offset) = row.timeline.relation(ClockOf::Engine) else {
        return true;
    };
    let (Some(sent), Some(received)) = (row.timeline.last_send(), report.received) else {
        return true;
    };
    received.plus_nanos(offset.error_nanos - offset.nanos) >= sent
}
