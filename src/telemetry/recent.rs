//! What is remembered of requests that ended lately: the last of them, and figures of the last minutes.
//!
//! Memory is bounded, and so is the lock at a request's end.

mod window;

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::clock::Stamp;
use crate::request::row::Rows;
use crate::request::timeline::Moment;

use super::counted::Counted;

use window::Window;
pub use window::{Figures, SLOT_SECONDS, Slot, WINDOW_SECONDS};

/// Requests that ended lately.
#[derive(Debug, Default)]
pub struct Recent {
    kept: Mutex<Kept>,
}

/// A request that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its place among all that have ended, from 1 on.
    pub number: u64,
    /// Its first rows, at least one; how many there were says [`Row::sequences`].
    pub rows: Rows,
}

/// What there is to tell.
#[derive(Clone, Debug)]
pub struct View {
    /// The number of the last request that has ended; 0 before the first.
    pub last: u64,
    /// Requests with a number above the one asked for, in order.
    pub requests: Vec<Ended>,
    /// The last minutes.
    pub figures: Figures,
}

#[derive(Debug, Default)]
struct Kept {
    /// The number of the last one.
    last: u64,
    all: Ring<200>,
    /// Of those that did not go well some are kept longer.
    failed: Ring<50>,
    window: Window,
}

/// The last so many requests.
#[derive(Debug, Default)]
struct Ring<const REQUESTS: usize>(VecDeque<Ended>);

/// Rows that are kept of a request.
const ROWS: usize = 16;
/// Of one with a longer id, bytes, the first alone is kept: each has that id.
const LONG: usize = 1024;

impl Recent {
    /// A request has ended. `counted`: what is made of it, if it is one of those that figures are taken of; others are attempts
    /// at a hop that no front here knows.
    pub fn record(&self, rows: &Rows, counted: Option<&Counted<'_>>) {
        let Some(first) = rows.first() else { return };
        let timeline = &first.timeline;
        let Some(at) = timeline.on_own_clock(Moment::End) else {
            return;
        };
        let kept = to_keep(rows);
        let is_ok = first.is_ok();
        let mut state = self.kept.lock();
        state.last += 1;
        let ended = Ended {
            number: state.last,
            rows: kept,
        };
        if !is_ok {
            state.failed.push(ended.clone());
        }
        state.all.push(ended);
        if let Some(counted) = counted {
            state.window.count(at, counted);
        }
    }

    /// Requests after the one of the number `after`, and the figures of the last minutes.
    pub fn view(&self, after: u64, now: Stamp) -> View {
        let (last, requests, slots) = {
            let state = self.kept.lock();
            let oldest = state.all.0.front().map(|ended| ended.number);
            let failed = state.failed.after(after);
            let failed = failed.filter(|ended| oldest.is_none_or(|oldest| ended.number < oldest));
            let requests: Vec<Ended> = failed.chain(state.all.after(after)).cloned().collect();
            (state.last, requests, state.window.slots(now))
        };
        View {
            last,
            requests,
            figures: Figures::of(slots, now),
        }
    }

    /// The request of that number, while it is kept.
    pub fn find(&self, number: u64) -> Option<Ended> {
        let state = self.kept.lock();
        let mut both = state.failed.after(0).chain(state.all.after(0));
        both.find(|ended| ended.number == number).cloned()
    }
}

impl<const REQUESTS: usize> Ring<REQUESTS> {
    fn push(&mut self, ended: Ended) {
        if self.0.len() == REQUESTS {
            self.0.pop_front();
        }
        self.0.push_back(ended);
    }

    fn after(&self, number: u64) -> impl Iterator<Item = &Ended> {
        self.0.iter().filter(move |ended| ended.number > number)
    }
}

/// The first rows.
fn to_keep(rows: &Rows) -> Rows {
    let is_long = rows
        .iter()
        .flat_map(|row| &row.req_id)
        .any(|id| id.len() > LONG);
    let most = if is_long { 1 } else { ROWS };
    match rows.get(..most) {
        Some(first) if rows.len() > most => first.to_vec().into(),
        _ => rows.clone(),
    }
}

#[cfg(test)]
mod tests;
