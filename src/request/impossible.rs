//! Impossible values: they stay in their row as reported, the row's `inconsistency` names them, and figures leave them out.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::cell::Value;
use super::column::Unit;
use super::columns::{COLUMNS, Column, Row};
use super::sequence::{MissingReason, TimingSource};
use super::timeline::{ClockOf, Moment, Period, Relation, Side, TOLERANCE_NANOS};

/// The impossible values of a row.
#[derive(Debug, Default)]
pub struct Impossible {
    /// What `inconsistency` names.
    names: Vec<String>,
    /// The columns of durations not larger than the errors of their clocks: only that bound of them is known.
    within: Vec<&'static str>,
    /// Times of the engine, on its clock alone, are impossible.
    engine: bool,
    /// Clocks whose distance to ours makes durations impossible.
    clocks: Vec<ClockOf>,
    /// The number of generated tokens is impossible; likewise below for prompt and cached tokens.
    output: bool,
    prompt: bool,
    cached: bool,
}

/// Pairs of moments that must be in this order if both are of one clock.
const ORDER: [(Moment, Moment); 20] = [
    (Moment::Scheduled, Moment::Sent),
    (Moment::Sent, Moment::ResponseHead),
    (Moment::Arrival, Moment::Forwarded),
    (Moment::Arrival, Moment::RequestEnd),
    (Moment::Forwarded, Moment::ResponseHead),
    (Moment::WorkerArrival, Moment::WorkerForwarded),
    (Moment::Forwarded, Moment::WorkerArrival),
    (Moment::ServerCreated, Moment::QueueStart),
    (Moment::QueueStart, Moment::QueueEnd),
    (Moment::QueueEnd, Moment::PrefillEnd),
    (Moment::PrefillEnd, Moment::ServerFirstToken),
    (Moment::QueueStart, Moment::KvReserved),
    (Moment::KvReserved, Moment::KvArrived),
    (Moment::KvArrived, Moment::DecodeStart),
    (Moment::DecodeStart, Moment::ServerFirstToken),
    (Moment::ServerFirstToken, Moment::ServerFinish),
    (Moment::ResponseHead, Moment::FirstEvent),
    (Moment::FirstEvent, Moment::FirstToken),
    (Moment::FirstToken, Moment::LastToken),
    (Moment::LastToken, Moment::Finish),
];
/// More tokens than any prompt or response has; `Impossible::check_tokens` has it in its text.
const MAX_TOKENS: u64 = 100_000_000;
/// A token may come in several events (the end of a thought, a call's name), but not most of them.
const EVENTS_PER_TOKEN: u64 = 2;
const EXTRA_EVENTS: u64 = 16;

/// Returns the rows of a request without impossible values: impossible times of the engine count as not reported, a clock with
/// impossible durations as not comparable, impossible token counts as unknown.
pub fn without_impossible(rows: &[Row]) -> Cow<'_, [Row]> {
    // `inconsistency` names every impossible value.
    if rows.iter().all(|row| row.inconsistency.is_none()) {
        return Cow::Borrowed(rows);
    }
    let mut rows = rows.to_vec();
    for row in &mut rows {
        let found = Impossible::of(row);
        if found.kinds().next().is_some() {
            found.remove_from(row);
        }
    }
    Cow::Owned(rows)
}

impl Row {
    /// The longest that anything within the request can have taken, by a clock that runs up to 200 ppm faster than ours; `None`
    /// if the server may have gone on after the end that we saw.
    fn longest_nanos(&self) -> Option<i64> {
        let is_over = self.is_ok() && !self.is_in_background();
        if !is_over && self.timing_source != Some(TimingSource::MetaInfo) {
            return None;
        }
        let from = match self.timeline.side() {
            Side::Traffic => Moment::Sent,
            Side::Front => Moment::Arrival,
            Side::Hop => Moment::RouterSend,
        };
        let to = |to| self.timeline.nanos(Period { from, to });
        let whole = to(Moment::End).or_else(|| to(Moment::Finish))?;
        Some(whole.saturating_add(whole / 5000 + 5 * TOLERANCE_NANOS))
    }
}

impl Impossible {
    /// Finds the impossible values of a row: moments of one clock out of order, durations longer than the request, token counts.
    /// The engine's moments may differ by a float's rounding.
    pub fn of(row: &Row) -> Impossible {
        let mut found = Impossible::default();
        let raw = |moment| row.timeline.raw(moment);
        for (from, to) in ORDER {
            let period = Period { from, to };
            let nanos = raw(to).and_then(|to| Some(to.nanos_since(raw(from)?)));
            let is_wrong = nanos.is_some_and(|nanos| nanos < -TOLERANCE_NANOS);
            if is_wrong && row.timeline.clocks(period).is_some_and(|(a, b)| a == b) {
                found.names.push(format!("{}<{}", to.name(), from.name()));
                found.blame(row, period);
            }
        }
        found.check_durations(row);
        found.check_tokens(row);
        found
    }

    /// Returns the row's `inconsistency`: the impossible values, negative durations, and what else is `noted`.
    pub(super) fn named(&self, row: &Row, noted: Vec<String>) -> Option<String> {
        let mut names = self.names.clone();
        let tolerance = row.tolerance();
        static LATENCIES: LazyLock<Vec<&Column>> = LazyLock::new(|| {
            let columns = COLUMNS.iter();
            columns
                .filter(|column| column.unit == Unit::Latency)
                .collect()
        });
        for column in &**LATENCIES {
            if matches!((column.get)(row), Value::Nanos(nanos) if nanos < -tolerance) {
                names.push(format!("{}<0", column.name));
            }
        }
        names.extend(noted);
        (!names.is_empty()).then(|| names.join(";"))
    }

