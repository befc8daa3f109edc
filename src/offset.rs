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

mod filter;
mod table;

pub use filter::{Offset, OffsetBound, OffsetFilter, VALIDITY};
pub use table::OffsetTable;
