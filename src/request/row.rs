//! A row: what is known of a generated sequence and of its request, from the request's beginning on; final when that has ended. What it
//! lacks, and why; how it is completed when its cells have been read from a file.

use std::sync::{Arc, LazyLock};

use crate::clock::Stamp;
use crate::offset::Offset;

pub use super::columns::Row;
pub use super::timeline::{ClockState, TtftSource};

use super::attempt::{Attempt, BodyTiming};
use super::cell::Cell;
use super::columns::{COLUMNS, Column, ColumnId, Origin};
use super::impossible::Impossible;
use super::meta_info::Generation;
use super::outcome::Outcome;
use super::response::{Endpoint, Unread};
use super::sequence::{MissingReason, TimingSource, TokenCountSource};
use super::stages::StageSet;
use super::timeline::Timeline;
use super::timeline::{ClockOf, Moment, Period, PrefillTimes, Relation, Side, TOLERANCE_NANOS};
use super::unseen::{Unseen, Unseens};

/// The rows of a request, one per sequence, shared by all consumers.
pub type Rows = Arc<Vec<Row>>;

/// The columns of durations between two moments: every row that ends looks at all of them.
static PERIODS: LazyLock<Vec<(&Column, Period)>> = LazyLock::new(|| {
    let periods = COLUMNS.iter().filter_map(|column| match column.origin {
        Origin::Period(period) => Some((column, period)),
        _ => None,
    });
    periods.collect()
});

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
        self.tpot = self.tpot_nanos();
        self.inconsistency = self.derive_anew().named(self);
    }

    /// Computes everything that follows from moments and clocks: at the row's end, and again after those have changed. Returns the
    /// impossible values.
    pub fn derive_anew(&mut self) -> Impossible {
        self.derive();
        self.pure_queue_time = self.pure_queue();
        let found = Impossible::of(self);
        self.within_clock_error = Some(found.within.join(";")).filter(|names| !names.is_empty());
        self.ended_in = self.find_ended_in();
        self.unseen = Some(Unseens::found(self)).filter(|unseen| *unseen != Unseens::default());
        found
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

    /// The name of the hop that it came through, else of the server: what metrics and the live page call its worker.
    pub fn worker_or_host(&self) -> Option<&str> {
        self.worker.as_deref().or(self.host.as_deref())
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
        let ttft = (ColumnId::ttft.column(), ttft);
        PERIODS.iter().copied().chain([ttft])
    }

    /// Returns prompt tokens: by `meta_info`, else `usage`, which is of the whole request and so counts only if there is one prompt.
    pub fn prompt_tokens(&self) -> Option<u64> {
        let has_one_prompt = u64::from(self.sequences) <= self.internal.n.max(1);
        let usage = self.internal.usage_prompt_tokens;
        self.actual_prompt_tokens
            .or(usage.filter(|_| has_one_prompt))
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
        let n = first.internal.n.max(1);
        let is_same = |a: &Row, b: &Row| u64::from(a.index) / n == u64::from(b.index) / n;
        // Of a response that was cut, a prompt's first sample may have brought nothing. Any other has the same counts: SGLang puts
        // a prompt into its cache before it makes samples.
        let of_prompts = |count: fn(&Row) -> Option<u64>| {
            let prompts = rows.chunk_by(is_same);
            sum(prompts.map(|samples| samples.iter().find_map(count)))
        };
        let prompt = of_prompts(|row| row.actual_prompt_tokens);
        let prompt = prompt.or(first.internal.usage_prompt_tokens);
        let cached = of_prompts(|row| row.cached_tokens);
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

impl Unseens {
    /// Returns what of a row was not measured: as the row says, else by what it lacks.
    pub fn of(row: &Row) -> Unseens {
        row.unseen.unwrap_or_else(|| Unseens::found(row))
    }

    /// Returns what a row lacks. A row that was read from a file keeps its reason for the engine's moments.
    pub(super) fn found(row: &Row) -> Unseens {
        let timeline = &row.timeline;
        let lacks = |moment| timeline.raw(moment).is_none();
        // No stage needs the others.
        let is_needed =
            |moment: &Moment| !matches!(moment, Moment::PrefillEnd | Moment::ServerFinish);
        let engine = || timeline.engine_moments().iter().copied().filter(is_needed);
        let is_complete = |times: PrefillTimes| times.queue.is_some() && times.forward.is_some();
        let no_leg = timeline.prefill().is_some_and(|times| !is_complete(times));
        let apart = |moment| !lacks(moment) && timeline.on_own_clock(moment).is_none();
        let is_engine_apart = timeline.relation(ClockOf::Engine) == Relation::Unknown;
        let all = [
            (Unseen::Router, lacks(Moment::RouterSend)),
            (Unseen::of_engine(row), no_leg || engine().any(lacks)),
            (Unseen::EngineClock, is_engine_apart && !engine().all(lacks)),
            (
                Unseen::ProxyClock,
                apart(Moment::Arrival) || apart(Moment::RouterSend),
            ),
            (Unseen::FirstToken, lacks(Moment::FirstToken)),
        ];
        let found = all.into_iter().filter(|(_, is)| *is);
        found.map(|(one, _)| one).collect()
    }
}

impl Unseen {
    /// Returns why the engine's moments are unknown, for a row that succeeded.
    pub fn of_engine(row: &Row) -> Unseen {
        let is_stream = row.stream == Some(true);
        if row.internal.missing_reason == Some(MissingReason::Impossible) {
            return Unseen::Impossible;
        }
        if let Some(reason) = row.unseen.and_then(Unseens::engine) {
            return reason;
        }
        if row.unread.is_some() {
            return Unseen::Hidden;
        }
        if let Some(TimingSource::Trace | TimingSource::Log) = row.timing_source {
            return Unseen::Joined;
        }
        let is_retracted =
            row.num_retractions > Some(0) && row.timeline.raw(Moment::QueueStart).is_none();
        let by_response = match (row.internal.generation, row.endpoint()) {
            (Some(Generation::Before0_5_5), _) => Unseen::TooOld,
            (Some(Generation::MetricsOff), _) => Unseen::MetricsOff,
            (Some(_), _) if row.timeline.prefill().is_some() => Unseen::Pair,
            (Some(_), _) if is_retracted => Unseen::Retracted,
            (Some(_), _) => Unseen::Part,
            (None, Endpoint::Generate) => Unseen::NoMeta,
            (None, _) if is_stream => Unseen::Stream,
            (None, Endpoint::Chat) => Unseen::ChatReply,
            (None, _) => Unseen::Reply,
        };
        match row.internal.front_joins_engine && by_response.is_elsewhere() {
            true => Unseen::InProxy,
            false => by_response,
        }
    }
}

/// Rows read from files: their clocks and moments, taken from their cells.
impl Row {
    /// Completes the rows of a request after all their cells have been set.
    pub fn finish_reading(rows: &mut [Row]) {
        let sequences = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        for (row, index) in rows.iter_mut().zip(0..) {
            row.index = index;
            row.sequences = sequences;
            // An outcome that this version does not know is none of the known ones.
            let is_ok = row.success == Some(true);
            row.outcome = row.outcome.or(is_ok.then_some(Outcome::Ok));
            row.outcome.get_or_insert(Outcome::ProxyError);
            // Nothing else ends in the router alone.
            let in_router = StageSet::of(Period::QUEUE_IN_ROUTER);
            row.internal.is_routers_error = row.ended_in == Some(in_router);
            row.timeline = row.read_timeline();
        }
    }

    fn read_timeline(&self) -> Timeline {
        // Rows written before the column `seen_by` existed: `sent_time` is known to the generator only.
        let side = self.seen_by.or(self.sent_time.map(|_| Side::Traffic));
        let mut timeline = Timeline::new(side.unwrap_or(Side::Front));
        self.relate(&mut timeline);
        if self.disaggregated == Some(true) {
            timeline.set_pair(PrefillTimes {
                queue: self.prefill_queue_time,
                forward: self.prefill_time,
                sending: self.kv_send_time,
            });
        }
        for column in &COLUMNS {
            if let Origin::Moment(moment) = column.origin
                && let Some(at) = Stamp::of((column.get)(self))
            {
                self.mark(&mut timeline, moment, at);
            }
        }
        if let Some(at) = self.worker_first_token_time {
            self.mark(&mut timeline, Moment::WorkerFirstToken, at);
        }
        timeline
    }

    /// Sets a moment from the row's time of it: converts the time from the row's clock to the clock that read it.
    fn mark(&self, timeline: &mut Timeline, moment: Moment, at: Stamp) {
        let (clock, moment) = match moment {
            Moment::Arrival if !self.has_front() => return,
            // Without a hop, the router's send is our own, as the upstream is the server.
            Moment::RouterSend if self.worker.is_none() && self.worker_forwarded_time.is_none() => {
                return timeline.upstream_is_server(true);
            }
            Moment::RouterSend => (ClockOf::Hop, Moment::WorkerArrival),
            moment => (moment.clock(timeline.side()), moment),
        };
        let clock = match clock {
            ClockOf::Hop if self.hop_clock_offset.is_none() => ClockOf::Front,
            clock => clock,
        };
        let ahead = timeline.offset(clock).map_or(0, |offset| offset.nanos);
        timeline.set(moment, at.plus_nanos(ahead));
    }

    /// Sets how the other clocks relate to that of the row.
    fn relate(&self, timeline: &mut Timeline) {
        let apart = |nanos: Option<i64>, error: Option<i64>| {
            let (nanos, error_nanos) = (nanos?, error?);
            Some(Relation::Apart(Offset { nanos, error_nanos }))
        };
        // If two times are present and the duration between them is not, the distance of their clocks was unknown.
        let relation = |from: Option<Stamp>, to: Option<Stamp>, between: Option<i64>| match between
        {
            None if from.and(to).is_some() => Relation::Unknown,
            _ => Relation::Same,
        };
        if self.clock_state == Some(ClockState::Offset) {
            let engine = apart(self.clock_offset, self.clock_offset_error);
            timeline.relate(ClockOf::Engine, engine.unwrap_or(Relation::Same));
        }
        let front = apart(self.front_clock_offset, self.front_clock_offset_error);
        // Every request ends, also one of whose response nothing was read. Older rows have no such column.
        let (ended, lasted) = match self.end_time {
            None => (self.finish_time, self.total_latency),
            end => (end, self.elapsed),
        };
        let default = relation(self.arrival_time, ended, lasted);
        timeline.relate(ClockOf::Front, front.unwrap_or(default));
        let (arrival, send) = (self.arrival_time, self.router_send_time);
        let default = relation(arrival, send, self.queue_time_in_router);
        // Without a hop's moment there may still be a hop, in a process of its own.
        let is_shared = default == Relation::Same && timeline.side() != Side::Hop && send.is_some();
        match apart(self.hop_clock_offset, self.hop_clock_offset_error) {
            None if is_shared => timeline.hop_shares_front(),
            hop => timeline.relate(ClockOf::Hop, hop.unwrap_or(Relation::Unknown)),
        }
    }

    /// Whether a front took part: a generator's row has an arrival of its own only if a front reported it; else the send stands
    /// there.
    fn has_front(&self) -> bool {
        self.forwarded_time.is_some()
            || self.request_end_time.is_some()
            || self.sent_time != self.arrival_time
    }
}

#[cfg(test)]
mod tests;