    /// Returns the row's `within_clock_error`.
    pub(super) fn within(&self) -> Option<String> {
        (!self.within.is_empty()).then(|| self.within.join(";"))
    }

    /// The kinds of values that figures leave out, as metrics label them.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> {
        let tokens = self.output || self.prompt || self.cached;
        let all = Impossible::KINDS.into_iter();
        let is_any = [self.engine, !self.clocks.is_empty(), tokens];
        all.zip(is_any).filter_map(|(kind, is)| is.then_some(kind))
    }

    /// All that [`Impossible::kinds`] can return.
    pub const KINDS: [&str; 3] = ["times", "clocks", "tokens"];

    fn check_durations(&mut self, row: &Row) {
        let longest = row.longest_nanos();
        let is_too_long =
            |nanos: i64, error| longest.is_some_and(|max| nanos.saturating_sub(error) > max);
        let tolerance = row.tolerance();
        // Durations in this range are possible, whatever their clocks' errors are.
        let possible = tolerance - TOLERANCE_NANOS + 1..=longest.unwrap_or(i64::MAX);
        for (column, period) in row.periods() {
            if matches!((column.get)(row), Value::Nanos(nanos) if possible.contains(&nanos)) {
                continue;
            }
            let (name, Some((nanos, error))) = (column.name, row.timeline.measured(period)) else {
                continue;
            };
            if error > 0 && nanos.saturating_abs() <= error {
                self.within.push(name);
            }
            // A period that begins with the schedule may be longer than the request.
            let is_too_long = is_too_long(nanos, error) && period.from > Moment::Scheduled;
            if is_too_long {
                self.names.push(format!("{name}>elapsed"));
            }
            if is_too_long || nanos < -tolerance && period.from > Moment::Scheduled {
                self.blame(row, period);
            }
        }
        let queue = row.pure_queue_time;
        if queue.is_some_and(|nanos| is_too_long(nanos, 0)) {
            self.names.push("pure_queue_time>elapsed".to_owned());
            self.engine = true;
        }
    }

    /// Blames an impossible period on the engine's times or on a clock; never on our own clock, or another of our process.
    fn blame(&mut self, row: &Row, period: Period) {
        let Some((from, to)) = row.timeline.clocks(period) else {
            return;
        };
        // Of two clocks the one farther from the client: a hop whose clock is wrong is wrong to the front as well.
        match if (from as u8) < to as u8 { to } else { from } {
            ClockOf::Engine if from == to => self.engine = true,
            clock if matches!(row.timeline.relation(clock), Relation::Apart(_)) => {
                self.clocks.push(clock);
            }
            _ => {}
        }
    }

    fn check_tokens(&mut self, row: &Row) {
        let events = row.token_chunks.unwrap_or(0);
        let (output, prompt) = (row.actual_output_tokens, row.actual_prompt_tokens);
        // If none was requested, an echo of the prompt is no token.
        let is_zero = |n| n == 0 && events > 0 && row.expected_output_length != Some(0);
        let is_few = |n: u64| {
            events
                > n.saturating_mul(EVENTS_PER_TOKEN)
                    .saturating_add(EXTRA_EVENTS)
        };
        let too_few = output.is_some_and(|n| is_zero(n) || is_few(n));
        let too_many = |counts: &[Option<u64>]| counts.iter().flatten().any(|n| *n > MAX_TOKENS);
        let of_all = [row.request_output_tokens, row.output_tokens_from_trace];
        let output_many = too_many(&[output]) || too_many(&of_all);
        let prompt_many = too_many(&[prompt, row.request_prompt_tokens]);
        // A sequence that was retracted may find its own tokens in the cache.
        let is_retracted = row.num_retractions.unwrap_or(0) > 0;
        let exceeds_prompt = row
            .cached_tokens
            .zip(prompt)
            .is_some_and(|(cached, prompt)| cached > prompt);
        self.output = too_few || output_many;
        self.prompt = prompt_many;
        self.cached = exceeds_prompt && !is_retracted || too_many(&[row.cached_tokens]);
        let names = [
            (too_few, "actual_output_tokens<token_chunks"),
            (output_many, "actual_output_tokens>100000000"),
            (prompt_many, "actual_prompt_tokens>100000000"),
            (self.cached, "cached_tokens>actual_prompt_tokens"),
        ];
        let names = names.iter().filter(|(is, _)| *is);
        self.names.extend(names.map(|(_, name)| (*name).to_owned()));
    }

    fn remove_from(self, row: &mut Row) {
        if self.engine {
            row.timeline.forget_engine();
            row.pure_queue_time = None;
            row.internal.missing_reason = Some(MissingReason::Impossible);
        }
        for clock in self.clocks {
            row.timeline.relate(clock, Relation::Unknown);
        }
        if self.output {
            row.actual_output_tokens = None;
            row.actual_total_tokens = None;
            row.decode_length = None;
            row.token_count_source = None;
            row.output_tokens_from_trace = None;
            row.request_output_tokens = None;
            row.tpot = None;
            (row.itl_mean, row.itl_p99, row.itl_max) = (None, None, None);
            row.internal.gaps = None;
        }
        if self.prompt {
            row.actual_prompt_tokens = None;
            row.request_prompt_tokens = None;
        }
        if self.cached {
            row.cached_tokens = None;
            row.request_cached_tokens = None;
        }
        row.derive_anew();
    }
}

#[cfg(test)]
mod tests;
