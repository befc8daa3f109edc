//! Figures of the last minutes, gathered in slots of some seconds.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::clock::{NANOS, Stamp};
use crate::request::column::{Origin, Scope, Value};
use crate::request::columns::{COLUMNS, Column, ColumnId};
use crate::request::outcome::Outcome;
use crate::request::time_spent::TimeSpent;
use crate::request::timeline::{Moment, Period};
use crate::stats::Histogram;
use crate::telemetry::counted::Counted;

/// Seconds of a slot.
pub const SLOT_SECONDS: i64 = 10;
/// Seconds that are looked back.
pub const WINDOW_SECONDS: i64 = 300;
/// The figure that only who stands before a router has.
const IN_ROUTER: Origin = Origin::Period(Period::QUEUE_IN_ROUTER);
/// One more than fit into the window: the first and the last are in it in part.
const SLOTS: i64 = WINDOW_SECONDS / SLOT_SECONDS + 1;

/// Columns that quantiles are taken of, of requests that went well.
static FIGURES: [&Column; 5] = [
    &COLUMNS[ColumnId::ttft as usize],
    &COLUMNS[ColumnId::elapsed as usize],
    &COLUMNS[ColumnId::queue_time_in_router as usize],
    &COLUMNS[ColumnId::pure_queue_time as usize],
    &COLUMNS[ColumnId::tpot as usize],
];

/// The slots of the last minutes, in order. A slot that somebody reads is copied before it changes.
#[derive(Debug, Default)]
pub struct Window(VecDeque<Arc<Slot>>);

/// The requests that ended within some seconds.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Which slot it is: the first second of it by [`SLOT_SECONDS`].
    index: i64,
    outcomes: [u64; Outcome::ALL.len()],
    output_tokens: u64,
    /// Where the time of those went that went well: all of it, and that until their first tokens.
    pub spent: [TimeSpent; 2],
    quantiles: Vec<Histogram>,
}

/// All of the window.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Each slot with how many seconds ago it began.
    pub slots: Vec<(f64, Arc<Slot>)>,
    /// Their sum.
    pub sum: Slot,
}

impl Window {
    /// Counts a request that ended at `at`.
    pub fn count(&mut self, at: Stamp, counted: &Counted<'_>) {
        let index = index(at);
        // They come nearly in order, so the place is near the end.
        let place = self.0.iter().rposition(|slot| slot.index <= index);
        let is_there = place.is_some_and(|place| self.0[place].index == index);
        let place = match (place, is_there) {
            (Some(place), true) => place,
            (place, _) => {
                let place = place.map_or(0, |place| place + 1);
                self.0.insert(place, Arc::new(Slot::new(index)));
                place
            }
        };
        if let Some(slot) = self.0.get_mut(place) {
            Arc::make_mut(slot).count(counted);
        }
        while self.0.len() > SLOTS as usize {
            self.0.pop_front();
        }
    }

    /// The slots that lie in the window at `now`.
    pub fn slots(&self, now: Stamp) -> Vec<Arc<Slot>> {
        let oldest = index(now) - SLOTS + 1;
        let all = self.0.iter();
        all.filter(|slot| slot.index >= oldest).cloned().collect()
    }
}

impl Slot {
    fn new(index: i64) -> Slot {
        Slot {
            index,
            outcomes: [0; Outcome::ALL.len()],
            output_tokens: 0,
            spent: <[TimeSpent; 2]>::default(),
            quantiles: vec![Histogram::default(); FIGURES.len()],
        }
    }

    fn count(&mut self, counted: &Counted<'_>) {
        let rows = &*counted.rows;
        let Some(first) = rows.first() else { return };
        self.outcomes[first.outcome() as usize] += 1;
        let tokens = first.request_output_tokens.unwrap_or(0);
        self.output_tokens = self.output_tokens.saturating_add(tokens);
        if !first.is_ok() || first.is_in_background() {
            return;
        }
        TimeSpent::count_both(&mut self.spent, first, counted.breakdown.as_ref());
        // Where no hop saw the router's sending, it is our own: there is no router.
        let has_router = first.timeline.raw(Moment::WorkerArrival).is_some();
        let figures = FIGURES.iter().zip(&mut self.quantiles);
        for (column, histogram) in
            figures.filter(|(column, _)| has_router || column.origin != IN_ROUTER)
        {
            let rows = rows.iter().take(match column.scope {
                Scope::Request => 1,
                Scope::Sequence => rows.len(),
            });
            for row in rows {
                if let Value::Nanos(nanos) = (column.get)(row) {
                    histogram.record(nanos, 1);
                }
            }
        }
    }

    fn add(&mut self, more: &Slot) {
        for (count, more) in self.outcomes.iter_mut().zip(more.outcomes) {
            *count += more;
        }
        self.output_tokens = self.output_tokens.saturating_add(more.output_tokens);
        TimeSpent::add_both(&mut self.spent, more.spent.clone());
        for (histogram, more) in self.quantiles.iter_mut().zip(&more.quantiles) {
            histogram.add(more);
        }
    }

    /// Requests that ended.
    pub fn requests(&self) -> u64 {
        self.outcomes.iter().sum()
    }

    /// Tokens that were generated for them.
    pub fn output_tokens(&self) -> u64 {
        self.output_tokens
    }

    /// How many ended in each way, of the ways that there were.
    pub fn outcomes(&self) -> impl Iterator<Item = (Outcome, u64)> {
        let all = Outcome::ALL.into_iter();
        let counted = all.map(|outcome| (outcome, self.outcomes[outcome as usize]));
        counted.filter(|(_, count)| *count > 0)
    }

    /// Each of [`FIGURES`] with its values, nanoseconds.
    pub fn quantiles(&self) -> impl Iterator<Item = (&'static Column, &Histogram)> {
        FIGURES.iter().copied().zip(&self.quantiles)
    }
}

impl Figures {
    /// Of the slots that there are at `now`.
    pub fn of(slots: Vec<Arc<Slot>>, now: Stamp) -> Figures {
        let mut sum = Slot::new(index(now));
        for slot in &slots {
            sum.add(slot);
        }
        let ago = |slot: &Slot| now.seconds() - (slot.index * SLOT_SECONDS) as f64;
        let slots = slots.into_iter();
        Figures {
            slots: slots.map(|slot| (ago(&slot), slot)).collect(),
            sum,
        }
    }
}

fn index(at: Stamp) -> i64 {
    at.nanos().div_euclid(SLOT_SECONDS * NANOS)
}
