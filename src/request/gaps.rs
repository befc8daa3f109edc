//! Gaps between the token events of a stream.

use crate::clock::{NANOS, Stamp};
use crate::stats::Histogram;

/// Bounds of the histogram of gaps between tokens, seconds: those of SGLang's own inter-token latency.
pub const GAP_BOUNDS: [f64; 23] = [
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080,
    0.100, 0.200, 0.400, 0.600, 0.800, 1.0, 2.0, 4.0, 6.0, 8.0,
];

/// All gaps of a stream as a histogram, exact to 3.2 %.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GapCounts {
    /// The number of gaps up to each of [`GAP_BOUNDS`] and above the one before, and last the number above all bounds.
    pub counts: Box<[u32]>,
    /// The sum of the gaps, nanoseconds.
    pub sum_nanos: i64,
}

/// Gathers the gaps between token events; the gap before an event is split evenly among the tokens that it brings.
#[derive(Debug, Default)]
pub struct Gaps {
    last_at: Option<Stamp>,
    count: i64,
    sum_nanos: i64,
    max_nanos: i64,
    /// For the quantile. Memory is bounded: only the first few sequences of a request have one, for gaps between tokens if events
    /// report how many tokens they bring, else for gaps between events.
    histogram: Option<Histogram>,
}

impl Gaps {
    /// Records the gap before an event that brings `tokens`, in as many equal parts; with 0 tokens the time is added to the
    /// next gap. `at` is when the event was read, less how long writes to the client had been held up by then.
    pub fn record(&mut self, at: Stamp, tokens: u64, keep_histogram: bool) {
        let Ok(tokens @ 1..) = i64::try_from(tokens) else {
            return;
        };
        let Some(last_at) = self.last_at.replace(at) else {
            return;
        };
        let gap = at.nanos_since(last_at).max(0);
        let each = gap / tokens;
        self.count = self.count.saturating_add(tokens);
        self.sum_nanos = self.sum_nanos.saturating_add(gap);
        self.max_nanos = self.max_nanos.max(each);
        if keep_histogram {
            let times = u32::try_from(tokens).unwrap_or(u32::MAX);
            self.histogram.get_or_insert_default().record(each, times);
        }
    }

    /// Returns the histogram if it has all of the gaps.
    fn complete_histogram(&self) -> Option<&Histogram> {
        let histogram = self.histogram.as_ref();
        histogram.filter(|histogram| histogram.count() == self.count.unsigned_abs())
    }

    /// Returns the histogram's counts; `None` if it is not complete.
    pub fn counts(&self) -> Option<GapCounts> {
        let bounds = GAP_BOUNDS.map(|seconds| (seconds * NANOS as f64 + 0.5) as i64);
        Some(GapCounts {
            counts: self.complete_histogram()?.counts(&bounds),
            sum_nanos: self.sum_nanos,
        })
    }

    /// Returns mean, 99th percentile and maximum, nanoseconds, without the time in which the client held up the stream.
    pub fn mean_p99_max(&self) -> [Option<i64>; 3] {
        let mean = self.sum_nanos.checked_div(self.count);
        let histogram = self.complete_histogram();
        let p99 = histogram.and_then(|histogram| histogram.quantile(0.99));
        [mean, p99, (self.count > 0).then_some(self.max_nanos)]
    }
}
