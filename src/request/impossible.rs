//! Impossible values: they stay in their row as reported, the row's `inconsistency` names them, and figures leave them out.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::cell::Value;
use super::columns::{COLUMNS, Column, Row, Unit};
use super::sequence::{MissingReason, TimingSource};
use super::timeline::{ClockOf, Moment, Period, Relation, TOLERANCE_NANOS};

/// The impossible values of a row.
#[derive(Debug, Default)]
pub struct Impossible {
    /// What `inconsistency` names.
    names: Vec<String>,
    /// The columns of durations not larger than the errors of their clocks: only that bound of them is known.
    pub(super) within: Vec<&'static str>,
    /// Times of the engine, on its clock alone, are impossible.
    times: bool,
    /// Distances of other clocks to ours make durations impossible.
    clocks: bool,
    /// Numbers of tokens are impossible.
    tokens: bool,
}

/// Moments of our own processes that must be in this order if they are of one clock.
const OURS: [&[Moment]; 5] = {
    use Moment::*;
    [
        &[Scheduled, Sent, ResponseHead, FirstEvent],
        &[FirstEvent, FirstToken, LastToken, Finish],
        &[Arrival, Forwarded, ResponseHead],
        &[Arrival, RequestEnd],
        &[Forwarded, WorkerArrival, WorkerForwarded],
    ]
};
/// More tokens than any prompt or response has; `Impossible::check_tokens` has it in its text.
const MAX_TOKENS: u64 = 100_000_000;

/// The columns of durations, of which no value is negative.
static LATENCIES: LazyLock<Vec<&Column>> = LazyLock::new(|| {
    COLUMNS
        .iter()
        .filter(|of| of.unit == Unit::Latency)
        .collect()
});

/// Returns the rows of a request without impossible values: impossible times of the engine count as not reported, other clocks with
/// impossible durations as not comparable, and all token counts as unknown if one is impossible.
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
        let from = self.timeline.side().first_moment();
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
        for chain in OURS.into_iter().chain([row.timeline.engine_moments()]) {
            for pair in chain.windows(2) {
                let (from, to) = (pair[0], pair[1]);
                let period = Period { from, to };
                let nanos = raw(to).and_then(|to| Some(to.nanos_since(raw(from)?)));
                let is_wrong = nanos.is_some_and(|nanos| nanos < -TOLERANCE_NANOS);
                if is_wrong && row.timeline.clocks(period).is_some_and(|(a, b)| a == b) {
                    found.names.push(format!("{}<{}", to.name(), from.name()));
                    found.blame(row, period);
                }
            }
        }
        found.check_durations(row);
        found.check_tokens(row);
        found
    }

    /// Returns the row's `inconsistency`: the impossible values, negative durations, and whether sequences were not recorded.
    pub(super) fn named(&self, row: &Row) -> Option<String> {
        let mut names = self.names.clone();
        for column in &*LATENCIES {
            if matches!((column.get)(row), Value::Nanos(nanos @ ..0) if nanos < -row.tolerance()) {
                names.push(format!("{}<0", column.name));
            }
        }
        if row.internal.has_unrecorded_sequences && row.index == 0 {
            names.push("sequences_not_recorded".to_owned());
        }
        (!names.is_empty()).then(|| names.join(";"))
    }

    /// The kinds of values that figures leave out, as metrics label them.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> {
        let all = Impossible::KINDS.into_iter();
        let is_any = [self.times, self.clocks, self.tokens];
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
            self.times = true;
        }
    }

    /// Blames an impossible period on the engine's times or on the distances of clocks; never on our own clock.
    fn blame(&mut self, row: &Row, period: Period) {
        match row.timeline.clocks(period) {
            Some((ClockOf::Engine, ClockOf::Engine)) => self.times = true,
            Some((from, to)) => self.clocks |= from != to,
            None => {}
        }
    }

    fn check_tokens(&mut self, row: &Row) {
        // If none was requested, an echo of the prompt is no token.
        let is_none = row.actual_output_tokens == Some(0) && row.expected_output_length != Some(0);
        let has_events = row.token_chunks > Some(0);
        let counts = [
            row.actual_output_tokens,
            row.actual_prompt_tokens,
            row.cached_tokens,
            row.output_tokens_from_trace,
            row.request_output_tokens,
            row.request_prompt_tokens,
        ];
        let is_many = counts.into_iter().any(|n| n > Some(MAX_TOKENS));
        let found = [
            (is_none && has_events, "actual_output_tokens<token_chunks"),
            (is_many, "tokens>100000000"),
        ];
        for (_, name) in found.iter().filter(|(is, _)| *is) {
            self.tokens = true;
            self.names.push((*name).to_owned());
        }
    }

    fn remove_from(self, row: &mut Row) {
        if self.times {
            row.timeline.forget_engine();
            row.pure_queue_time = None;
            row.internal.missing_reason = Some(MissingReason::Impossible);
        }
        for clock in ClockOf::ALL.into_iter().filter(|_| self.clocks) {
            if row.timeline.offset(clock).is_some() {
                row.timeline.relate(clock, Relation::Unknown);
            }
        }
        if self.tokens {
            row.actual_output_tokens = None;
            row.actual_prompt_tokens = None;
            row.actual_total_tokens = None;
            row.decode_length = None;
            row.token_count_source = None;
            row.output_tokens_from_trace = None;
            row.request_output_tokens = None;
            row.request_prompt_tokens = None;
            (row.cached_tokens, row.request_cached_tokens) = (None, None);
            row.tpot = None;
            (row.itl_mean, row.itl_p99, row.itl_max) = (None, None, None);
            row.internal.gaps = None;
        }
        row.derive_anew();
    }
}

#[cfg(test)]
mod tests;
