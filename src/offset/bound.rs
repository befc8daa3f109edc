//! An offset between two clocks, and bounds on it.

use crate::clock::Stamp;

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

    /// From a request and its response, as far as the times are known: we sent at `sent` and had read the response by `read`; the other
    /// side had received the request by `arrived` and responded at `responded`.
    pub fn of_exchange(
        sent: Option<Stamp>,
        arrived: Option<Stamp>,
        responded: Option<Stamp>,
        read: Option<Stamp>,
    ) -> Vec<OffsetBound> {
        let there = sent.zip(arrived);
        let back = read.zip(responded);
        let there = there.map(|(ours, theirs)| OffsetBound::of_sent(ours, theirs));
        let back = back.map(|(ours, theirs)| OffsetBound::of_received(ours, theirs));
        there.into_iter().chain(back).collect()
    }
}
