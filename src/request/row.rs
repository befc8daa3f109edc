//! A row: what is known of a generated sequence and of its request, final when that has ended.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

pub use super::columns::Row;
pub use super::record::{More, own_error};
pub use super::timeline::{ClockState, TtftSource};

use super::column::Origin;
use super::columns::{COLUMNS, Column, ColumnId};
use super::endpoint::Endpoint;
use super::impossible::Impossible;
use super::outcome::Outcome;
use super::record::{Record, TOLERANCE_NANOS, later_tokens};
use super::response::Unread;
use super::timeline::{Period, Side};
use super::token_sums::Sums;
use super::unseen::Unseens;

mod missing;
mod read;

/// The rows of a request: one a sequence, shared by all who tell of it.
pub type Rows = Arc<Vec<Row>>;

/// The same rows without what the server said of an error, which may quote the prompt: for all but the records file.
pub fn without_quotes(rows: &Rows) -> Rows {
    if !rows.iter().any(|row| row.more.error_quotes_server) {
        return rows.clone();
    }
    let mut own = Vec::clone(rows);
    for row in &mut own {
        let error = row.own_error().into_owned();
        row.error = Some(error).filter(|error| !error.is_empty());
    }
    own.into()
}

impl Row {
    /// The rows of a request that has ended: all its records.
    pub fn all(mut records: Vec<Record>) -> Vec<Row> {
        let sums = Sums::of(&records);
        let records = records.iter_mut();
        records.map(|record| Row::of(record, &sums)).collect()
    }

    /// Its cells by the names of their columns, as an object.
    pub fn to_json(&self) -> serde_json::Value {
        let cells = COLUMNS.iter();
        let cells = cells.map(|column| (column.name, (column.get)(self).to_json()));
        cells.collect()
    }

    fn of(record: &mut Record, sums: &Sums) -> Row {
        let noted = record.noted();
        let mut row = Row::made(record, sums);
        let found = Impossible::of(&row);
        row.inconsistency = found.named(&row, noted);
        row.conclude(&found);
        row
    }

    /// What follows from all the rest.
    fn conclude(&mut self, found: &Impossible) {
        self.within_clock_error = found.within();
        self.ended_in = match self.is_ok() {
            true => Some("done".to_owned()),
            false => self
                .last_seen()
                .map(|seen| seen.ended_in(|stage| stage.name)),
        };
        self.unseen = Some(Unseens::of(self)).filter(|unseen| *unseen != Unseens::default());
    }

    /// Everything that follows from the moments and the clocks, after those have changed.
    pub fn derive_anew(&mut self) {
        self.derive();
        let queue = self.timeline.nanos(Period::PURE_QUEUE);
        let is_pair = self.timeline.prefill().is_some();
        self.pure_queue_time = queue.or(self.pure_queue_time.filter(|_| !is_pair));
        let why = self.unseen.take().and_then(Unseens::engine);
        self.conclude(&Impossible::of(self));
        // A row that was read from a file does not know it anew.
        let is_read = self.more.generation.is_none() && self.more.untold.is_none();
        if let (Some(why), Some(unseen), true) = (why, &mut self.unseen, is_read) {
            *unseen = unseen.with_engine(why);
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

    /// Tokens after those that the first event brought.
    pub fn later_tokens(&self) -> Option<u64> {
        let all = self.actual_output_tokens?;
        Some(later_tokens(all, self.first_event_tokens))
    }

    /// How far below zero a duration may be measured without being wrong, nanoseconds: the clocks'
    /// offsets are known only so well.
    pub fn tolerance(&self) -> i64 {
        let errors = self.timeline.other_clocks();
        TOLERANCE_NANOS + errors.map(|(_, offset)| offset.error_nanos).sum::<i64>()
    }

    /// The durations that follow from two moments, by column; that of `ttft` by its source.
    pub(super) fn periods(&self) -> impl Iterator<Item = (&'static Column, Period)> + use<> {
        static PERIODS: LazyLock<Vec<(&Column, Period)>> = LazyLock::new(|| {
            let of = COLUMNS.iter().filter_map(|column| match column.origin {
                Origin::Period(period) => Some((column, period)),
                _ => None,
            });
            of.collect()
        });
        let ttft = match self.ttft_source {
            Some(TtftSource::Server) => Period::TTFT_ENGINE,
            _ => Period::TTFT_OBSERVED,
        };
        let ttft = (&COLUMNS[ColumnId::ttft as usize], ttft);
        PERIODS.iter().copied().chain([ttft])
    }

    /// Who watched it.
    pub fn side(&self) -> Side {
        self.timeline.side()
    }
}
