//! How far another clock is from ours. Pure: time is handed in.
//!
//! What was sent cannot arrive earlier, so every request bounds the offset (theirs − ours) from both
//! sides. [`OffsetFilter`] keeps the tightest bounds of the last minutes (NTP's minimum filter), each
//! widened by what two clocks may have drifted since.
//!
//! What is promised, as long as each [`OffsetBound`] is true at its `at` and the clocks drift by at most 100 ppm:
//!
//! - While the other clock does not step, the stated interval holds the true offset of the moment asked
//!   for; of [`OffsetFilter::offset_over`], of all moments of a stretch.
//! - A step shows when a bound contradicts an earlier one. From then on only bounds taken at that moment
//!   or later count, so the interval holds the truth again; until both sides are bounded anew the offset is
//!   unknown.
//! - A step that contradicts nothing (smaller than the interval and the delays together) cannot be seen.
//!   The interval may then miss the truth, by less than the delay of the tightest bound taken since, until
//!   the bounds from before the step are too old.
//! - Our own clocks never step: they are monotonic ([`crate::clock`]).

mod bound;
mod filter;
mod table;

pub use bound::{Offset, OffsetBound};
pub use filter::{MEMORY, OffsetFilter};
pub use table::OffsetTable;
