//! The interval that contains the offset of one other clock.

use crate::clock::{NANOS, Stamp};

use super::bound::{Offset, OffsetBound};

/// How long a bound is valid, nanoseconds.
pub const VALIDITY: i64 = 300 * NANOS;
/// Two clocks drift apart by at most one part in this many: 100 ppm.
const MAX_DRIFT_INVERSE: i64 = 10_000;
/// Each bound is widened by this many nanoseconds: SGLang recalibrates its conversion from
/// `perf_counter` to epoch time now and then, which makes its timestamps jump by a few µs.
const ALLOWANCE: i64 = 5_000;
/// Of the bounds within a slot of this length only the tightest are kept, nanoseconds.
const SLOT: i64 = 10 * NANOS;
const SLOTS: usize = (VALIDITY / SLOT) as usize + 1;

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
    /// Lower bounds of the offset and of its negative.
    edges: [Option<Edge>; 2],
}

/// One side of a bound: the offset, or its negative, is at least `nanos`.
#[derive(Clone, Copy, Debug)]
struct Edge {
    nanos: i64,
    at: Stamp,
}

impl OffsetFilter {
    /// Adds a bound. Bounds may come late and out of order.
    ///
    /// If the two sides of a bound contradict each other, the clock stepped in between: nothing up to it counts any more.
    pub fn add(&mut self, bound: OffsetBound) {
        let at = bound.at;
        let least = [bound.at_least, bound.at_most.map(i64::saturating_neg)];
        let edges = least.map(|nanos| Some(Edge { nanos: nanos?, at }));
        if let [Some(lower), Some(upper)] = edges
            && lower.contradicts(upper)
        {
            return self.forget_before(at.plus_nanos(1));
        }
        for (side, edge) in edges.into_iter().enumerate() {
            let Some(edge) = edge else { continue };
            // The clock stepped between this edge and the newest that contradicts it: only edges from the later of the two on count.
            let others = self.edges(1 - side, at);
            let contradicted = others.filter(|other| edge.contradicts(*other));
            if let Some(step) = contradicted.map(|other| other.at).max() {
                self.forget_before(step.max(at));
            }
        }
        for (side, edge) in edges.into_iter().enumerate() {
            edge.into_iter().for_each(|edge| self.insert(side, edge));
        }
    }

    /// The offset at `now`: the middle of the interval, and half its width. `None` if a side has no bound within five minutes of `now`,
    /// or if the clock stepped after `now`.
    pub fn offset(&self, now: Stamp) -> Option<Offset> {
        if self.since.is_some_and(|since| now < since) {
            return None;
        }
        let least = |side| {
            let edges = self.edges(side, now);
            let widened = edges.map(|edge| edge.nanos.saturating_sub(edge.slack(now)));
            widened.max()
        };
        let (low, high) = (least(0)?, least(1)?.saturating_neg());
        let nanos = low.midpoint(high);
        let error_nanos = high.saturating_sub(nanos).max(nanos.saturating_sub(low));
        // Otherwise a clock stepped between edges too far apart in time for `add` to compare them.
        (low <= high).then_some(Offset { nanos, error_nanos })
    }

    /// One offset for all times from `from` to `to`, as for a request that took minutes: that of the middle, its error widened by the drift
    /// from there to both ends. `None` also if the other clock stepped since `from`.
    pub fn offset_over(&self, from: Stamp, to: Stamp) -> Option<Offset> {
        if self.since.is_some_and(|since| from < since) {
            return None;
        }
        let length = to.nanos().saturating_sub(from.nanos()).max(0);
        let (middle, half) = (from.plus_nanos(length / 2), length - length / 2);
        // Bounds at the ends do not reach the middle of a time more than twice as long as their validity.
        let candidates = [(middle, half), (to, length), (from, length)];
        candidates.into_iter().find_map(|(at, farthest)| {
            let Offset { nanos, error_nanos } = self.offset(at)?;
            let error_nanos = error_nanos.saturating_add(drift(farthest));
            Some(Offset { nanos, error_nanos })
        })
    }

    /// The edges of one side that are valid at `now`.
    fn edges(&self, side: usize, now: Stamp) -> impl Iterator<Item = Edge> {
        let edges = self.slots.iter().filter_map(move |slot| slot.edges[side]);
        edges.filter(move |edge| edge.age(now) <= VALIDITY)
    }

    fn forget_before(&mut self, since: Stamp) {
        let since = self.since.map_or(since, |before| before.max(since));
        self.since = Some(since);
        for edge in self.slots.iter_mut().flat_map(|slot| &mut slot.edges) {
            *edge = edge.filter(|edge| edge.at >= since);
        }
    }

    fn insert(&mut self, side: usize, edge: Edge) {
        if self.since.is_some_and(|since| edge.at < since) {
            return;
        }
        let number = edge.at.nanos().div_euclid(SLOT);
        let slot = &mut self.slots[number.rem_euclid(SLOTS as i64) as usize];
        if slot.number < number || slot.edges.iter().all(Option::is_none) {
            let edges = [None; 2];
            *slot = Slot { number, edges };
        }
        // If the slot holds a later time already, this edge is too old.
        let kept = &mut slot.edges[side];
        if slot.number == number && kept.is_none_or(|kept| edge.tightness() > kept.tightness()) {
            *kept = Some(edge);
        }
    }
}

impl Edge {
    /// Nanoseconds from its time to another, in either direction.
    fn age(&self, now: Stamp) -> i64 {
        now.nanos().saturating_sub(self.at.nanos()).saturating_abs()
    }

    /// By how much the edge is widened at `now`, nanoseconds.
    fn slack(&self, now: Stamp) -> i64 {
        drift(self.age(now)).saturating_add(ALLOWANCE)
    }

    /// Orders edges of a side: the larger is tighter at any time after both, as all widen at the same rate.
    fn tightness(&self) -> i128 {
        i128::from(self.nanos) + i128::from(self.at.nanos() / MAX_DRIFT_INVERSE)
    }

    /// Whether no offset satisfies this edge and one of the other side, whatever the drift between their times.
    fn contradicts(&self, other: Edge) -> bool {
        let slack = drift(self.age(other.at)).saturating_add(2 * ALLOWANCE);
        self.nanos.saturating_add(other.nanos) > slack
    }
}

/// The most that two clocks drift apart in so many nanoseconds.
fn drift(nanos: i64) -> i64 {
    nanos / MAX_DRIFT_INVERSE + 1
}

#[cfg(test)]
mod tests;
