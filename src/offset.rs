//! The offset of another clock against ours. Pure: time is passed in.
//!
//! A message cannot arrive before it was sent, so every request bounds the offset (theirs − ours) from both sides.
//! [`OffsetFilter`] keeps the tightest bounds of the last minutes (NTP's minimum filter), each widened by the drift since.
//!
//! Guarantees, if each [`OffsetBound`] is true at its `at` and the clocks drift by at most 100 ppm:
//!
//! - While the other clock does not step, the interval contains the true offset at the given time; that of
//!   [`OffsetFilter::offset_over`] contains it at all times from the one given to the other.
//! - A step is detected when a bound contradicts an earlier one. From then on only bounds from that time or later count, so the
//!   interval contains the true offset again; until both sides have new bounds, the offset is unknown.
//! - A step that contradicts nothing (smaller than the interval and the delays together) is not detected. The interval may then miss
//!   the true offset, by less than the delay of the tightest bound since, until the bounds from before the step have expired.
//! - Our own clocks never step: they are monotonic ([`crate::clock`]).

use std::collections::HashMap;

use crate::clock::{NANOS, Stamp};

/// How long a bound is valid, nanoseconds.
pub const VALIDITY: i64 = 300 * NANOS;
/// Two clocks drift apart by at most one part in this many: 100 ppm.
const MAX_DRIFT_INVERSE: i64 = 10_000;
/// Each bound is widened by this many nanoseconds: SGLang recalibrates its conversion from
/// `perf_counter` to epoch time now and then, which makes its timestamps jump by a few µs.
const ALLOWANCE: i64 = 5_000;
/// Of the bounds within a slot of this length only the tightest are kept, nanoseconds.
const SLOT: i64 = 20 * NANOS;
/// Bounds count on either side of a time: those of one side are not to take the places of the other's.
const SLOTS: usize = (2 * VALIDITY / SLOT) as usize + 1;

/// The offset of another clock against ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Theirs minus ours at the same time, nanoseconds.
    pub nanos: i64,
    /// The true offset lies within ± this many nanoseconds.
    pub error_nanos: i64,
}

/// One bound on the offset between another clock and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetBound {
    /// Our time of the measurement.
    pub at: Stamp,
    /// It is an upper bound, from a message of ours that they received; else a lower one, from a message of theirs.
    pub is_upper: bool,
    /// The least possible offset; of an upper bound, the least possible negative of it; nanoseconds.
    pub least: i64,
}

impl OffsetBound {
    /// From a message that we sent at `ours` and that had arrived by `theirs` on the other clock.
    pub fn of_sent(ours: Stamp, theirs: Stamp) -> OffsetBound {
        OffsetBound {
            at: ours,
            is_upper: true,
            least: ours.nanos_since(theirs),
        }
    }

    /// From a message that was sent at `theirs` on the other clock and had arrived by `ours`.
    pub fn of_received(ours: Stamp, theirs: Stamp) -> OffsetBound {
        OffsetBound {
            at: ours,
            is_upper: false,
            least: theirs.nanos_since(ours),
        }
    }
}

/// The interval that contains the offset of one other clock. Of fixed size, about 1.8 KB.
#[derive(Clone, Debug, Default)]
pub struct OffsetFilter {
    slots: [Slot; SLOTS],
    /// Bounds from before this time do not count: the clock stepped after them.
    since: Option<Stamp>,
}

/// The tightest bounds of a slot of time.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Timestamps of the slot, divided by [`SLOT`].
    number: i64,
    /// The lower and the upper bound.
    bounds: [Option<OffsetBound>; 2],
}

impl OffsetFilter {
    /// Adds a bound. Bounds may come late and out of order.
    pub fn add(&mut self, bound: OffsetBound) {
        // The clock stepped between this bound and the newest that contradicts it: only bounds from the later of the two on count.
        let others = self.valid(!bound.is_upper, bound.at);
        let contradicted = others.filter(|other| bound.contradicts(*other));
        if let Some(step) = contradicted.map(|other| other.at).max() {
            self.forget_before(step.max(bound.at));
        }
        self.insert(bound);
    }

    /// The offset at `now`: the middle of the interval, and half its width. `None` if a side has no bound within five minutes of `now`,
    /// or if the clock stepped after `now`.
    pub fn offset(&self, now: Stamp) -> Option<Offset> {
        if self.since.is_some_and(|since| now < since) {
            return None;
        }
        let least = |is_upper| {
            let bounds = self.valid(is_upper, now);
            let widened = bounds.map(|bound| bound.least.saturating_sub(bound.slack(now)));
            widened.max()
        };
        let (low, high) = (least(false)?, least(true)?.saturating_neg());
        let nanos = low.midpoint(high);
        let error_nanos = high.saturating_sub(nanos).max(nanos.saturating_sub(low));
        // Otherwise a clock stepped between edges too far apart in time for `add` to compare them.
        (low <= high).then_some(Offset { nanos, error_nanos })
    }

