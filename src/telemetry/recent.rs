//! The last requests, and figures of the last minutes, for the live page.
//!
//! Memory is bounded, and so is the time for which a request's end holds the lock.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::clock::{NANOS, Stamp};
use crate::request::cell::Value;
use crate::request::{Column, ColumnId, Moment, Outcome, Rows, Scope, TimeSpent};
use crate::stats::Histogram;

use super::CountedRequest;

/// The requests that ended recently.
#[derive(Debug, Default)]
pub struct Recent(Mutex<State>);

/// A request that has ended.
#[derive(Clone, Debug)]
pub struct RecentRequest {
    /// Its number among all ended requests, starting at 1.
    pub number: u64,
    /// Its first rows, at least one. [`Row::sequences`](crate::request::Row::sequences) is the number of all.
    pub rows: Rows,
}

/// What the live page shows.
#[derive(Clone, Debug)]
pub struct View {
    /// The number of the last ended request; 0 before the first.
    pub last: u64,
    /// The requests after the given number, in order.
    pub requests: Vec<RecentRequest>,
    /// The figures of the last minutes.
    pub figures: Figures,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the last request.
    last: u64,
    all: VecDeque<RecentRequest>,
    /// Failed requests, which are kept longer than the others.
    failed: VecDeque<RecentRequest>,
    /// The start of the current half of the window, divided by [`HALF_SECONDS`].
    half: i64,
    /// The figures of that half and of the one before.
    halves: [Figures; 2],
}

/// The length of half the window. The figures are those of the current half and of the one before.
pub const HALF_SECONDS: i64 = 150;

/// The columns with quantiles, of successful requests.
const FIGURES: [ColumnId; 5] = [
    ColumnId::ttft,
    ColumnId::elapsed,
    ColumnId::queue_time_in_router,
    ColumnId::pure_queue_time,
    ColumnId::tpot,
];

/// The figures of the requests that ended within half the window, or the whole.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    outcomes: [u64; Outcome::ALL.len()],
    /// The number of their output tokens.
    pub output_tokens: u64,
    /// What the time of successful requests was spent on: in total, and until the first token.
    pub spent: [TimeSpent; 2],
    quantiles: [Histogram; FIGURES.len()],
}

/// The maximum number of requests kept, and of failed ones.
const MAX_REQUESTS: usize = 200;
const MAX_FAILED: usize = 50;
/// The maximum number of rows kept of a request.
const MAX_ROWS: usize = 16;

impl Recent {
    /// Adds an ended request. `counted`: `None` if it is not part of the figures, as an attempt at a hop that belongs to no
    /// request of a front here.
    pub fn record(&self, rows: &Rows, counted: Option<&CountedRequest<'_>>) {
        let Some(first) = rows.first() else { return };
        let timeline = &first.timeline;
        let Some(at) = timeline.on_own_clock(Moment::End) else {
            return;
        };
        let first_rows = match rows.len() > MAX_ROWS {
            true => rows[..MAX_ROWS].to_vec().into(),
            false => rows.clone(),
        };
        let is_ok = first.is_ok();
        let mut state = self.0.lock();
        state.last += 1;
        let ended = RecentRequest {
            number: state.last,
            rows: first_rows,
        };
        if !is_ok {
            push(&mut state.failed, MAX_FAILED, ended.clone());
        }
        push(&mut state.all, MAX_REQUESTS, ended);
        if let Some(counted) = counted {
            let half = state.begin_half(at);
            state.halves[half].add(counted);
        }
    }

    /// Returns the requests after number `after`, and the figures of the last minutes.
    pub fn view(&self, after: u64, now: Stamp) -> View {
        let mut state = self.0.lock();
        state.begin_half(now);
        let (last, requests) = (state.last, state.after(after));
        let [current, mut figures] = state.halves.clone();
        drop(state);
        figures.merge(&current);
        View {
            last,
            requests,
            figures,
        }
    }

    /// Returns the requests that are kept, in order.
    pub fn all(&self) -> Vec<RecentRequest> {
        self.0.lock().after(0)
    }
}

impl State {
    /// Begins the half of the window at `at` if it is a later one. Returns the place of that half: 1 for rows of the one before, which
    /// waited to be joined.
    fn begin_half(&mut self, at: Stamp) -> usize {
        let half = at.nanos().div_euclid(HALF_SECONDS * NANOS);
        for _ in 0..(half - self.half).clamp(0, 2) {
            self.halves.swap(0, 1);
            self.halves[0] = Figures::default();
        }
        self.half = self.half.max(half);
        usize::from(half < self.half)
    }

    /// The requests after `number`, in order.
    fn after(&self, number: u64) -> Vec<RecentRequest> {
        let oldest = self.all.front().map(|ended| ended.number);
        let failed = self.failed.iter();
        let failed = failed.filter(|ended| oldest.is_none_or(|oldest| ended.number < oldest));
        let all = failed.chain(&self.all);
        all.filter(|ended| ended.number > number).cloned().collect()
    }
}

fn push(kept: &mut VecDeque<RecentRequest>, max: usize, ended: RecentRequest) {
    if kept.len() == max {
        kept.pop_front();
    }
    kept.push_back(ended);
}

impl Figures {
    fn add(&mut self, counted: &CountedRequest<'_>) {
        let rows = &*counted.rows;
        let Some(first) = rows.first() else { return };
        self.outcomes[first.outcome() as usize] += 1;
        let tokens = first.request_output_tokens.unwrap_or(0);
        self.output_tokens = self.output_tokens.saturating_add(tokens);
        if !first.is_ok() || first.is_in_background() {
            return;
        }
        TimeSpent::count_both(&mut self.spent, first, counted.breakdown.as_ref());
        // If no hop saw the router's sending, the column holds our own: there is no router.
        let has_router = first.timeline.raw(Moment::WorkerArrival).is_some();
        for (figure, histogram) in FIGURES.into_iter().zip(&mut self.quantiles) {
            if figure == ColumnId::queue_time_in_router && !has_router {
                continue;
            }
            let column = figure.column();
            let count = match column.scope {
                Scope::Request => 1,
                Scope::Sequence => rows.len(),
            };
            for row in rows.iter().take(count) {
                if let Value::Nanos(nanos) = (column.get)(row) {
                    histogram.record(nanos, 1);
                }
            }
        }
    }

    fn merge(&mut self, more: &Figures) {
        for (count, more) in self.outcomes.iter_mut().zip(more.outcomes) {
            *count += more;
        }
        self.output_tokens = self.output_tokens.saturating_add(more.output_tokens);
        TimeSpent::add_both(&mut self.spent, more.spent.clone());
        for (histogram, more) in self.quantiles.iter_mut().zip(&more.quantiles) {
            histogram.add(more);
        }
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.outcomes.iter().sum()
    }

    /// Returns the number of requests by outcome, without outcomes that did not occur.
    pub fn outcomes(&self) -> impl Iterator<Item = (Outcome, u64)> {
        let all = Outcome::ALL.into_iter();
        let counted = all.map(|outcome| (outcome, self.outcomes[outcome as usize]));
        counted.filter(|(_, count)| *count > 0)
    }

    /// Returns each column with quantiles and its values, nanoseconds.
    pub fn quantiles(&self) -> impl Iterator<Item = (&'static Column, &Histogram)> {
        FIGURES
            .map(ColumnId::column)
            .into_iter()
            .zip(&self.quantiles)
    }
}

#[cfg(test)]
mod tests;
