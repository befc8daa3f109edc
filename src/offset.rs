//! How far another clock is from ours (design.md, section 4). Pure: time is handed in.
//!
//! What was sent cannot arrive earlier, so every request bounds the offset (theirs − ours) from both
//! sides. [`OffsetFilter`] keeps the tightest bounds of the last minutes (NTP's minimum filter), each
//! widened by what two clocks may have drifted since.
//!
//! What is promised, as long as each [`Bound`] is true at its `at` and the clocks drift by at most 100 ppm:
//!
//! - While the other clock does not step, the stated interval holds the true offset of the moment asked
//!   for; of [`OffsetFilter::offset_over`], of all moments of a stretch.
//! - A step shows when a bound contradicts an earlier one. From then on only bounds taken at that moment
//!   or later count, so the interval holds the truth again; until both sides are bounded anew the offset is
//!   unknown.
//! - A step that contradicts nothing (smaller than the interval and the delays together) cannot be seen.
//!   The interval may then miss the truth, by less than the delay of the tightest bound taken since, until
//!   the bounds from before the step are too old.
//! - Our own clocks never step: they are monotonic ([`crate::clock`]). If one did, a step forward is like a
//!   step of the other clock; after a step back the offset is unknown until our clock has passed the
//!   moment of the step again.

mod table;

pub use table::OffsetTable;

use crate::clock::{NANOS, Stamp};
use crate::request::observer::Bound;
use crate::request::timeline::Offset;

/// How long a bound counts, nanoseconds.
pub const MEMORY: i64 = 300 * NANOS;
/// Two clocks drift apart by at most one part in this many: 100 ppm.
const DRIFT: i64 = 10_000;
/// Each bound is widened by this many nanoseconds: SGLang recalibrates its conversion from
/// `perf_counter` to epoch time now and then, which makes its stamps jump by a few µs.
const ALLOWANCE: i64 = 5_000;
/// Of the bounds within this long only the tightest are kept, nanoseconds.
const SLOT: i64 = 10 * NANOS;
const SLOTS: usize = (MEMORY / SLOT) as usize + 1;

/// The interval that holds one other clock's offset. Fixed size, about 1.8 KB.
#[derive(Clone, Debug, Default)]
pub struct OffsetFilter {
    slots: [Slot; SLOTS],
    /// Bounds from before this moment do not count: the clock stepped after them.
    since: Option<Stamp>,
}

/// The tightest bounds of ten seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Which ten seconds: the stamp over [`SLOT`].
    number: i64,
    lower: Option<Limit>,
    upper: Option<Limit>,
}

/// One side of a bound.
#[derive(Clone, Copy, Debug)]
struct Limit {
    nanos: i64,
    at: Stamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Lower,
    Upper,
}

impl OffsetFilter {
    /// A filter that knows nothing yet.
    pub fn new() -> OffsetFilter {
        OffsetFilter::default()
    }

    /// Takes a bound; `at` is our moment of the comparison. They may come late and out of order.
    ///
    /// A bound whose own sides contradict each other spans a step: nothing up to it counts any more.
    pub fn add(&mut self, bound: Bound) {
        let limit = |nanos| Limit {
            nanos,
            at: bound.at,
        };
        let (lower, upper) = (bound.at_least.map(limit), bound.at_most.map(limit));
        if let (Some(lower), Some(upper)) = (lower, upper)
            && contradict(lower, upper)
        {
            self.forget_before(bound.at.plus_nanos(1));
            return;
        }
        for (side, limit) in [(Side::Lower, lower), (Side::Upper, upper)] {
            let Some(limit) = limit else { continue };
            if let Some(contradicted) = self.newest_contradicted(side, limit) {
                self.forget_before(contradicted.max(bound.at));
            }
        }
        self.insert(Side::Lower, lower);
        self.insert(Side::Upper, upper);
    }

    /// The offset at `now`: the middle of the interval, and half its width. `None` unless both sides are
    /// bounded by what was seen in the last five minutes, and for moments before the last step.
    pub fn offset(&self, now: Stamp) -> Option<Offset> {
        if self.since.is_some_and(|since| now < since) {
            return None;
        }
        let lower = self.limits(Side::Lower, now);
        let low = lower.map(|limit| limit.nanos.saturating_sub(limit.slack(now)));
        let upper = self.limits(Side::Upper, now);
        let high = upper.map(|limit| limit.nanos.saturating_add(limit.slack(now)));
        let (low, high) = (low.max()?, high.min()?);
        if low > high {
            // Limits that were too far apart to be compared: one of the clocks stepped.
            return None;
        }
        let nanos = low.midpoint(high);
        Some(Offset {
            nanos,
            error_nanos: high.saturating_sub(nanos).max(nanos.saturating_sub(low)),
        })
    }

