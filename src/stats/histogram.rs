//! A bounded log-linear histogram of durations.

use super::ranks;

/// The logarithm (base 2) of the number of buckets in an octave.
const SUB_BITS: u32 = 4;
const SUB: usize = 1 << SUB_BITS;
/// The logarithm (base 2) of the value from which on all share the last bucket: 2^41 ns, 36 minutes.
const TOP_BITS: u32 = 41;
const BUCKETS: usize = SUB * (TOP_BITS - SUB_BITS + 1) as usize;

/// A histogram of nanoseconds in fixed memory (under 2.5 KB): exact below 16 ns, from there 16 buckets an octave up to 36 minutes.
/// Count, minimum and maximum are exact; a quantile is within 3.2 %.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// The buckets up to the octave of the largest value; the capacity is that of all.
    buckets: Vec<u32>,
    count: u64,
    min: i64,
    max: i64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: Vec::new(),
            count: 0,
            min: i64::MAX,
            max: 0,
        }
    }
}

impl Histogram {
    /// Counts a value `times` times; a negative one counts as 0. Only the first call allocates. The count of a bucket saturates.
    pub fn record(&mut self, nanos: i64, times: u32) {
        if times == 0 {
            return;
        }
        let nanos = nanos.max(0);
        let index = index(nanos);
        self.grow(index + 1);
        let bucket = &mut self.buckets[index];
        *bucket = bucket.saturating_add(times);
        self.count = self.count.saturating_add(u64::from(times));
        self.min = self.min.min(nanos);
        self.max = self.max.max(nanos);
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        self.grow(other.buckets.len());
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket = bucket.saturating_add(*more);
        }
        self.count = self.count.saturating_add(other.count);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Grows to at least so many buckets, in whole octaves: most streams use few of them.
    fn grow(&mut self, buckets: usize) {
        if self.buckets.len() < buckets {
            self.buckets.reserve_exact(BUCKETS - self.buckets.len());
            self.buckets.resize(buckets.next_multiple_of(SUB), 0);
        }
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The `q`-quantile in nanoseconds, interpolated as by [`super::quantile`], within 3.2 % of the exact one (above 36 minutes:
    /// between that and the maximum). `None` of no values, and of ranks that a full bucket has lost.
    pub fn quantile(&self, q: f64) -> Option<i64> {
        let (below, above, part) = ranks(self.count, q)?;
        let at = |rank| match rank {
            0 => Some(self.min),
            _ if rank + 1 == self.count => Some(self.max),
            _ => self.at_rank(rank),
        };
        let (low, high) = (at(below)?, at(above)?);
        Some((low as f64 + (high - low) as f64 * part).round() as i64)
    }

    /// The number of values up to each bound and above the one before, and last the number above all bounds. `bounds` are ascending
    /// nanoseconds. A value within 3.2 % of a bound may be counted on its other side.
    pub fn counts(&self, bounds: &[i64]) -> Box<[u32]> {
        let mut counts = vec![0_u32; bounds.len() + 1];
        let (from, to) = (index(self.min.min(self.max)), index(self.max));
        for (bucket, count) in self.buckets.iter().enumerate().take(to + 1).skip(from) {
            if *count > 0 {
                let value = middle(bucket).clamp(self.min, self.max);
                let sum = &mut counts[bounds.partition_point(|bound| *bound < value)];
                *sum = sum.saturating_add(*count);
            }
        }
        counts.into()
    }

    /// The approximate value at a rank, from 0.
    fn at_rank(&self, rank: u64) -> Option<i64> {
        let mut seen = 0;
        let from = index(self.min.min(self.max));
        let bucket = self.buckets.get(from..)?.iter().position(|count| {
            seen += u64::from(*count);
            seen > rank
        })?;
        Some(middle(from + bucket).clamp(self.min, self.max))
    }
}

/// The bucket of a value ≥ 0.
fn index(nanos: i64) -> usize {
    let nanos = nanos.unsigned_abs();
    if nanos < SUB as u64 {
        return nanos as usize;
    }
    let octave = nanos.ilog2();
    if octave >= TOP_BITS {
        return BUCKETS - 1;
    }
    let shift = octave - SUB_BITS;
    let sub = (nanos >> shift) as usize - SUB;
    SUB * (shift as usize + 1) + sub
}

/// The middle of the values of a bucket.
fn middle(bucket: usize) -> i64 {
    if bucket < SUB {
        return bucket as i64;
    }
    let shift = (bucket / SUB - 1) as u32;
    let low = ((SUB + bucket % SUB) as i64) << shift;
    low + ((1_i64 << shift) - 1) / 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_is_small() {
        let mut histogram = Histogram::default();
        for value in [100_000_000, i64::MAX] {
            histogram.record(value, 1);
            let bytes = size_of_val(&histogram) + 4 * histogram.buckets.capacity();
            assert!(bytes <= 2560, "{bytes}");
        }
    }

    #[test]
    fn count_and_ends_are_exact() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        histogram.record(1_000_001, 3);
        histogram.record(7_000_005, 1);
        histogram.record(123, 0);
        assert_eq!(histogram.count(), 4);
        assert_eq!(histogram.quantile(0.0), Some(1_000_001));
        assert_eq!(histogram.quantile(1.0), Some(7_000_005));
    }

    #[test]
    fn values_are_counted_between_bounds() {
        let mut histogram = Histogram::default();
        assert_eq!(*histogram.counts(&[10, 20]), [0, 0, 0]);
        for (nanos, times) in [(0, 2), (10, 1), (11, 3), (15, 4), (1_000_000, 5)] {
            histogram.record(nanos, times);
        }
        assert_eq!(*histogram.counts(&[10, 20]), [3, 7, 5]);
        assert_eq!(*histogram.counts(&[-1, 3_000_000]), [0, 15, 0]);
        assert_eq!(*histogram.counts(&[]), [15]);
    }

    #[test]
    fn a_full_bucket_loses_counts_and_nothing_else() {
        let mut histogram = Histogram::default();
        histogram.record(i64::MAX, u32::MAX);
        histogram.record(i64::MAX, u32::MAX);
        histogram.record(-5, 1);
        assert_eq!(histogram.count(), 2 * u64::from(u32::MAX) + 1);
        assert_eq!(histogram.quantile(1.0), Some(i64::MAX));
        assert_eq!(histogram.quantile(0.0), Some(0));
    }

    proptest! {
        #[test]
        fn quantiles_are_within_the_error_of_the_exact_ones(
            // Log-uniform, from nanoseconds to half an hour.
            values in prop::collection::vec((0.0_f64..41.0).prop_map(|bits| bits.exp2() as i64), 1..300),
            q in 0.0_f64..=1.0,
        ) {
            // Of two that are added up.
            let (mut histogram, mut other) = (Histogram::default(), Histogram::default());
            for (value, n) in values.iter().zip(0..) {
                let of = if n % 3 == 0 { &mut other } else { &mut histogram };
                of.record(*value, 1);
            }
            histogram.add(&other);
            prop_assert_eq!(histogram.count(), values.len() as u64);
            let mut sorted: Vec<f64> = values.iter().map(|v| *v as f64).collect();
            sorted.sort_unstable_by(f64::total_cmp);
            let exact = crate::stats::quantile(&sorted, q).unwrap();
            let got = histogram.quantile(q).unwrap() as f64;
            // Half a nanosecond more: the answer is a whole one.
            prop_assert!((got - exact).abs() <= 0.032 * exact + 0.5, "{got} is not {exact}");
        }
    }
}
