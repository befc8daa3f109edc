//! Figures of the last minutes, collected in slots of a few seconds.

use std::sync::Arc;

use crate::clock::{NANOS, Stamp};
use crate::request::column::{Scope, Value};
use crate::request::columns::{Column, ColumnId};
use crate::request::outcome::Outcome;
use crate::request::time_spent::TimeSpent;
use crate::request::timeline::Moment;
use crate::stats::Histogram;
use crate::telemetry::counted::CountedRequest;

/// The length of a slot.
pub const SLOT_SECONDS: i64 = 10;
/// The length of the window.
pub const WINDOW_SECONDS: i64 = 300;
/// One more than fit into the window, which includes only a part of the first and the last.
const SLOTS: i64 = WINDOW_SECONDS / SLOT_SECONDS + 1;

/// The columns with quantiles, of successful requests.
const FIGURES: [ColumnId; 5] = [
    ColumnId::ttft,
    ColumnId::elapsed,
    ColumnId::queue_time_in_router,
    ColumnId::pure_queue_time,
    ColumnId::tpot,
];

/// The slots of the last minutes, each at its index modulo their number. A slot with a reader is copied before it changes.
#[derive(Debug, Default)]
pub struct Window([Arc<Slot>; SLOTS as usize]);

/// The figures of the requests that ended within one slot, or within the window.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    /// Its first second divided by [`SLOT_SECONDS`].
    index: i64,
    outcomes: [u64; Outcome::ALL.len()],
    /// The number of their output tokens.
    pub output_tokens: u64,
    /// What the time of successful requests was spent on: in total, and until the first token.
    pub spent: [TimeSpent; 2],
    quantiles: [Histogram; FIGURES.len()],
}

impl Window {
    /// Adds a request that ended at `at`.
    pub fn add(&mut self, at: Stamp, counted: &CountedRequest<'_>) {
        let index = index(at);
        let slot = Arc::make_mut(&mut self.0[index.rem_euclid(SLOTS) as usize]);
        if slot.index < index {
            *slot = Slot {
                index,
                ..Slot::default()
            };
        }
        if slot.index == index {
            slot.add(counted);
        }
    }

    /// Returns the slots in the window at `now`.
    pub(super) fn slots(&self, now: Stamp) -> Vec<Arc<Slot>> {
        let oldest = index(now) - SLOTS + 1;
        let all = self.0.iter();
        all.filter(|slot| slot.index >= oldest).cloned().collect()
    }
}

impl Slot {
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

    /// Returns the sum of the slots of a window.
    pub(super) fn sum(slots: &[Arc<Slot>]) -> Slot {
        let mut sum = Slot::default();
        slots.iter().for_each(|slot| sum.merge(slot));
        sum
    }

    fn merge(&mut self, more: &Slot) {
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

fn index(at: Stamp) -> i64 {
    at.nanos().div_euclid(SLOT_SECONDS * NANOS)
}
