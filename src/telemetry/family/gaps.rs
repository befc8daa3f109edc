//! A histogram that takes many values at once, which the crate's do not.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::core::{Atomic, AtomicF64, Metric as Shown, MetricVec, MetricVecBuilder};
use prometheus::proto::{self, Bucket, LabelPair, MetricType};
use prometheus::{HistogramOpts, Result};

use super::{Vector, histogram};
use crate::clock::NANOS;
use crate::telemetry::metric::Metric;

/// Such histograms, one a label set.
pub type GapsVec = MetricVec<Builder>;

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

/// Makes them.
#[derive(Clone, Debug)]
pub struct Builder;

impl Gaps {
    /// Adds many at once: how many lie up to each bound and above the one before, and how long they are in all.
    pub fn add(&self, counts: &[u32], sum_nanos: i64) {
        for (count, more) in self
            .0
            .counts
            .iter()
            .zip(counts)
            .filter(|(_, more)| **more > 0)
        {
            count.fetch_add(u64::from(*more), Ordering::Relaxed);
        }
        self.0.sum.inc_by(sum_nanos.max(0) as f64 / NANOS as f64);
    }
}

impl Shown for Gaps {
    fn metric(&self) -> proto::Metric {
        let inner = &*self.0;
        let mut histogram = proto::Histogram::default();
        // Read before the counts: what comes in between is then missing in the sum, not in the counts.
        histogram.set_sample_sum(inner.sum.get());
        let mut so_far = 0;
        let counts = inner.counts.iter().map(|count| {
            so_far += count.load(Ordering::Relaxed);
            so_far
        });
        let counts: Vec<u64> = counts.collect();
        let buckets = inner.bounds.iter().zip(&counts).map(|(bound, count)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(*count);
            bucket
        });
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(counts.last().copied().unwrap_or(0));
        let mut shown = proto::Metric::from_label(inner.labels.clone());
        shown.set_histogram(histogram);
        shown
    }
}

impl MetricVecBuilder for Builder {
    type M = Gaps;
    type P = HistogramOpts;

    fn build<V: AsRef<str>>(&self, opts: &HistogramOpts, values: &[V]) -> Result<Gaps> {
        let labels = opts.common_opts.variable_labels.iter().zip(values);
        let labels = labels.map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.clone());
            pair.set_value(value.as_ref().to_owned());
            pair
        });
        Ok(Gaps(Arc::new(Inner {
            counts: (0..=opts.buckets.len())
                .map(|_| AtomicU64::new(0))
                .collect(),
            bounds: opts.buckets.clone(),
            sum: AtomicF64::new(0.0),
            labels: labels.collect(),
        })))
    }
}

impl Vector for GapsVec {
    type One = Gaps;

    fn build(metric: &Metric) -> Result<GapsVec> {
        let labels = metric.labels.iter().map(ToString::to_string);
        let opts = histogram(metric).variable_labels(labels.collect());
        MetricVec::create(MetricType::HISTOGRAM, Builder, opts)
    }

    fn one(&self, values: &[Cow<'_, str>]) -> Result<Gaps> {
        self.get_metric_with_label_values(values)
    }
}