    /// One offset for all moments from `from` to `to`: that of the middle, its error widened by what the
    /// clocks may drift from there to both ends. `None` also when the other clock stepped since `from`.
    ///
    /// A request is asked about when it is over, and its moments may lie minutes back.
    pub fn offset_over(&self, from: Stamp, to: Stamp) -> Option<Offset> {
        if self.since.is_some_and(|since| from < since) {
            return None;
        }
        let length = to.nanos().saturating_sub(from.nanos()).max(0);
        let (middle, half) = (from.plus_nanos(length / 2), length - length / 2);
        // Longer than the memory, its middle is out of reach of what was seen at its ends.
        let places = [(middle, half), (to, length), (from, length)];
        places.into_iter().find_map(|(at, farthest)| {
            let offset = self.offset(at)?;
            let error_nanos = offset.error_nanos.saturating_add(drift(farthest));
            Some(Offset {
                error_nanos,
                ..offset
            })
        })
    }

    /// The limits of one side that still count at `now`.
    fn limits(&self, side: Side, now: Stamp) -> impl Iterator<Item = Limit> {
        let limits = self.slots.iter().filter_map(move |slot| slot.get(side));
        limits.filter(move |limit| limit.age(now) <= MEMORY)
    }

    /// When the newest limit was seen that cannot be true together with this one.
    fn newest_contradicted(&self, side: Side, limit: Limit) -> Option<Stamp> {
        let others = self.limits(side.other(), limit.at);
        let contradicting = others.filter(|other| match side {
            Side::Lower => contradict(limit, *other),
            Side::Upper => contradict(*other, limit),
        });
        contradicting.map(|other| other.at).max()
    }

    fn forget_before(&mut self, since: Stamp) {
        let since = self.since.map_or(since, |before| before.max(since));
        self.since = Some(since);
        for slot in &mut self.slots {
            for limit in [&mut slot.lower, &mut slot.upper] {
                *limit = limit.filter(|limit| limit.at >= since);
            }
        }
    }

    fn insert(&mut self, side: Side, limit: Option<Limit>) {
        let Some(limit) = limit.filter(|limit| self.since.is_none_or(|since| limit.at >= since))
        else {
            return;
        };
        let number = limit.at.nanos().div_euclid(SLOT);
        let place = number.rem_euclid(SLOTS as i64) as usize;
        let Some(slot) = self.slots.get_mut(place) else {
            return;
        };
        if slot.number < number || slot.is_empty() {
            *slot = Slot {
                number,
                ..Slot::default()
            };
        }
        // A slot that holds later seconds already: this limit is too old to count.
        if slot.number == number {
            slot.keep_tightest(side, limit);
        }
    }
}

impl Slot {
    fn get(&self, side: Side) -> Option<Limit> {
        match side {
            Side::Lower => self.lower,
            Side::Upper => self.upper,
        }
    }

    fn is_empty(&self) -> bool {
        self.lower.is_none() && self.upper.is_none()
    }

    fn keep_tightest(&mut self, side: Side, limit: Limit) {
        let kept = match side {
            Side::Lower => &mut self.lower,
            Side::Upper => &mut self.upper,
        };
        if kept.is_none_or(|kept| limit.is_tighter(kept, side)) {
            *kept = Some(limit);
        }
    }
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Lower => Side::Upper,
            Side::Upper => Side::Lower,
        }
    }
}

impl Limit {
    /// Nanoseconds from its moment to another, in either direction.
    fn age(&self, now: Stamp) -> i64 {
        now.nanos().saturating_sub(self.at.nanos()).saturating_abs()
    }

    /// How far the limit must be widened at `now`.
    fn slack(&self, now: Stamp) -> i64 {
        drift(self.age(now)).saturating_add(ALLOWANCE)
    }

    /// Whether it is the tighter one of two, at any moment after both: a limit widens steadily, so the
    /// order of two never changes.
    fn is_tighter(&self, other: Limit, side: Side) -> bool {
        let sign = match side {
            Side::Lower => 1,
            Side::Upper => -1,
        };
        let worth =
            |limit: Limit| sign * i128::from(limit.nanos) + i128::from(limit.at.nanos() / DRIFT);
        worth(*self) > worth(other)
    }
}

/// Whether no offset satisfies both, however the clocks drifted from one to the other.
fn contradict(lower: Limit, upper: Limit) -> bool {
    let slack = drift(lower.age(upper.at)).saturating_add(2 * ALLOWANCE);
    lower.nanos.saturating_sub(upper.nanos) > slack
}

/// The most two clocks drift apart in so many nanoseconds.
fn drift(nanos: i64) -> i64 {
    nanos / DRIFT + 1
}

#[cfg(test)]
mod tests;
