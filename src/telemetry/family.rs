//! Metrics with labels, each with a bounded number of label sets.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;
use parking_lot::RwLock;
use prometheus::core::{Atomic, AtomicF64, Collector, Desc, Describer, Metric as Shown};
use prometheus::proto::{self, Bucket, LabelPair, MetricFamily, MetricType};
use prometheus::{
    Counter, Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, Opts, Registry, Result,
};

use crate::clock::seconds;

/// The description of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name, which ends in its unit.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricType,
    /// A histogram counts values up to each of these bounds, in its unit.
    pub bounds: &'static [f64],
    /// What it counts and how to read it, in a few sentences.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}

/// The default maximum number of label sets of a metric.
pub const MAX_LABEL_SETS: usize = 64;
/// The label value in place of those for which there is no room.
pub const OTHER: &str = "other";

/// Labels whose values are all our own, or a few of the config. All others are open: their values come from outside, or from a config
/// of any size.
const CLOSED_LABELS: [&str; 20] = [
    "by",
    "cause",
    "direction",
    "endpoint",
    "error_type",
    "gen_ai_operation_name",
    "gen_ai_provider_name",
    "header",
    "http_route",
    "kind",
    "outcome",
    "phase",
    "reason",
    "result",
    "reused",
    "source",
    "stage",
    "table",
    "type",
    "what",
];
/// A longer value of an open label becomes [`OTHER`].
const MAX_VALUE_BYTES: usize = 256;

/// The value of one label set: a type of the `prometheus` crate. Clones share the value.
pub trait Series: Shown + 'static {
    /// Its type in a scrape.
    const TYPE: MetricType;
    /// Creates one at zero. An error if Prometheus refuses a name, which a test rules out.
    const NEW: fn(HistogramOpts) -> Result<Self>;
}

macro_rules! series {
    ($($series:ty: $type:ident = $new:expr;)*) => {$(
        impl Series for $series {
            const TYPE: MetricType = MetricType::$type;
            const NEW: fn(HistogramOpts) -> Result<Self> = $new;
        }
    )*};
}

series! {
    IntCounter: COUNTER = |opts| IntCounter::with_opts(opts.common_opts);
    Counter: COUNTER = |opts| Counter::with_opts(opts.common_opts);
    IntGauge: GAUGE = |opts| IntGauge::with_opts(opts.common_opts);
    Gauge: GAUGE = |opts| Gauge::with_opts(opts.common_opts);
    Histogram: HISTOGRAM = Histogram::with_opts;
    BatchHistogram: HISTOGRAM = |opts| BatchHistogram::with_opts(&opts);
}

/// A histogram that adds many durations at once, which that of the `prometheus` crate cannot. Clones share the counts.
#[derive(Clone, Debug)]
pub struct BatchHistogram(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    /// Seconds.
    bounds: Vec<f64>,
    /// The number of values in each bucket, the last of which is above all bounds.
    counts: Box<[AtomicU64]>,
    /// Seconds.
    sum: AtomicF64,
    labels: Vec<LabelPair>,
}

/// A metric and its series, one per label set. Clones are the same metric.
#[derive(Clone, Debug)]
pub struct Family<S>(Arc<Sets<S>>);

#[derive(Debug)]
struct Sets<S> {
    metric: Metric,
    desc: Desc,
    /// The number of label sets from which on new values of open labels become [`OTHER`].
    max_sets: usize,
    hasher: RandomState,
    /// By a keyed hash of the values: a collision among a few thousand sets is practically impossible.
    all: RwLock<BTreeMap<u64, (Vec<String>, S)>>,
    /// Used in place of a series that cannot be created, and not shown.
    fallback: S,
}

impl<S: Series> Family<S> {
    /// Creates a metric in `registry`. From `max_sets` label sets on, only new values of closed labels, which are all our own,
    /// add sets. Without labels it has its single set at once.
    ///
    /// # Errors
    /// If Prometheus refuses a name, which a test rules out.
    pub fn new(registry: &Registry, metric: Metric, max_sets: usize) -> Result<Family<S>> {
        let labels = metric.labels.iter().map(ToString::to_string).collect();
        let opts = Opts::new(metric.name, metric.help).variable_labels(labels);
        let family = Family(Arc::new(Sets {
            desc: opts.describe()?,
            max_sets,
            hasher: RandomState::new(),
            all: RwLock::default(),
            fallback: metric.series(&[])?,
            metric,
        }));
        if metric.labels.is_empty() {
            family.with(&[]);
        }
        registry.register(Box::new(family.clone()))?;
        Ok(family)
    }

