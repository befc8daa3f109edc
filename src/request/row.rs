//! A row: what is known of a generated sequence and of its request, final when that has ended.

use std::borrow::Cow;
use std::sync::Arc;

pub use super::columns::Row;

use super::column::Origin;
use super::columns::COLUMNS;
use super::endpoint::Endpoint;
use super::gaps::GapCounts;
use super::generation::Generation;
use super::impossible::inconsistency;
use super::names::names;
use super::outcome::{GIVEN_UP, Outcome};
use super::record::Record;
use super::record::TOLERANCE_NANOS;
use super::response::Unread;
use super::sequence::Untold;
use super::timeline::{ClockOf, Period, Relation, Side};
use super::token_sums::Sums;
use super::trace::TraceFacts;
use super::unseen::Unseens;

mod read;

/// The rows of a request: one a sequence, shared by all who tell of it.
pub type Rows = Arc<[Row]>;

/// What no column shows: known in the process that saw the request, and not of rows that were read.
#[derive(Clone, Debug, Default)]
pub struct More {
    /// Words of the server's stand in `error`: they may quote the request.
    pub error_quotes_server: bool,
    /// The code that stands before them.
    pub error_code: Option<u64>,
    /// The SGLang that its last `meta_info` is of.
    pub generation: Option<Generation>,
    /// Why the engine's trace or log brought nothing, where it was asked.
    pub untold: Option<Untold>,
    /// The gaps of `itl_mean` by their length, where all are known.
    pub gaps: Option<GapCounts>,
    /// What only traces tell.
    pub trace: TraceFacts,
}

names! {
    /// Whose clock the engine's times are on.
    pub enum ClockState {
        /// On that of the row.
        Offset = "offset",
        /// On the engine's, as it gave them.
        Raw = "raw",
    }
}

names! {
    /// The moment that `ttft` ends at.
    pub enum TtftSource {
        /// The engine's own first token.
        Server = "server_first_token",
        /// The first token read.
        Read = "first_token",
    }
}

impl More {
    pub(super) fn of(record: &mut Record) -> More {
        let has_gaps = record.itl().mean_nanos.is_some();
        let (facts, sequence) = (&mut record.facts, &mut record.sequence);
        More {
            error_quotes_server: facts.error_quotes_server,
            error_code: facts.error_code,
            generation: sequence.generation,
            untold: sequence.untold,
            gaps: sequence.gap_counts.take().filter(|_| has_gaps),
            trace: std::mem::take(&mut facts.trace),
        }
    }
}

/// The same rows without what the server said of an error, which may quote the prompt: for all but the records file.
pub fn without_quotes(rows: &Rows) -> Rows {
    if !rows.iter().any(|row| row.more.error_quotes_server) {
        return rows.clone();
    }
    let mut own = rows.to_vec();
    for row in &mut own {
        let error = row.own_error().into_owned();
        row.error = Some(error).filter(|error| !error.is_empty());
    }
    own.into()
}

impl Row {
    /// The rows of a request that has ended: all its records.
    pub fn all(records: Vec<Record>) -> Vec<Row> {
        let sums = Sums::of(&records);
        records
            .into_iter()
            .map(|record| Row::of(record, &sums))
            .collect()
    }

    fn of(record: Record, sums: &Sums) -> Row {
        let noted = record.noted();
        let mut row = Row::made(record, sums);
        let found = inconsistency(&row, noted);
        row.inconsistency = Some(found).filter(|found| !found.is_empty());
        row.conclude();
        row
    }

    /// What follows from all the rest.
    fn conclude(&mut self) {
        self.within_clock_error = Some(self.within()).filter(|within| !within.is_empty());
        self.ended_in = self.last_seen();
        self.unseen = Some(Unseens::of(self)).filter(|unseen| *unseen != Unseens::default());
    }

    /// Everything that follows from the moments and the clocks, after those have changed.
    pub fn derive_anew(&mut self) {
        let queue = self.pure_queue_time;
        self.derive();
        let ttft = self.timeline.ttft();
        self.ttft = ttft.map(|(nanos, _)| nanos);
        self.ttft_source = ttft.map(|(_, source)| source);
        self.pure_queue_time = self.timeline.nanos(Period::PURE_QUEUE).or(queue);
        let offset = |clock| match self.timeline.relation(clock) {
            Relation::Apart(offset) => Some(offset),
            Relation::Same | Relation::Unknown => None,
        };
        let (engine, hop) = (offset(ClockOf::Engine), offset(ClockOf::Hop));
        self.clock_offset = engine.map(|offset| offset.nanos);
        self.clock_offset_error = engine.map(|offset| offset.error_nanos);
        self.hop_clock_offset = hop.map(|offset| offset.nanos);
        self.hop_clock_offset_error = hop.map(|offset| offset.error_nanos);
        self.clock_state = self.timeline.clock_state();
        self.unseen = None;
        self.conclude();
    }

