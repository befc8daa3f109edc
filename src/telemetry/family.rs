//! Metrics with labels, of which each has a bounded number of label sets, whatever comes in.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ahash::RandomState;
use parking_lot::RwLock;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, Result,
};

use super::metric::{Kind, Metric};

mod gaps;

pub use gaps::GapsVec;

/// The label sets that a metric has by default.
pub const LABEL_SETS: usize = 64;
/// What a label says in place of values for which there is no room.
pub const OTHER: &str = "other";

/// Labels whose values come from outside, or from a config of any size.
const OPEN: [&str; 7] = [
    "clock",
    "gen_ai_request_model",
    "server_address",
    "server_port",
    "upstream",
    "version",
    "worker",
];
/// Label sets of a metric whose values are all ours: it has fewer.
const CLOSED: usize = 4096;
/// A longer value of such a label shows as [`OTHER`], bytes.
const LONGEST: usize = 256;

/// A metric of the crate's with labels.
pub trait Vector: Collector + Clone + 'static {
    /// The numbers of one label set; clones count together.
    type One: Clone;
    /// Without any.
    ///
    /// # Errors
    /// When Prometheus refuses a name, which a test rules out.
    fn build(metric: &Metric) -> Result<Self>;
    /// Those of one label set.
    ///
    /// # Errors
    /// When there are not as many values as labels.
    fn one(&self, values: &[Cow<'_, str>]) -> Result<Self::One>;
}

/// A metric and its numbers, one a label set.
#[derive(Debug)]
pub struct Family<V: Vector> {
    metric: Metric,
    vector: V,
    most: usize,
    hasher: RandomState,
    /// By the hash of the values, with a key that nobody outside knows: of a few thousand sets no two meet.
    sets: RwLock<BTreeMap<u64, V::One>>,
    /// Shown nowhere: for what gives other values than there are labels.
    lost: V::One,
}

/// How much of a label set is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    All,
    /// The labels of a few known values.
    Closed,
    None,
}

macro_rules! vectors {
    ($($vector:ty: $one:ty = $opts:expr;)*) => {$(
        impl Vector for $vector {
            type One = $one;

            fn build(metric: &Metric) -> Result<Self> {
                let opts: fn(&Metric) -> _ = $opts;
                Self::new(opts(metric), metric.labels)
            }

            fn one(&self, values: &[Cow<'_, str>]) -> Result<$one> {
                self.get_metric_with_label_values(values)
            }
        }
    )*};
}

vectors! {
    IntCounterVec: IntCounter = opts;
    IntGaugeVec: IntGauge = opts;
    GaugeVec: Gauge = opts;
    HistogramVec: Histogram = histogram;
}

fn opts(metric: &Metric) -> Opts {
    Opts::new(metric.name, metric.help)
}

fn histogram(metric: &Metric) -> HistogramOpts {
    let bounds = match metric.kind {
        Kind::Histogram(bounds) => bounds.to_vec(),
        Kind::Counter | Kind::Gauge => Vec::new(),
    };
    HistogramOpts::from(opts(metric)).buckets(bounds)
}

impl<V: Vector> Family<V> {
    /// An empty one of at most `most` label sets (at least 2), shown in `registry`. Without labels it has its one set at
    /// once. What has labels of a few known values alone has all of them.
    ///
    /// # Errors
    /// When Prometheus refuses a name, which a test rules out.
    pub fn new(registry: &Registry, metric: Metric, most: usize) -> Result<Family<V>> {
        let vector = V::build(&metric)?;
        let others = vec![Cow::Borrowed(OTHER); metric.labels.len()];
        let has_open = metric.labels.iter().any(|name| is_open(name));
        let family = Family {
            metric,
            most: if has_open { most.max(2) } else { CLOSED },
            hasher: RandomState::new(),
            sets: RwLock::default(),
            lost: V::build(&metric)?.one(&others)?,
            vector,
        };
        if metric.labels.is_empty() {
            family.with(&[]);
        }
        registry.register(Box::new(family.vector.clone()))?;
        Ok(family)
    }

    /// The numbers of this label set, in the order of the metric's labels. When the metric is nearly full, new values of
    /// open labels (names of models, workers, servers, clocks) become [`OTHER`]; its last set is [`OTHER`] in every label.
    pub fn with(&self, values: &[&str]) -> V::One {
        // Nearly all have been there before.
        if let Some(one) = self.find(self.hasher.hash_one(values)) {
            return one;
        }
        for kept in [Kept::All, Kept::Closed] {
            let values = self.kept(kept, values);
            let key = self.hasher.hash_one(&values);
            if let Some(one) = self
                .find(key)
                .or_else(|| self.add(key, &values, self.room(kept)))
            {
                return one;
            }
        }
        let values = self.kept(Kept::None, values);
        let key = self.hasher.hash_one(&values);
        let found = self
            .find(key)
            .or_else(|| self.add(key, &values, usize::MAX));
        found.unwrap_or_else(|| self.lost.clone())
    }

    /// The crate's own.
    pub fn vector(&self) -> &V {
        &self.vector
    }

    /// What is shown, by the values of these labels.
    pub fn shown(&self, labels: &[&str]) -> Vec<(Vec<String>, f64)> {
        let families = self.vector.collect();
        let all = families
            .iter()
            .flat_map(MetricFamily::get_metric)
            .map(|one| {
                let pairs = one.get_label();
                let of = |name: &&str| {
                    pairs
                        .iter()
                        .find(|pair| pair.name() == *name)
                        .map(|pair| pair.value().to_owned())
                };
                let value = match self.metric.kind {
                    Kind::Counter => one.get_counter().get_value(),
                    Kind::Gauge => one.get_gauge().get_value(),
                    Kind::Histogram(_) => one.get_histogram().get_sample_sum(),
                };
                (labels.iter().filter_map(of).collect(), value)
            });
        let mut all: Vec<(Vec<String>, f64)> = all.collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    fn find(&self, key: u64) -> Option<V::One> {
        self.sets.read().get(&key).cloned()
    }

    /// How many sets there may be when one more is added of which so much is kept.
    fn room(&self, kept: Kept) -> usize {
        match kept {
            Kept::All if self.most < CLOSED => self.most * 3 / 4,
            _ => self.most - 1,
        }
    }

    fn add(&self, key: u64, values: &[Cow<'_, str>], room: usize) -> Option<V::One> {
        // Whoever comes when it is full takes no lock that holds up others.
        if self.sets.read().len() >= room {
            return None;
        }
        let mut sets = self.sets.write();
        if !sets.contains_key(&key) && sets.len() >= room {
            return None;
        }
        if let Some(one) = sets.get(&key) {
            return Some(one.clone());
        }
        let one = self.vector.one(values).ok()?;
        sets.insert(key, one.clone());
        Some(one)
    }

    fn kept<'a>(&self, kept: Kept, values: &[&'a str]) -> Vec<Cow<'a, str>> {
        let names = self.metric.labels.iter();
        let all = names.zip(values).map(|(name, value)| {
            let stays = match kept {
                Kept::All => !is_open(name) || value.len() <= LONGEST,
                Kept::Closed => !is_open(name) || value.is_empty(),
                Kept::None => false,
            };
            Cow::Borrowed(if stays { *value } else { OTHER })
        });
        all.collect()
    }
}

fn is_open(label: &str) -> bool {
    OPEN.contains(&label)
}

#[cfg(test)]
mod tests;
