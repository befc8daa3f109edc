//! Whether what was told under a row's engine id is of that row: a client may use an id of its own twice.

use crate::clock::Stamp;
use crate::request::attempt::SpanId;
use crate::request::engine_report::Told;
use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::sequence::TimingSource;
use crate::request::timeline::{ClockOf, Relation};

/// By what it is the row's, the surest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// It lies directly below our own span.
    Below,
    /// A router's span of its trace names our request.
    Named,
    /// It is of our trace.
    Trace,
    /// It is a line of the log, which knows no trace.
    Line,
    /// Nothing speaks against it: its trace is another, which some routers begin.
    Perhaps,
}

/// How strongly what came at `came` under the row's own engine id matches the row; `None`: it cannot be its. `hop`: see
/// [`hop_of`].
pub fn whose(row: &Row, hop: Option<SpanId>, told: &Told, came: Stamp) -> Option<Whose> {
    if is_below(row, hop, told) {
        return Some(Whose::Below);
    }
    if !came_after_sending(row, came) {
        return None;
    }
    if told.source == TimingSource::Log {
        return (!we_left(row)).then_some(Whose::Line);
    }
    if told.request_id.as_deref() == Some(row.request_id()) {
        return Some(Whose::Named);
    }
    if told.trace.is_some() && told.trace == trace_number(row) {
        return Some(Whose::Trace);
    }
    let is_random = told.rid.as_deref().is_some_and(is_random);
    (is_random || is_in_time(row, told)).then_some(Whose::Perhaps)
}

/// The span of the hop's attempt which answered, else of the last: the first of a request's rows has it for all.
pub fn hop_of(rows: &[Row]) -> Option<SpanId> {
    let attempts = &rows.first()?.more.trace.attempts;
    attempts.last().map(|last| last.span)
}

/// Whether it lies directly below our own span, or the hop's.
pub fn is_below(row: &Row, hop: Option<SpanId>, told: &Told) -> bool {
    let mut own = row.span_id.into_iter().chain(hop);
    own.any(|span| told.parent == Some(span.number()))
}

/// Nothing is told of a request before it was sent.
pub fn came_after_sending(row: &Row, came: Stamp) -> bool {
    row.timeline.last_send().is_none_or(|sent| came >= sent)
}

/// The number of a row's trace.
pub fn trace_number(row: &Row) -> Option<u128> {
    u128::from_str_radix(row.trace_id.as_deref()?, 16).ok()
}

/// Whether we left the upstream before the answer's end: its engine may learn that seconds later, and SGLang logs no such
/// request.
pub fn we_left(row: &Row) -> bool {
    matches!(
        row.outcome(),
        Outcome::ClientAbort | Outcome::Timeout | Outcome::ProxyError
    )
}

/// Whether an engine id is a random UUID, as SGLang makes them: nobody else's, and no client counts so.
pub fn is_random(rid: &str) -> bool {
    let id = rid.split('_').next().unwrap_or_default().as_bytes();
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let [version, variant] = [12, 16].map(|at| id.get(at).copied());
    id.len() == 32
        && id.iter().all(is_hex)
        && version == Some(b'4')
        && matches!(variant, Some(b'8' | b'9' | b'a' | b'b'))
}

/// Whether the server can have received it when the row says, as far as its clock is known.
fn is_in_time(row: &Row, told: &Told) -> bool {
    let Relation::Apart(offset) = row.timeline.relation(ClockOf::Engine) else {
        return true;
    };
    let (Some(sent), Some(received)) = (row.timeline.last_send(), told.received) else {
        return true;
    };
    received.plus_nanos(offset.error_nanos - offset.nanos) >= sent
}
