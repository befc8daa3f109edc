//! Decides which traces are kept, when their requests have ended. Pure.

use crate::keys::values::Seconds;
use crate::request::Row;
use crate::request::names::names;

use super::settings::{Otlp, UpstreamFlag};

names! {
/// Why a trace is kept.
pub enum KeepReason {
    /// The request failed.
    Error = "error",
    /// It exceeded a latency limit.
    Slow = "slow",
    /// The client sampled it, or it was sent upstream as sampled.
    Flagged = "flagged",
    /// By the share of all traces.
    Ratio = "ratio",
}}

impl Otlp {
    /// Returns why the trace of a request is kept; `None` if it is dropped. `trace` is its id.
    pub fn keep_reason(&self, rows: &[Row], trace: u128) -> Option<KeepReason> {
        let first = rows.first()?;
        if self.keep_errors && !first.is_ok() {
            return Some(KeepReason::Error);
        }
        let is_over = |nanos: Option<i64>, limit: Seconds<0>| {
            let limit = limit.get().as_nanos() as i128;
            limit > 0 && nanos.is_some_and(|nanos| i128::from(nanos) > limit)
        };
        let ttft = rows.iter().filter_map(|row| row.ttft).max();
        if is_over(first.elapsed, self.keep_total_over_s) || is_over(ttft, self.keep_ttft_over_s) {
            return Some(KeepReason::Slow);
        }
        let flags = &first.internal.trace;
        if flags.received_sampled == Some(true) || flags.sent_sampled {
            return Some(KeepReason::Flagged);
        }
        let is_undecided = !self.follow_client || flags.received_sampled.is_none();
        (is_undecided && is_in_share(trace, self.ratio)).then_some(KeepReason::Ratio)
    }
}

/// Whether a trace is in this share of all, as OpenTelemetry's `TraceIdRatioBased` decides it, so that all processes agree.
fn is_in_share(trace: u128, ratio: f64) -> bool {
    let bound = (ratio.clamp(0.0, 1.0) * (1_u64 << 63) as f64) as u64;
    (trace as u64) >> 1 < bound
}

impl UpstreamFlag {
    /// Whether the sampled flag is sent upstream. `received`: the client's flag; `None` if the trace began here.
    pub fn is_sent(self, received: Option<bool>, trace: u128, ratio: f64) -> bool {
        match self {
            UpstreamFlag::Client => received == Some(true),
            UpstreamFlag::Ratio => received.unwrap_or_else(|| is_in_share(trace, ratio)),
            UpstreamFlag::Always => true,
            UpstreamFlag::Never => false,
        }
    }
}

#[cfg(test)]
mod tests;
