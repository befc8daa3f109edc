//! A row: what is known of a generated sequence and of its request, from the request's beginning on; final when that has ended.

use std::sync::Arc;

use crate::clock::Stamp;

pub use super::columns::Row;
pub use super::timeline::{ClockState, TtftSource};

use super::attempt::Attempt;
use super::body_timing::BodyTiming;
use super::column::Origin;
use super::columns::{COLUMNS, Column, ColumnId};
use super::endpoint::Endpoint;
use super::impossible::Impossible;
use super::outcome::Outcome;
use super::response::Unread;
use super::sequence::TokenCountSource;
use super::timeline::{Period, Side, TOLERANCE_NANOS, Timeline};
use super::unseen::Unseens;

mod missing;
mod read;

/// The rows of a request, one per sequence, shared by all consumers.
pub type Rows = Arc<Vec<Row>>;

/// Returns the rows without messages of the server, which may quote the prompt: for all consumers but the records file.
pub fn without_quotes(rows: &Rows) -> Rows {
    if !rows.iter().any(|row| row.internal.unquoted_error.is_some()) {
        return rows.clone();
    }
    let mut own = Vec::clone(rows);
    for row in &mut own {
        let unquoted = row.internal.unquoted_error.clone();
        row.error = unquoted.or(row.error.take());
    }
    own.into()
}

impl Row {
    /// Makes the row of a request to `endpoint` that `side` begins to observe.
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

    /// Sets the row's index among the `sequences` of its request.
    pub(super) fn set_index(&mut self, index: u32, sequences: u32) {
        (self.index, self.sequences) = (index, sequences);
        if let (Some(id), 2..) = (&mut self.req_id, sequences) {
            *id = format!("{id}#{index}");
        }
    }

    /// Sets when the body of its response passed the front (`here`) and the worker hop.
    pub fn set_body_timings(&mut self, here: BodyTiming, worker: BodyTiming) {
        let between = |there: Option<Stamp>, here: Option<Stamp>| Some(here?.nanos_since(there?));
        self.worker_first_byte_time = worker.first;
        self.worker_last_byte_time = worker.last;
        self.worker_longest_gap = worker.longest_gap_nanos;
        self.router_return = between(worker.first, here.first);
        self.router_return_last = between(worker.last, here.last);
        let gaps = here.longest_gap_nanos.zip(worker.longest_gap_nanos);
        self.router_gap_added = gaps.map(|(here, worker)| here - worker);
    }

    /// Sets the leg that another server prefilled.
    pub fn prefilled_by(&mut self, leg: &Attempt) {
        self.prefill_host = Some(leg.host.clone()).filter(|host| !host.is_empty());
        self.internal.prefill_worker = Some(leg.worker.clone());
    }

    /// Finalizes the rows of a request of which everything has been reported.
    pub fn ended(mut rows: Vec<Row>) -> Vec<Row> {
        Row::sum_tokens(&mut rows);
        for row in &mut rows {
            row.count_tokens();
            row.end();
        }
        rows
    }

    /// Returns its cells as an object, by column name.
    pub fn to_json(&self) -> serde_json::Value {
        let cells = COLUMNS.iter();
        let cells = cells.map(|column| (column.name, (column.get)(self).to_json()));
        cells.collect()
    }

    fn end(&mut self) {
        self.success = Some(self.is_ok());
        self.bootstrap_room = self.internal.room.map(|room| room.to_string());
        self.derive();
        self.pure_queue_time = self.pure_queue();
        self.tpot = self.tpot_nanos();
        let found = Impossible::of(self);
        self.inconsistency = found.named(self);
        self.conclude(&found);
    }

    /// Sets the columns that follow from all others.
    fn conclude(&mut self, found: &Impossible) {
        self.within_clock_error = Some(found.within.join(";")).filter(|names| !names.is_empty());
        let last_seen = self.find_last_seen();
        let ended_in = last_seen.map(|seen| seen.ended_in(|stage| stage.name));
        self.ended_in = ended_in.or(self.is_ok().then(|| "done".to_owned()));
        self.unseen = Some(Unseens::found(self)).filter(|unseen| *unseen != Unseens::default());
    }

    /// Computes again everything that follows from moments and clocks, after those have changed.
    pub fn derive_anew(&mut self) {
        self.derive();
        self.pure_queue_time = self.pure_queue();
        self.conclude(&Impossible::of(self));
    }

    /// Returns the time in the server queue, nanoseconds; of a prefill/decode pair, the sum of its three waits.
    pub fn pure_queue(&self) -> Option<i64> {
        let waited = self.timeline.nanos(Period::PURE_QUEUE);
        // What a decode server reports by itself is its own wait only.
        let is_pair = self.timeline.prefill().is_some();
        waited.or(self.pure_queue_time.filter(|_| !is_pair))
    }

    /// Returns how it ended.
    pub fn outcome(&self) -> Outcome {
        self.outcome.unwrap_or_default()
    }

