//! What a series of neighbours is worth: requests that wait in one queue wait alike, so a run of a thousand tells less
//! than a thousand draws would.
//!
//! Rules that choose a block by the series' own correlation (Politis and White) were tried on simulated queues and see too
//! little: where requests are spread over several queues, neighbours are nearly independent and yet the whole run stays
//! long or short for hundreds of them. So blocks are a fixed share of the run, and intervals are as much wider as so few
//! blocks ask for (Kiefer and Vogelsang 2005, "fixed b").

/// The share of a series that is drawn together.
const SHARE: f64 = 0.25;
/// Two-sided 95 % of the normal distribution.
const NORMAL: f64 = 1.959_964;

/// How many neighbours are drawn together of a series of `len` values: a quarter, at least 1.
pub fn block_length(len: usize) -> usize {
    ((len as f64 * SHARE).round() as usize).max(1)
}

/// How much wider a 95 % interval is whose spread comes of blocks of [`block_length`], than the normal distribution says.
pub fn widening() -> f64 {
    // Their polynomial for the Bartlett kernel, which blocks in a ring amount to.
    let critical = 1.96 + 2.9694 * SHARE + 0.4160 * SHARE.powi(2) - 0.5324 * SHARE.powi(3);
    critical / NORMAL
}
