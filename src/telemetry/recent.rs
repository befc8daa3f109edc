//! The last requests, and figures of the last minutes, for the live page.
//!
//! Memory is bounded, and so is the time for which a request's end holds the lock.

mod window;

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::clock::Stamp;
use crate::request::row::Rows;
use crate::request::timeline::Moment;

use super::counted::CountedRequest;

use window::Window;
pub use window::{SLOT_SECONDS, Slot, WINDOW_SECONDS};

/// The requests that ended recently.
#[derive(Debug, Default)]
pub struct Recent(Mutex<State>);

/// A request that has ended.
#[derive(Clone, Debug)]
pub struct RecentRequest {
    /// Its number among all ended requests, starting at 1.
    pub number: u64,
    /// Its first rows, at least one. [`Row::sequences`](crate::request::row::Row::sequences) is the number of all.
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
    pub figures: Slot,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the last request.
    last: u64,
    all: VecDeque<RecentRequest>,
    /// Failed requests, which are kept longer than the others.
    failed: VecDeque<RecentRequest>,
    window: Window,
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
        let first_rows = first_rows(rows);
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
            state.window.add(at, counted);
        }
    }

    /// Returns the requests after number `after`, and the figures of the last minutes.
    pub fn view(&self, after: u64, now: Stamp) -> View {
        let state = self.0.lock();
        let (last, requests, slots) = (state.last, state.after(after), state.window.slots(now));
        drop(state);
        View {
            last,
            requests,
            figures: Slot::sum(&slots),
        }
    }

    /// Returns the requests that are kept, in order.
    pub fn all(&self) -> Vec<RecentRequest> {
        self.0.lock().after(0)
    }
}

impl State {
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

/// Returns the rows that are kept of a request.
fn first_rows(rows: &Rows) -> Rows {
    match rows.get(..MAX_ROWS) {
        Some(first) if rows.len() > MAX_ROWS => first.to_vec().into(),
        _ => rows.clone(),
    }
}

#[cfg(test)]
mod tests;
