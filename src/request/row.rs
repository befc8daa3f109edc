//! A row: what is known of a generated sequence and of its request, final when that has ended.

use std::borrow::Cow;
use std::sync::Arc;

pub use super::columns::Row;
pub use super::record::{More, own_error};
pub use super::timeline::{ClockState, TtftSource};

use super::column::Origin;
use super::columns::COLUMNS;
use super::endpoint::Endpoint;
use super::impossible::inconsistency;
use super::outcome::{GIVEN_UP, Outcome};
use super::record::{Record, TOLERANCE_NANOS};
use super::response::Unread;
use super::timeline::{ClockOf, Period, Relation, Side};
use super::token_sums::Sums;
use super::unseen::Unseens;

mod missing;
mod place;
mod read;

/// The rows of a request: one a sequence, shared by all who tell of it.
pub type Rows = Arc<[Row]>;

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
        let why = self.unseen.take().and_then(Unseens::engine);
        self.conclude();
        // A row that was read from a file does not know it anew.
        let is_read = self.more.generation.is_none() && self.more.untold.is_none();
        if let (Some(why), Some(unseen), true) = (why, &mut self.unseen, is_read) {
            unseen.engine = unseen.engine.map(|_| why);
        }
    }

    /// How it ended.
    pub fn outcome(&self) -> Outcome {
        self.outcome.unwrap_or_default()
    }

    /// Where it was sent.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint.unwrap_or_default()
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
