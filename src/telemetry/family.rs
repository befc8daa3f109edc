//! Metrics with labels, of which each has a bounded number of label sets, whatever comes in.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use ahash::RandomState;
use parking_lot::RwLock;
use prometheus::core::{Collector, Desc, Describer, Metric as Shown};
use prometheus::proto::{MetricFamily, MetricType};
use prometheus::{
    Counter, Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, Opts, Registry, Result,
};

use super::metric::{Kind, Metric};

mod gaps;

pub use gaps::Gaps;

/// The label sets that a metric has by default.
pub const LABEL_SETS: usize = 64;
/// What a label says in place of values for which there is no room.
pub const OTHER: &str = "other";

/// Labels whose values come from outside, or from a config of any size.
const OPEN: [&str; 8] = [
    "clock",
    "gen_ai_request_model",
    "server_address",
    "server_port",
    "upstream",
    "value",
    "version",
    "worker",
];
/// A longer value of such a label shows as [`OTHER`], bytes.
const LONGEST: usize = 256;

/// The numbers of one label set, as the crate has them; clones count together.
pub trait One: Shown + 'static {
    /// What a scrape calls them.
    const TYPE: MetricType;
    /// Makes those of the label set in the options, at zero; an error when Prometheus refuses a name, which a test rules out.
    const MAKE: fn(HistogramOpts) -> Result<Self>;
}

macro_rules! ones {
    ($($one:ty: $type:ident = $make:expr;)*) => {$(
        impl One for $one {
            const TYPE: MetricType = MetricType::$type;
            const MAKE: fn(HistogramOpts) -> Result<Self> = $make;
        }
    )*};
}

ones! {
    IntCounter: COUNTER = |opts| IntCounter::with_opts(opts.common_opts);
    Counter: COUNTER = |opts| Counter::with_opts(opts.common_opts);
    IntGauge: GAUGE = |opts| IntGauge::with_opts(opts.common_opts);
    Gauge: GAUGE = |opts| Gauge::with_opts(opts.common_opts);
    Histogram: HISTOGRAM = Histogram::with_opts;
    Gaps: HISTOGRAM = |opts| Gaps::with_opts(&opts);
}

/// A metric and its numbers, one a label set. Clones are the same metric.
#[derive(Clone, Debug)]
pub struct Family<O>(Arc<Sets<O>>);

#[derive(Debug)]
struct Sets<O> {
    metric: Metric,
    desc: Desc,
    /// Label sets beyond which new values of open labels become [`OTHER`].
    most: usize,
    hasher: RandomState,
    /// By the hash of the values, with a key that nobody outside knows: of a few thousand sets no two meet.
    all: RwLock<BTreeMap<u64, (Vec<String>, O)>>,
    /// Shown nowhere: in place of what cannot be made.
    lost: O,
}

impl<O: One> Family<O> {
    /// An empty one, shown in `registry`. From `most` label sets on it has more only by what closed labels tell apart, of which all
    /// values are ours. Without labels it has its one set at once.
    ///
    /// # Errors
    /// When Prometheus refuses a name, which a test rules out.
    pub fn new(registry: &Registry, metric: Metric, most: usize) -> Result<Family<O>> {
        let labels = metric.labels.iter().map(ToString::to_string).collect();
        let opts = Opts::new(metric.name, metric.help).variable_labels(labels);
        let family = Family(Arc::new(Sets {
            desc: opts.describe()?,
            most,
            hasher: RandomState::new(),
            all: RwLock::default(),
            lost: metric.one(&[])?,
            metric,
        }));
        if metric.labels.is_empty() {
            family.with(&[]);
        }
        registry.register(Box::new(family.clone()))?;
        Ok(family)
    }

    /// The numbers of this label set, in the order of the metric's labels. When the metric is full, new values of open labels (names
    /// of models, workers, servers, clocks) become [`OTHER`].
    pub fn with(&self, values: &[&str]) -> O {
        // Nearly all have been there before.
        self.find(self.key(values))
            .unwrap_or_else(|| self.add(values))
    }

    /// What a scrape calls it.
    pub fn name(&self) -> &'static str {
        self.0.metric.name
    }

    /// Every label set with its numbers.
    pub fn sets(&self) -> Vec<(Vec<String>, O)> {
        self.0.all.read().values().cloned().collect()
    }

    /// Forgets all label sets.
    pub fn clear(&self) {
        self.0.all.write().clear();
    }

    /// What stands for these values; the hasher counts the length of each.
    fn key(&self, values: &[&str]) -> u64 {
        let mut hasher = self.0.hasher.build_hasher();
        values
            .iter()
            .for_each(|value| hasher.write(value.as_bytes()));
        hasher.finish()
    }

    fn find(&self, key: u64) -> Option<O> {
        self.0.all.read().get(&key).map(|(_, one)| one.clone())
    }

    fn add(&self, values: &[&str]) -> O {
        let is_full = self.0.all.read().len() >= self.0.most;
        let is_kept = |name: &str, value: &str| {
            let has_room = !is_full && value.len() <= LONGEST;
            has_room || value.is_empty() || !OPEN.contains(&name)
        };
        let pairs = self.0.metric.labels.iter().zip(values);
        let kept = pairs.map(|(name, value)| if is_kept(name, value) { *value } else { OTHER });
        let kept: Vec<&str> = kept.collect();
        let key = self.key(&kept);
        // Whoever comes when it is full takes no lock that holds up others.
        if let Some(one) = self.find(key) {
            return one;
        }
        let Ok(one) = self.0.metric.one(&kept) else {
            return self.0.lost.clone();
        };
        let values = kept.iter().map(ToString::to_string).collect();
        let mut all = self.0.all.write();
        all.entry(key).or_insert((values, one)).1.clone()
    }
}

impl<O: One> Collector for Family<O> {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Read without the lock: nobody who counts something new waits for that.
        let sets = self.sets();
        let mut family = MetricFamily::default();
        family.set_name(self.0.desc.fq_name.clone());
        family.set_help(self.0.desc.help.clone());
        family.set_field_type(O::TYPE);
        family.set_metric(sets.iter().map(|(_, one)| one.metric()).collect());
        vec![family]
    }
}

impl Metric {
    /// The numbers of a label set; of labels without a value they say nothing.
    fn one<O: One>(&self, values: &[&str]) -> Result<O> {
        let bounds = match self.kind {
            Kind::Histogram(bounds) => bounds.to_vec(),
            Kind::Counter | Kind::Gauge => Vec::new(),
        };
        let pairs = self.labels.iter().zip(values);
        let pairs = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let opts = HistogramOpts::new(self.name, self.help).const_labels(pairs.collect());
        O::MAKE(opts.buckets(bounds))
    }
}

#[cfg(test)]
mod tests;