    /// Returns the endpoint it was sent to.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint.unwrap_or(Endpoint::Generate)
    }

    /// Whether the request succeeded.
    pub fn is_ok(&self) -> bool {
        self.outcome == Some(Outcome::Ok)
    }

    /// Whether the server only accepted it, to generate in the background: its end is not the generation's.
    pub fn is_in_background(&self) -> bool {
        self.unread == Some(Unread::Background)
    }

    /// Whether this row represents its request in sums of request-wide figures.
    pub fn is_first_of_request(&self) -> bool {
        self.index == 0
    }

    /// Returns the id of its request.
    pub fn request_id(&self) -> &str {
        let id = self.req_id.as_deref().unwrap_or_default();
        match self.sequences {
            0 | 1 => id,
            _ => id.rsplit_once('#').map_or(id, |(id, _)| id),
        }
    }

    /// Returns `error` without a message of the server.
    pub fn own_error(&self) -> &str {
        let unquoted = self.internal.unquoted_error.as_ref();
        unquoted.or(self.error.as_ref()).map_or("", String::as_str)
    }

    /// How far below zero a duration may be measured without being wrong, nanoseconds: clock offsets have errors.
    pub fn tolerance(&self) -> i64 {
        let errors = self.timeline.other_clocks();
        TOLERANCE_NANOS + errors.map(|(_, offset)| offset.error_nanos).sum::<i64>()
    }

    /// Returns the durations between two moments, by column; that of `ttft` by its source.
    pub fn periods(&self) -> impl Iterator<Item = (&'static Column, Period)> + use<> {
        let ttft = match self.ttft_source {
            Some(TtftSource::Server) => Period::TTFT_ENGINE,
            _ => Period::TTFT_OBSERVED,
        };
        let periods = COLUMNS.iter().filter_map(|column| match column.origin {
            Origin::Period(period) => Some((column, period)),
            _ => None,
        });
        periods.chain([(ColumnId::ttft.column(), ttft)])
    }

    /// Returns which process observed it.
    pub fn side(&self) -> Side {
        self.timeline.side()
    }

    /// Returns prompt tokens: by `meta_info`, else `usage`.
    pub fn prompt_tokens(&self) -> Option<u64> {
        self.actual_prompt_tokens
            .or(self.internal.usage_prompt_tokens)
    }

    /// Returns generated tokens: by `meta_info`, else `usage`. Unless it counts each sequence, `usage` is of the whole request
    /// and so counts only if there is one sequence.
    pub fn output_tokens(&self) -> Option<u64> {
        let own = self.actual_output_tokens;
        TokenCountSource::choose(self.token_count_source, own, self.usage_tokens())
    }

    fn usage_tokens(&self) -> Option<u64> {
        let usage = self.internal.usage_completion_tokens;
        usage.filter(|_| self.sequences == 1)
    }

    /// Returns the number of tokens after those of the first event. If only `usage` gives their number, the first event is taken
    /// to have brought one, as the engine sends it.
    pub fn later_tokens(&self) -> Option<u64> {
        let first = self.first_event_tokens.unwrap_or(1);
        Some(self.actual_output_tokens?.saturating_sub(first))
    }

    /// Sets the token columns from what events, servers and `usage` reported.
    fn count_tokens(&mut self) {
        // Counts from `usage` of the whole request, or from the engine's trace or log, are no event's own.
        let source = self.token_count_source;
        let is_by_event = self.actual_output_tokens.is_some()
            && source != Some(TokenCountSource::Trace)
            && source != Some(TokenCountSource::Log);
        let output = self.output_tokens();
        if !is_by_event && output.is_some() && output == self.token_chunks {
            self.itl_mean = self.chunk_gap_mean;
            self.itl_p99 = self.chunk_gap_p99;
            self.itl_max = self.chunk_gap_max;
        }
        self.internal.gaps.take_if(|_| self.itl_mean.is_none());
        let usage = self.usage_tokens().map(|_| TokenCountSource::Usage);
        self.token_count_source = source.or(usage);
        self.actual_prompt_tokens = self.prompt_tokens();
        self.actual_output_tokens = output;
        self.decode_length = output;
        let both = self.actual_prompt_tokens.zip(output);
        self.actual_total_tokens = both.map(|(prompt, output)| prompt.saturating_add(output));
    }

    /// Returns the time per output token after those of the first event, without the client's stalls, nanoseconds; `None` if the
    /// number of tokens is unknown or they came in one event.
    fn tpot_nanos(&self) -> Option<i64> {
        self.token_chunks.filter(|events| *events > 1)?;
        let nanos = self.timeline.nanos(Period::TOKENS)?;
        let nanos = nanos.checked_sub(self.internal.stall_nanos)?;
        nanos.checked_div(i64::try_from(self.later_tokens()?).ok()?)
    }

    /// Sets the token counts of the whole request in its rows: the sums of its sequences, else `usage`. Samples of one prompt
    /// share the prompt's tokens.
    fn sum_tokens(rows: &mut [Row]) {
        let Some(first) = rows.first() else {
            return;
        };
        let is_first = |row: &&Row| u64::from(row.index).is_multiple_of(row.internal.n.max(1));
        let prompts = || rows.iter().filter(is_first);
        let prompt = sum(prompts().map(|row| row.actual_prompt_tokens));
        let prompt = prompt.or(first.internal.usage_prompt_tokens);
        let cached = sum(prompts().map(|row| row.cached_tokens));
        let output = sum(rows.iter().map(|row| row.actual_output_tokens));
        let usage = first.internal.usage_completion_tokens;
        let output = TokenCountSource::choose(first.token_count_source, output, usage);
        for row in rows {
            row.request_prompt_tokens = prompt;
            row.request_cached_tokens = cached;
            row.request_output_tokens = output;
        }
    }
}

/// The sum, if every part is known.
fn sum(parts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    parts.reduce(|a, b| Some(a?.saturating_add(b?)))?
}