    /// One offset for all times from `from` to `to`: that of the middle, its error widened by the drift from there to both ends. `None` also
    /// if the other clock stepped since `from`.
    pub fn offset_over(&self, from: Stamp, to: Stamp) -> Option<Offset> {
        if self.since.is_some_and(|since| from < since) {
            return None;
        }
        let half = to.nanos_since(from).max(0) / 2;
        let Offset { nanos, error_nanos } = self.offset(from.plus_nanos(half))?;
        let error_nanos = error_nanos.saturating_add(drift(half + 1));
        Some(Offset { nanos, error_nanos })
    }

    /// The bounds of one side that are valid at `now`.
    fn valid(&self, is_upper: bool, now: Stamp) -> impl Iterator<Item = OffsetBound> {
        let bounds = self.slots.iter();
        let bounds = bounds.filter_map(move |slot| slot.bounds[usize::from(is_upper)]);
        bounds.filter(move |bound| bound.age(now) <= VALIDITY)
    }

    fn forget_before(&mut self, since: Stamp) {
        let since = self.since.map_or(since, |before| before.max(since));
        self.since = Some(since);
        for bound in self.slots.iter_mut().flat_map(|slot| &mut slot.bounds) {
            *bound = bound.filter(|bound| bound.at >= since);
        }
    }

    fn insert(&mut self, bound: OffsetBound) {
        if self.since.is_some_and(|since| bound.at < since) {
            return;
        }
        let number = bound.at.nanos().div_euclid(SLOT);
        let slot = &mut self.slots[number.rem_euclid(SLOTS as i64) as usize];
        if slot.number < number || slot.bounds.iter().all(Option::is_none) {
            let bounds = [None; 2];
            *slot = Slot { number, bounds };
        }
        // If the slot holds a later time already, this bound is too old.
        let kept = &mut slot.bounds[usize::from(bound.is_upper)];
        if slot.number == number && kept.is_none_or(|kept| bound.tightness() > kept.tightness()) {
            *kept = Some(bound);
        }
    }
}

impl OffsetBound {
    /// Nanoseconds from its time to another, in either direction.
    fn age(&self, now: Stamp) -> i64 {
        now.nanos().saturating_sub(self.at.nanos()).saturating_abs()
    }

    /// By how much the bound is widened at `now`, nanoseconds.
    fn slack(&self, now: Stamp) -> i64 {
        drift(self.age(now)).saturating_add(ALLOWANCE)
    }

    /// Orders bounds of a side: the larger is tighter at any time after both, as all widen at the same rate.
    fn tightness(&self) -> i128 {
        i128::from(self.least) + i128::from(self.at.nanos() / MAX_DRIFT_INVERSE)
    }

    /// Whether no offset satisfies this bound and one of the other side, whatever the drift between their times.
    fn contradicts(&self, other: OffsetBound) -> bool {
        let slack = drift(self.age(other.at)).saturating_add(2 * ALLOWANCE);
        self.least.saturating_add(other.least) > slack
    }
}

/// The most that two clocks drift apart in so many nanoseconds.
fn drift(nanos: i64) -> i64 {
    nanos / MAX_DRIFT_INVERSE + 1
}

/// The offsets of many clocks, by name (an engine's host, a process's clock). Of a bounded number: a new clock beyond that replaces
/// any other, whose offset is then learned anew.
#[derive(Clone, Debug, Default)]
pub struct OffsetTable {
    /// The filters are boxed, so that the map moves little when it grows.
    clocks: HashMap<String, Box<OffsetFilter>>,
}

/// The most clocks, which take under 2 MB.
const CAPACITY: usize = 1024;

impl OffsetTable {
    /// Adds bounds on the offset of the clock `key`; without any, there is no entry.
    pub fn add(&mut self, key: &str, bounds: impl IntoIterator<Item = OffsetBound>) {
        let mut bounds = bounds.into_iter().peekable();
        if bounds.peek().is_none() {
            return;
        }
        if self.clocks.len() >= CAPACITY && !self.clocks.contains_key(key) {
            let other = self.clocks.keys().next().cloned();
            other.and_then(|other| self.clocks.remove(&other));
        }
        let filter = self.clocks.entry(key.to_owned()).or_default();
        bounds.for_each(|bound| filter.add(bound));
    }

    /// The offset of the clock `key` from one time to another; see [`OffsetFilter::offset_over`].
    pub fn get_over(&self, key: &str, (from, to): (Stamp, Stamp)) -> Option<Offset> {
        self.clocks.get(key)?.offset_over(from, to)
    }
}

#[cfg(test)]
mod tests;
