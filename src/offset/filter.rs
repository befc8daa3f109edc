//! The interval that holds one other clock's offset.

use crate::clock::{NANOS, Stamp};

use super::bound::{Offset, OffsetBound};

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
    lower: Option<Edge>,
    upper: Option<Edge>,
}

/// One side of a bound.
#[derive(Clone, Copy, Debug)]
struct Edge {
    nanos: i64,
    at: Stamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
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
    pub fn add(&mut self, bound: OffsetBound) {
        let edge = |nanos| Edge {
            nanos,
            at: bound.at,
        };
        let (lower, upper) = (bound.at_least.map(edge), bound.at_most.map(edge));
        if let (Some(lower), Some(upper)) = (lower, upper)
            && contradict(lower, upper)
        {
            self.forget_before(bound.at.plus_nanos(1));
            return;
        }
        for (which, edge) in [(Which::Lower, lower), (Which::Upper, upper)] {
            let Some(edge) = edge else { continue };
            if let Some(contradicted) = self.newest_contradicted(which, edge) {
                self.forget_before(contradicted.max(bound.at));
            }
        }
        self.insert(Which::Lower, lower);
        self.insert(Which::Upper, upper);
    }

    /// The offset at `now`: the middle of the interval, and half its width. `None` unless both sides are
    /// bounded by what was seen in the last five minutes, and for moments before the last step.
    pub fn offset(&self, now: Stamp) -> Option<Offset> {
        if self.since.is_some_and(|since| now < since) {
            return None;
        }
        let lower = self.edges(Which::Lower, now);
        let low = lower.map(|edge| edge.nanos.saturating_sub(edge.slack(now)));
        let upper = self.edges(Which::Upper, now);
        let high = upper.map(|edge| edge.nanos.saturating_add(edge.slack(now)));
        let (low, high) = (low.max()?, high.min()?);
        if low > high {
            // Edges that were too far apart to be compared: one of the clocks stepped.
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

    /// The edges of one side that still count at `now`.
    fn edges(&self, which: Which, now: Stamp) -> impl Iterator<Item = Edge> {
        let edges = self.slots.iter().filter_map(move |slot| slot.get(which));
        edges.filter(move |edge| edge.age(now) <= MEMORY)
    }

    /// When the newest edge was seen that cannot be true together with this one.
    fn newest_contradicted(&self, which: Which, edge: Edge) -> Option<Stamp> {
        let others = self.edges(which.other(), edge.at);
        let contradicting = others.filter(|other| match which {
            Which::Lower => contradict(edge, *other),
            Which::Upper => contradict(*other, edge),
        });
        contradicting.map(|other| other.at).max()
    }

    fn forget_before(&mut self, since: Stamp) {
        let since = self.since.map_or(since, |before| before.max(since));
        self.since = Some(since);
        for slot in &mut self.slots {
            for edge in [&mut slot.lower, &mut slot.upper] {
                *edge = edge.filter(|edge| edge.at >= since);
            }
        }
    }

    fn insert(&mut self, which: Which, edge: Option<Edge>) {
        let Some(edge) = edge.filter(|edge| self.since.is_none_or(|since| edge.at >= since)) else {
            return;
        };
        let number = edge.at.nanos().div_euclid(SLOT);
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
        // A slot that holds later seconds already: this edge is too old to count.
        if slot.number == number {
            slot.keep_tightest(which, edge);
        }
    }
}

impl Slot {
    fn get(&self, which: Which) -> Option<Edge> {
        match which {
            Which::Lower => self.lower,
            Which::Upper => self.upper,
        }
    }

    fn is_empty(&self) -> bool {
        self.lower.is_none() && self.upper.is_none()
    }

    fn keep_tightest(&mut self, which: Which, edge: Edge) {
        let kept = match which {
            Which::Lower => &mut self.lower,
            Which::Upper => &mut self.upper,
        };
        if kept.is_none_or(|kept| edge.is_tighter(kept, which)) {
            *kept = Some(edge);
        }
    }
}

impl Which {
    fn other(self) -> Which {
        match self {
            Which::Lower => Which::Upper,
            Which::Upper => Which::Lower,
        }
    }
}

impl Edge {
    /// Nanoseconds from its moment to another, in either direction.
    fn age(&self, now: Stamp) -> i64 {
        now.nanos().saturating_sub(self.at.nanos()).saturating_abs()
    }

    /// How far the edge must be widened at `now`.
    fn slack(&self, now: Stamp) -> i64 {
        drift(self.age(now)).saturating_add(ALLOWANCE)
    }

    /// Whether it is the tighter one of two, at any moment after both: an edge widens steadily, so the
    /// order of two never changes.
    fn is_tighter(&self, other: Edge, which: Which) -> bool {
        let sign = match which {
            Which::Lower => 1,
            Which::Upper => -1,
        };
        let worth =
            |edge: Edge| sign * i128::from(edge.nanos) + i128::from(edge.at.nanos() / DRIFT);
        worth(*self) > worth(other)
    }
}

/// Whether no offset satisfies both, however the clocks drifted from one to the other.
fn contradict(lower: Edge, upper: Edge) -> bool {
    let slack = drift(lower.age(upper.at)).saturating_add(2 * ALLOWANCE);
    lower.nanos.saturating_sub(upper.nanos) > slack
}

/// The most two clocks drift apart in so many nanoseconds.
fn drift(nanos: i64) -> i64 {
    nanos / DRIFT + 1
}

#[cfg(test)]
mod tests;
