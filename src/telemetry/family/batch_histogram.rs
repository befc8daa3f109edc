//! A histogram that adds many values at once, which those of the `prometheus` crate cannot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::core::{Atomic, AtomicF64, Describer, Metric};
use prometheus::proto::{self, Bucket, LabelPair};
use prometheus::{HistogramOpts, Result};

use crate::clock::NANOS;

/// Counts of durations by their length. Clones share the counts.
#[derive(Clone, Debug)]
pub struct BatchHistogram(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Seconds.
    bounds: Vec<f64>,
    /// The number of values in each bucket, the last of which is above all bounds.
    counts: Box<[AtomicU64]>,
    /// Seconds.
    sum: AtomicF64,
    labels: Vec<LabelPair>,
}

impl BatchHistogram {
    /// Creates an empty histogram with these bounds and labels.
    ///
    /// # Errors
    /// If Prometheus refuses a name, which a test rules out.
    pub fn with_opts(opts: &HistogramOpts) -> Result<BatchHistogram> {
        let counts = (0..=opts.buckets.len()).map(|_| AtomicU64::new(0));
        Ok(BatchHistogram(Arc::new(Inner {
            counts: counts.collect(),
            bounds: opts.buckets.clone(),
            sum: AtomicF64::new(0.0),
            labels: opts.describe()?.const_label_pairs,
        })))
    }

    /// Adds the number of durations in each bucket, and their sum.
    pub fn add(&self, counts: &[u32], sum_nanos: i64) {
        let counts = self.0.counts.iter().zip(counts);
        for (count, more) in counts.filter(|(_, more)| **more > 0) {
            count.fetch_add(u64::from(*more), Ordering::Relaxed);
        }
        self.0.sum.inc_by(sum_nanos.max(0) as f64 / NANOS as f64);
    }
}

impl Metric for BatchHistogram {
    fn metric(&self) -> proto::Metric {
        let inner = &*self.0;
        let mut histogram = proto::Histogram::default();
        // Read before the counts: a value added in between is then missing in the sum, not in the counts.
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
