//! Metrics with labels, of which each has a bounded number of label sets, whatever comes in.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::Arc;

use ahash::RandomState;
use parking_lot::RwLock;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{self, LabelPair, MetricFamily, MetricType};
use prometheus::{Registry, Result};

use super::metric::{Kind, Metric};

mod series;

pub use series::{Buckets, Count, Level, Reading, Series};

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
/// A longer value of such a label shows as [`OTHER`], bytes.
const LONGEST: usize = 256;

/// A metric and its numbers, one a label set. Cheap to clone; the clones count together.
#[derive(Debug)]
pub struct Family<S>(Arc<Inner<S>>);

#[derive(Debug)]
struct Inner<S> {
    metric: &'static Metric,
    desc: Desc,
    most: usize,
    hasher: RandomState,
    /// By the hash of the values, with a key that nobody outside knows: of a few thousand sets no two meet.
    sets: RwLock<BTreeMap<u64, Arc<Set<S>>>>,
}

#[derive(Debug)]
struct Set<S> {
    values: Vec<String>,
    series: Arc<S>,
}

/// How much of a label set is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    All,
    /// The labels of a few known values.
    Closed,
    None,
}

impl<S> Clone for Family<S> {
    fn clone(&self) -> Family<S> {
        Family(self.0.clone())
    }
}

impl<S: Series + 'static> Family<S> {
    /// An empty one of at most `most` label sets (at least 2), shown in `registry`. Without labels it has its one set at
    /// once.
    ///
    /// # Errors
    /// When Prometheus refuses a name, which a test rules out.
    pub fn new(registry: &Registry, metric: &'static Metric, most: usize) -> Result<Family<S>> {
        let labels = metric.labels.iter().map(ToString::to_string).collect();
        let (name, help) = (metric.name.to_owned(), metric.help.to_owned());
        let family = Family(Arc::new(Inner {
            metric,
            desc: Desc::new(name, help, labels, HashMap::new())?,
            most: most.max(2),
            hasher: RandomState::new(),
            sets: RwLock::default(),
        }));
        if metric.labels.is_empty() {
            family.with(&[]);
        }
        registry.register(Box::new(family.clone()))?;
        Ok(family)
    }

    /// The numbers of this label set, in the order of the metric's labels. When the metric is nearly full, new values of
    /// open labels (names of models, workers, servers, clocks) become [`OTHER`]; its last set is [`OTHER`] in every label.
    pub fn with(&self, values: &[&str]) -> Arc<S> {
        let inner = &*self.0;
        // Nearly all have been there before.
        if let Some(series) = inner.find(inner.hasher.hash_one(values)) {
            return series;
        }
        for kept in [Kept::All, Kept::Closed] {
            let values = inner.kept(kept, values);
            let key = inner.hasher.hash_one(&values);
            if let Some(series) = inner.find(key) {
                return series;
            }
            if let Some(series) = inner.add(key, &values, inner.room(kept)) {
                return series;
            }
        }
        let values = inner.kept(Kept::None, values);
        let key = inner.hasher.hash_one(&values);
        let found = inner.find(key);
        found
            .or_else(|| inner.add(key, &values, usize::MAX))
            .unwrap_or_else(|| Arc::new(S::new(inner.metric)))
    }

    /// All label sets with their numbers, in the order of their values.
    pub fn sets(&self) -> Vec<(Vec<String>, Arc<S>)> {
        let sets = self.0.sets.read();
        let set = |set: &Arc<Set<S>>| (set.values.clone(), set.series.clone());
        let mut sets: Vec<_> = sets.values().map(set).collect();
        sets.sort_by(|(a, _), (b, _)| a.cmp(b));
        sets
    }

    /// All numbers there are.
    pub fn all(&self) -> Vec<Arc<S>> {
        let sets = self.0.sets.read();
        sets.values().map(|set| set.series.clone()).collect()
    }
}

impl<S: Series> Inner<S> {
    fn find(&self, key: u64) -> Option<Arc<S>> {
        Some(self.sets.read().get(&key)?.series.clone())
    }

    /// How many sets there may be when one more is added of which so much is kept.
    fn room(&self, kept: Kept) -> usize {
        let has_open = self.metric.labels.iter().any(|name| is_open(name));
        match kept {
            Kept::All if has_open => self.most * 3 / 4,
            _ => self.most - 1,
        }
    }

    fn add(&self, key: u64, values: &[Cow<'_, str>], room: usize) -> Option<Arc<S>> {
        // Whoever comes when it is full takes no lock that holds up others.
        if self.sets.read().len() >= room {
            return None;
        }
        let mut sets = self.sets.write();
        if !sets.contains_key(&key) && sets.len() >= room {
            return None;
        }
        let set = sets.entry(key).or_insert_with(|| {
            Arc::new(Set {
                values: values.iter().map(ToString::to_string).collect(),
                series: Arc::new(S::new(self.metric)),
            })
        });
        Some(set.series.clone())
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

    fn shown(&self, set: &Set<S>) -> proto::Metric {
        let labels = self.metric.labels.iter().zip(&set.values);
        let labels = labels.map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value(value.clone());
            pair
        });
        let mut shown = proto::Metric::from_label(labels.collect());
        set.series.show(&mut shown);
        shown
    }
}

fn is_open(label: &str) -> bool {
    OPEN.contains(&label)
}

impl<S: Series> Collector for Family<S> {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let inner = &*self.0;
        // A request that adds a set does not wait until all are written.
        let sets: Vec<Arc<Set<S>>> = inner.sets.read().values().cloned().collect();
        let mut family = MetricFamily::default();
        family.set_name(inner.metric.name.to_owned());
        family.set_help(inner.metric.help.to_owned());
        family.set_field_type(match inner.metric.kind {
            Kind::Counter => MetricType::COUNTER,
            Kind::Gauge => MetricType::GAUGE,
            Kind::Histogram(_) => MetricType::HISTOGRAM,
        });
        family.set_metric(sets.iter().map(|set| inner.shown(set)).collect());
        vec![family]
    }
}

#[cfg(test)]
mod tests;
