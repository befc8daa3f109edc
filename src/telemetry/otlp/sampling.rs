//! Which traces are kept, decided when their requests have ended. Pure.

use crate::keys::values::Seconds;
use crate::request::names::names;
use crate::request::row::Row;

use super::settings::{Otlp, UpstreamFlag};

names! {
/// Why a trace is kept.
pub enum Kept {
    /// It did not go well.
    Error = "error",
    /// It was over a limit.
    Slow = "slow",
    /// The client had sampled it, or those upstream were told to.
    Flagged = "flagged",
    /// By chance.
    Ratio = "ratio",
}}

impl Otlp {
    /// Whether the trace of a request with these rows is kept, and why. `trace` is its id.
    pub fn keeps(&self, rows: &[Row], trace: u128) -> Option<Kept> {
        let first = rows.first()?;
        if self.keep_errors && !first.is_ok() {
            return Some(Kept::Error);
        }
        let is_over = |nanos: Option<i64>, limit: Seconds<0>| {
            let nanos = nanos.and_then(|nanos| u128::try_from(nanos).ok());
            let limit = limit.get().as_nanos();
            limit > 0 && nanos.is_some_and(|nanos| nanos > limit)
        };
        let ttft = rows.iter().filter_map(|row| row.ttft).max();
        if is_over(first.elapsed, self.keep_total_over_s) || is_over(ttft, self.keep_ttft_over_s) {
            return Some(Kept::Slow);
        }
        let came = &first.more.trace;
        if came.came_sampled == Some(true) || came.sent_sampled {
            return Some(Kept::Flagged);
        }
        let is_rest = !self.follow_client || came.came_sampled.is_none();
        (is_rest && is_of_share(trace, self.ratio)).then_some(Kept::Ratio)
    }
}

/// Whether a trace belongs to this share of all, as OpenTelemetry's `TraceIdRatioBased` decides it: alike everywhere.
fn is_of_share(trace: u128, ratio: f64) -> bool {
    let bound = (ratio.clamp(0.0, 1.0) * (1_u64 << 63) as f64) as u64;
    (trace as u64) >> 1 < bound
}

impl UpstreamFlag {
    /// Whether the trace goes upstream sampled that `came` so from a client, or was begun here.
    pub fn sends(self, came: Option<bool>, trace: u128, ratio: f64) -> bool {
        match self {
            UpstreamFlag::Client => came == Some(true),
            UpstreamFlag::Ratio => came.unwrap_or_else(|| is_of_share(trace, ratio)),
            UpstreamFlag::Always => true,
            UpstreamFlag::Never => false,
        }
    }
}

#[cfg(test)]
mod tests;
