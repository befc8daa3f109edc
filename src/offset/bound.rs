//! What is known of another clock: an offset, and what bounds it.

use crate::clock::Stamp;

/// How far another clock is from ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
