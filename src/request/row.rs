//! A row: what is known of a generated sequence and of its request, from its beginning on; final when that has ended.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use crate::clock::Stamp;

pub use super::columns::Row;
pub use super::more::More;
pub use super::timeline::{ClockState, TtftSource};

use super::attempt::Attempt;
use super::column::Origin;
use super::columns::{COLUMNS, Column, ColumnId};
use super::endpoint::Endpoint;
use super::impossible::Impossible;
use super::outcome::Outcome;
use super::passage::Passage;
use super::response::Unread;
use super::timeline::{Period, Side, TOLERANCE_NANOS, Timeline};
use super::unseen::Unseens;

mod missing;
mod read;
mod tokens;

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
    /// The row of a request to `endpoint` that `side` begins to watch.
    pub fn new(side: Side, endpoint: Endpoint, req_id: String) -> Row {
        Row {
            req_id: Some(req_id),
            endpoint: Some(endpoint),
            outcome: Some(Outcome::default()),
            attempts: Some(0),
            seen_by: Some(side),
            timeline: Timeline::new(side),
            sequences: 1,
            ..Row::default()
        }
    }

    /// Takes its place among the `sequences` of its request.
    pub(super) fn place(&mut self, index: u32, sequences: u32) {
        (self.index, self.sequences) = (index, sequences);
        if let (Some(id), 2..) = (&mut self.req_id, sequences) {
            *id = format!("{id}#{index}");
        }
    }

    /// Takes how the body of its response passed the front and the worker hop.
    pub fn passed(&mut self, here: Passage, worker: Passage) {
        let between = |there: Option<Stamp>, here: Option<Stamp>| Some(here?.nanos_since(there?));
        self.worker_first_byte_time = worker.first;
        self.worker_last_byte_time = worker.last;
        self.worker_longest_gap = worker.longest_gap_nanos;
        self.router_return = between(worker.first, here.first);
        self.router_return_last = between(worker.last, here.last);
        let gaps = here.longest_gap_nanos.zip(worker.longest_gap_nanos);
        self.router_gap_added = gaps.map(|(here, worker)| here - worker);
    }

    /// Takes in what leg of it another server prefilled.
    pub fn prefilled_by(&mut self, leg: &Attempt) {
        self.prefill_host = Some(leg.host.clone()).filter(|host| !host.is_empty());
        self.more.prefill_worker = Some(leg.worker.clone());
    }

    /// Ends the rows of a request of which all has been told.
    pub fn ended(mut rows: Vec<Row>) -> Vec<Row> {
        Row::sum_tokens(&mut rows);
        for row in &mut rows {
            row.count_tokens();
            row.end();
        }
        rows
    }

    /// Its cells by the names of their columns, as an object.
    pub fn to_json(&self) -> serde_json::Value {
        let cells = COLUMNS.iter();
        let cells = cells.map(|column| (column.name, (column.get)(self).to_json()));
        cells.collect()
    }

    fn end(&mut self) {
        self.success = Some(self.is_ok());
        self.bootstrap_room = self.more.room.map(|room| room.to_string());
        self.derive();
        self.pure_queue_time = self.pure_queue();
        self.tpot = self.tpot_nanos();
        let found = Impossible::of(self);
        self.inconsistency = found.named(self, self.noted());
        self.conclude(&found);
    }

    /// What its `inconsistency` names beside what cannot be.
    fn noted(&self) -> Vec<String> {
        let differing = self.more.differing.iter();
        let differing = differing.map(|(moment, by)| format!("{}!={}", moment.name(), by.name()));
        let untold = self.more.untold_sequences && self.index == 0;
        let untold = untold.then(|| "sequences_not_recorded".to_owned());
        differing.chain(untold).collect()
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
        self.pure_queue_time = self.pure_queue();
        let why = self.unseen.take().and_then(Unseens::engine);
        self.conclude(&Impossible::of(self));
        // A row that was read from a file does not know it anew.
        let is_read = self.more.generation.is_none() && self.more.untold.is_none();
        if let (Some(why), Some(unseen), true) = (why, &mut self.unseen, is_read) {
            *unseen = unseen.with_engine(why);
        }
    }

    /// Nanoseconds in the server queue; of prefill and decode on two servers, of all three waits.
    pub fn pure_queue(&self) -> Option<i64> {
        let waited = self.timeline.nanos(Period::PURE_QUEUE);
        // What decode alone tells is of its own wait.
        let is_pair = self.timeline.prefill().is_some();
        waited.or(self.pure_queue_time.filter(|_| !is_pair))
    }

    /// How it ended.
    pub fn outcome(&self) -> Outcome {
        self.outcome.unwrap_or_default()
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
        if !self.more.error_quotes_server {
            return Cow::Borrowed(self.error.as_deref().unwrap_or_default());
        }
        let what = "the server's message is in the records file only, as it may quote the prompt";
        // Not the first word of `error`, which may be one of the prompt's.
        let code = self.more.error_code;
        Cow::Owned(code.map_or_else(|| what.into(), |code| format!("{code}; {what}")))
    }

    /// How far below zero a duration may be measured without being wrong, nanoseconds: the clocks'
    /// offsets are known only so well.
    pub fn tolerance(&self) -> i64 {
        let errors = self.timeline.other_clocks();
        TOLERANCE_NANOS + errors.map(|(_, offset)| offset.error_nanos).sum::<i64>()
    }

    /// The durations that follow from two moments, by column; that of `ttft` by its source.
    pub fn periods(&self) -> impl Iterator<Item = (&'static Column, Period)> + use<> {
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
