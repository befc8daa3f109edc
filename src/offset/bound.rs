//! What is known of another clock: an offset, and what bounds it.

use crate::clock::Stamp;

/// How far another clock is from ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Their reading minus ours at the same moment, nanoseconds.
    pub nanos: i64,
    /// The true offset lies within ± this many nanoseconds.
    pub error_nanos: i64,
}

/// One bound on the offset between another clock and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetBound {
    /// When it was seen, on our clock.
    pub at: Stamp,
    /// Their clock minus ours is at least this, nanoseconds (something of theirs was read by us).
    pub at_least: Option<i64>,
    /// Their clock minus ours is at most this, nanoseconds (something of ours was read by them).
    pub at_most: Option<i64>,
}

impl OffsetBound {
    /// What we sent at `ours` had arrived by `theirs` on the other clock.
    pub fn of_sent(ours: Stamp, theirs: Stamp) -> OffsetBound {
        OffsetBound {
            at: ours,
            at_least: None,
            at_most: Some(theirs.nanos_since(ours)),
        }
    }

    /// What was sent at `theirs` on the other clock had arrived by `ours`.
    pub fn of_received(ours: Stamp, theirs: Stamp) -> OffsetBound {
        OffsetBound {
            at: ours,
            at_least: Some(theirs.nanos_since(ours)),
            at_most: None,
        }
    }

    /// Both, as far as they were seen: we sent at `sent` and had read the answer by `read`; the other side had ours by
    /// `arrived` and answered at `answered`.
    pub fn of_exchange(
        sent: Option<Stamp>,
        arrived: Option<Stamp>,
        answered: Option<Stamp>,
        read: Option<Stamp>,
    ) -> Vec<OffsetBound> {
        let there = sent.zip(arrived);
        let back = read.zip(answered);
        let there = there.map(|(ours, theirs)| OffsetBound::of_sent(ours, theirs));
        let back = back.map(|(ours, theirs)| OffsetBound::of_received(ours, theirs));
        there.into_iter().chain(back).collect()
    }
}