    /// How it ended.
    pub fn outcome(&self) -> Outcome {
        self.outcome.unwrap_or(Outcome::ProxyError)
    }

    /// Where it was sent.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint.unwrap_or(Endpoint::Generate)
    }

    /// Whether the request went well.
    pub fn is_ok(&self) -> bool {
        self.outcome == Some(Outcome::Ok)
    }

    /// Whether the server only took it, to generate in the background: its end is not that of its generation.
    pub fn is_in_background(&self) -> bool {
        self.unread == Some(Unread::Background)
    }

    /// Whether the generator gave it up because its run was stopped.
    pub fn is_given_up(&self) -> bool {
        self.outcome == Some(Outcome::ClientAbort) && self.error.as_deref() == Some(GIVEN_UP)
    }

    /// Whether this row stands for its request in sums of request-wide figures.
    pub fn is_first_of_request(&self) -> bool {
        self.index == 0
    }

    /// The id of its request.
    pub fn request_id(&self) -> &str {
        let id = self.req_id.as_deref().unwrap_or_default();
        match self.sequences {
            0 | 1 => id,
            _ => id.rsplit_once('#').map_or(id, |(id, _)| id),
        }
    }

    /// What happened, without words of the server's.
    pub fn own_error(&self) -> Cow<'_, str> {
        let error = self.error.as_deref().unwrap_or_default();
        own_error(error, self.more.error_quotes_server, self.more.error_code)
    }

    /// Tokens after those that the first event brought. Where `usage` alone tells their number, that event is taken
    /// to have brought one, as the engine sends it.
    pub fn later_tokens(&self) -> Option<u64> {
        let first = self.first_event_tokens.unwrap_or(1);
        Some(self.actual_output_tokens?.saturating_sub(first))
    }

    /// How far below zero a duration may be measured without being wrong, nanoseconds: the clocks'
    /// offsets are known only so well.
    pub fn tolerance(&self) -> i64 {
        let errors = self.timeline.other_clocks();
        TOLERANCE_NANOS + errors.map(|(_, offset)| offset.error_nanos).sum::<i64>()
    }

    /// The durations that follow from two moments, by column; that of `ttft` by its source.
    pub(super) fn periods(&self) -> impl Iterator<Item = (&'static str, Period)> + use<> {
        let ttft = match self.ttft_source {
            Some(TtftSource::Server) => Period::TTFT_ENGINE,
            _ => Period::TTFT_OBSERVED,
        };
        let of = COLUMNS.iter().filter_map(|column| match column.origin {
            Origin::Period(period) => Some((column.name, period)),
            _ => None,
        });
        of.chain([("ttft", ttft)])
    }

    /// The durations that are not larger than the errors of the clocks they were taken with, by column: of them only
    /// that bound is known.
    fn within(&self) -> String {
        let timeline = &self.timeline;
        let within = |period: Period| {
            let error = timeline.error_nanos(period);
            let nanos = timeline.nanos(period);
            error > 0 && nanos.is_some_and(|nanos| nanos.saturating_abs() <= error)
        };
        let found = self.periods().filter(|(_, period)| within(*period));
        let mut all = String::new();
        for (column, _) in found {
            if !all.is_empty() {
                all.push(';');
            }
            all.push_str(column);
        }
        all
    }

    /// Who watched it.
    pub fn side(&self) -> Side {
        self.timeline.side()
    }
}

/// What happened, without words of the server's, of an error that quotes it.
pub fn own_error(error: &str, quotes_server: bool, code: Option<u64>) -> Cow<'_, str> {
    if !quotes_server {
        return Cow::Borrowed(error);
    }
    let what = "what the server said of it is in the records file only, as it may quote the prompt";
    // Not the first word of `error`, which may be one of the prompt's.
    Cow::Owned(code.map_or_else(|| what.into(), |code| format!("{code}; {what}")))
}
