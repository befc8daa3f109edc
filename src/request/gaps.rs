//! The time between events of a stream that carried tokens.

use crate::clock::Stamp;
use crate::stats::Histogram;

/// Gaps of a stream, without the time in which the client held it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GapFigures {
    /// Mean, nanoseconds.
    pub mean_nanos: Option<i64>,
    /// 99th percentile, nanoseconds.
    pub p99_nanos: Option<i64>,
    /// Longest, nanoseconds.
    pub max_nanos: Option<i64>,
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
    histogram: Option<Box<Histogram>>,
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

    /// What is known of them.
    pub fn figures(&self) -> GapFigures {
        // One that missed some of the gaps speaks of none.
        let whole = |histogram: &&Histogram| histogram.count() == self.count.unsigned_abs();
        let histogram = self.histogram.as_deref().filter(whole);
        GapFigures {
            mean_nanos: self.sum_nanos.checked_div(self.count),
            p99_nanos: histogram.and_then(|histogram| histogram.quantile(0.99)),
            max_nanos: (self.count > 0).then_some(self.max_nanos),
        }
    }
}
