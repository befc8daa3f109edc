//! What is remembered of requests that ended lately: the last of them, and figures of the last minutes.
//!
//! Memory is bounded, and so is the lock at a request's end.

mod window;

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::clock::Stamp;
use crate::request::row::{Row, Rows};
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
    all: Ring<200, { 4 << 20 }>,
    /// Of those that did not go well some are kept longer.
    failed: Ring<50, { 1 << 20 }>,
    window: Window,
}

/// At most so many requests, of at most so many bytes.
#[derive(Debug, Default)]
struct Ring<const REQUESTS: usize, const BYTES: usize> {
    requests: VecDeque<(Ended, usize)>,
    bytes: usize,
}

/// Bytes that a row has in boxes of a fixed size, about.
const BOXED: usize = 256;
/// Rows that are kept of a request.
const ROWS: usize = 16;
/// Bytes of the rows that are kept of a request beside its first: the ids that a client sends may be long.
const ROW_BYTES: usize = 64 << 10;

impl Recent {
    /// A request has ended. `counted`: what is made of it, if it is one of those that figures are taken of; others are attempts
    /// at a hop that no front here knows.
    pub fn record(&self, rows: &Rows, counted: Option<&Counted<'_>>) {
        let Some(first) = rows.first() else { return };
        let timeline = &first.timeline;
        let Some(at) = timeline.on_own_clock(Moment::End) else {
            return;
        };
        let (kept, bytes) = to_keep(rows);
        let is_ok = first.is_ok();
        let mut state = self.kept.lock();
        state.last += 1;
        let ended = Ended {
            number: state.last,
            rows: kept,
        };
        if !is_ok {
            state.failed.push(ended.clone(), bytes);
        }
        state.all.push(ended, bytes);
        if let Some(counted) = counted {
            state.window.count(at, counted);
        }
    }

    /// Requests after the one of the number `after`, and the figures of the last minutes.
    pub fn view(&self, after: u64, now: Stamp) -> View {
        let (last, requests, slots) = {
            let state = self.kept.lock();
            let oldest = state.all.oldest();
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

impl<const REQUESTS: usize, const BYTES: usize> Ring<REQUESTS, BYTES> {
    /// One that is larger than all may be is not kept: the others are.
    fn push(&mut self, ended: Ended, bytes: usize) {
        if bytes > BYTES {
            return;
        }
        self.bytes += bytes;
        self.requests.push_back((ended, bytes));
        while self.requests.len() > REQUESTS || self.bytes > BYTES {
            let Some((_, bytes)) = self.requests.pop_front() else {
                return;
            };
            self.bytes -= bytes;
        }
    }

    fn oldest(&self) -> Option<u64> {
        self.requests.front().map(|(ended, _)| ended.number)
    }

    fn after(&self, number: u64) -> impl Iterator<Item = &Ended> {
        let all = self.requests.iter().map(|(ended, _)| ended);
        all.filter(move |ended| ended.number > number)
    }
}

/// The first rows, and the memory that they take.
fn to_keep(rows: &Rows) -> (Rows, usize) {
    let (mut many, mut all) = (0, 0);
    for bytes in rows.iter().take(ROWS).map(bytes) {
        if many > 0 && all + bytes > ROW_BYTES {
            break;
        }
        many += 1;
        all += bytes;
    }
    let kept = match rows.get(..many) {
        Some(first) if rows.len() > many => first.to_vec().into(),
        _ => rows.clone(),
    };
    (kept, all)
}

/// About the memory that a row takes.
fn bytes(row: &Row) -> usize {
    let texts = [
        &row.req_id,
        &row.error,
        &row.host,
        &row.model,
        &row.worker,
        &row.process,
        &row.trace_id,
        &row.engine_id,
        &row.inconsistency,
        &row.within_clock_error,
        &row.failed_attempts,
        &row.ended_in,
    ];
    let texts = texts.into_iter().flatten().map(String::len);
    let trace = &row.more.trace;
    let sendings = trace.sendings.iter();
    let sendings = sendings.map(|one| size_of_val(one) + one.upstream.len());
    let attempts = trace.attempts.iter();
    let attempts = attempts.map(|one| size_of_val(one) + one.worker.len() + one.host.len());
    let traced = sendings.chain(attempts).sum::<usize>();
    size_of::<Row>() + BOXED + texts.sum::<usize>() + traced
}

#[cfg(test)]
mod tests;
