//! The time between events of a stream that carried tokens.

use crate::clock::{NANOS, Stamp};
use crate::stats::Histogram;

/// Bounds between which gaps between tokens are counted, seconds: those of SGLang's own inter-token latency.
pub const GAP_BOUNDS: [f64; 23] = [
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080,
    0.100, 0.200, 0.400, 0.600, 0.800, 1.0, 2.0, 4.0, 6.0, 8.0,
];

/// The same, nanoseconds.
const BOUNDS: [i64; GAP_BOUNDS.len()] = {
    let mut nanos = [0; GAP_BOUNDS.len()];
    let mut at = 0;
    while at < nanos.len() {
        nanos[at] = (GAP_BOUNDS[at] * NANOS as f64 + 0.5) as i64;
        at += 1;
    }
    nanos
};

/// All gaps of a stream by their length, within 3.2 %.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GapCounts {
    /// How many lie up to each of [`GAP_BOUNDS`] and above the one before, and last how many above all.
    pub counts: Box<[u32]>,
    /// How long they are in all, nanoseconds.
    pub sum_nanos: i64,
}

/// Time between events with tokens, each divided into equal shares.
#[derive(Debug, Default)]
pub struct Gaps {
    since: Option<Stamp>,
    count: i64,
    sum_nanos: i64,
    max_nanos: i64,
    /// For the quantile. Memory is bounded: the first few sequences of a request have one, for gaps between tokens
    /// where events tell how many they bring, else for those between events.
    histogram: Option<Histogram>,
}

impl Gaps {
    /// Takes the gap before an event in so many shares; in none, it is left to the next. `at` is when the event was
    /// read, less how long writes to the client had been held up by then. `in_full`: keep what the quantile needs.
    pub fn event(&mut self, at: Stamp, shares: u64, in_full: bool) {
        let Ok(shares @ 1..) = i64::try_from(shares) else {
            return;
        };
        let Some(since) = self.since.replace(at) else {
            return;
        };
        let gap = at.nanos_since(since).max(0);
        let each = gap / shares;
        self.count = self.count.saturating_add(shares);
        self.sum_nanos = self.sum_nanos.saturating_add(gap);
        self.max_nanos = self.max_nanos.max(each);
        if in_full {
            let times = u32::try_from(shares).unwrap_or(u32::MAX);
            self.histogram.get_or_insert_default().record(each, times);
        }
    }

    /// The histogram, if it missed none of the gaps.
    fn whole(&self) -> Option<&Histogram> {
        let histogram = self.histogram.as_ref();
        histogram.filter(|histogram| histogram.count() == self.count.unsigned_abs())
    }

    /// How many there are of which length, where that is known of all.
    pub fn counts(&self) -> Option<GapCounts> {
        Some(GapCounts {
            counts: self.whole()?.counts(&BOUNDS),
            sum_nanos: self.sum_nanos,
        })
    }

    /// Their mean, 99th percentile and longest, nanoseconds, without the time in which the client held the stream up.
    pub fn figures(&self) -> [Option<i64>; 3] {
        let mean = self.sum_nanos.checked_div(self.count);
        let p99 = self.whole().and_then(|histogram| histogram.quantile(0.99));
        [mean, p99, (self.count > 0).then_some(self.max_nanos)]
    }
}