    /// Returns the series with these label values, in the order of the metric's labels. If the metric is full, new values of open
    /// labels (names of models, workers, servers, clocks) become [`OTHER`].
    pub fn with(&self, values: &[&str]) -> S {
        self.find(self.key(values))
            .unwrap_or_else(|| self.add(values))
    }

    /// Returns all label sets with their series.
    pub fn sets(&self) -> Vec<(Vec<String>, S)> {
        self.0.all.read().values().cloned().collect()
    }

    /// Removes all label sets.
    pub fn clear(&self) {
        self.0.all.write().clear();
    }

    /// Returns the hash of label values. The hasher includes each value's length.
    fn key(&self, values: &[&str]) -> u64 {
        let mut hasher = self.0.hasher.build_hasher();
        values
            .iter()
            .for_each(|value| hasher.write(value.as_bytes()));
        hasher.finish()
    }

    fn find(&self, key: u64) -> Option<S> {
        self.0.all.read().get(&key).map(|set| set.1.clone())
    }

    fn add(&self, values: &[&str]) -> S {
        let is_full = self.0.all.read().len() >= self.0.max_sets;
        let is_kept = |name: &str, value: &str| {
            let has_room = !is_full && value.len() <= MAX_VALUE_BYTES;
            has_room || value.is_empty() || CLOSED_LABELS.contains(&name)
        };
        let pairs = self.0.metric.labels.iter().zip(values);
        let kept = pairs.map(|(name, value)| if is_kept(name, value) { *value } else { OTHER });
        let kept: Vec<&str> = kept.collect();
        let key = self.key(&kept);
        // If the metric is full the set exists: no write lock, which would delay others.
        if let Some(series) = self.find(key) {
            return series;
        }
        let Ok(series) = self.0.metric.series(&kept) else {
            return self.0.fallback.clone();
        };
        let values = kept.iter().map(ToString::to_string).collect();
        let mut all = self.0.all.write();
        all.entry(key).or_insert((values, series)).1.clone()
    }
}

impl<S: Series> Collector for Family<S> {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // The series are read without the lock: adding a label set does not wait for a scrape.
        let sets = self.sets();
        let mut family = MetricFamily::default();
        family.set_name(self.0.desc.fq_name.clone());
        family.set_help(self.0.desc.help.clone());
        family.set_field_type(S::TYPE);
        family.set_metric(sets.iter().map(|(_, series)| series.metric()).collect());
        vec![family]
    }
}

impl Metric {
    /// Creates the series of a label set. Labels without a value are left out.
    fn series<S: Series>(&self, values: &[&str]) -> Result<S> {
        let pairs = self.labels.iter().zip(values);
        let pairs = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let opts = HistogramOpts::new(self.name, self.help).const_labels(pairs.collect());
        S::NEW(opts.buckets(self.bounds.to_vec()))
    }
}

impl BatchHistogram {
    /// Creates an empty histogram with these bounds and labels.
    ///
    /// # Errors
    /// If Prometheus refuses a name, which a test rules out.
    pub fn with_opts(opts: &HistogramOpts) -> Result<BatchHistogram> {
        let counts = (0..=opts.buckets.len()).map(|_| AtomicU64::new(0));
        Ok(BatchHistogram(Arc::new(Counts {
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
        self.0.sum.inc_by(seconds(sum_nanos.max(0)));
    }
}

impl Shown for BatchHistogram {
    fn metric(&self) -> proto::Metric {
        let inner = &*self.0;
        let mut histogram = proto::Histogram::default();
        // Read before the counts: a value added in between is then missing in the sum, not in the counts.
        histogram.set_sample_sum(inner.sum.get());
        let mut so_far = 0;
        let mut counts = inner.counts.iter().map(|count| {
            so_far += count.load(Ordering::Relaxed);
            so_far
        });
        let buckets = inner.bounds.iter().zip(&mut counts);
        let buckets = buckets.map(|(bound, count)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(count);
            bucket
        });
        histogram.set_bucket(buckets.collect());
        // After the last bound, those above it.
        histogram.set_sample_count(counts.next().unwrap_or_default());
        let mut shown = proto::Metric::from_label(inner.labels.clone());
        shown.set_histogram(histogram);
        shown
    }
}

#[cfg(test)]
mod tests;
