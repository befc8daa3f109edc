//! A histogram that takes many values at once, which the crate's do not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::core::{Atomic, AtomicF64, Describer, Metric};
use prometheus::proto::{self, Bucket, LabelPair};
use prometheus::{HistogramOpts, Result};

use crate::clock::NANOS;

/// Counts of durations by their length. Clones count together.
#[derive(Clone, Debug)]
pub struct Gaps(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Seconds.
    bounds: Vec<f64>,
    /// Values up to each bound and above the one before; the last are above all.
    counts: Box<[AtomicU64]>,
    /// Seconds.
    sum: AtomicF64,
    labels: Vec<LabelPair>,
}

impl Gaps {
    /// None yet, of these bounds and labels.
    ///
    /// # Errors
    /// When Prometheus refuses a name, which a test rules out.
    pub fn with_opts(opts: &HistogramOpts) -> Result<Gaps> {
        let counts = (0..=opts.buckets.len()).map(|_| AtomicU64::new(0));
        Ok(Gaps(Arc::new(Inner {
            counts: counts.collect(),
            bounds: opts.buckets.clone(),
            sum: AtomicF64::new(0.0),
            labels: opts.describe()?.const_label_pairs,
        })))
    }

    /// Adds many at once: how many lie up to each bound and above the one before, and how long they are in all.
    pub fn add(&self, counts: &[u32], sum_nanos: i64) {
        let counts = self.0.counts.iter().zip(counts);
        for (count, more) in counts.filter(|(_, more)| **more > 0) {
            count.fetch_add(u64::from(*more), Ordering::Relaxed);
        }
        self.0.sum.inc_by(sum_nanos.max(0) as f64 / NANOS as f64);
    }
}

impl Metric for Gaps {
    fn metric(&self) -> proto::Metric {
        let inner = &*self.0;
        let mut histogram = proto::Histogram::default();
        // Read before the counts: what comes in between is then missing in the sum, not in the counts.
        histogram.set_sample_sum(inner.sum.get());
        let mut so_far = 0;
        let buckets = inner
            .bounds
            .iter()
            .zip(&inner.counts)
            .map(|(bound, count)| {
                so_far += count.load(Ordering::Relaxed);
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(*bound);
                bucket.set_cumulative_count(so_far);
                bucket
            });
        histogram.set_bucket(buckets.collect());
        let above = inner
            .counts
            .last()
            .map_or(0, |count| count.load(Ordering::Relaxed));
        histogram.set_sample_count(so_far + above);
        let mut shown = proto::Metric::from_label(inner.labels.clone());
        shown.set_histogram(histogram);
        shown
    }
}
