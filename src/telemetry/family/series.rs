//! The numbers of one label set.

use std::fmt::Debug;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use prometheus::proto::{self, Bucket, Counter, Gauge, Histogram};

use crate::clock::NANOS;
use crate::telemetry::metric::{Kind, Metric};

/// Numbers that are shown.
pub trait Series: Debug + Send + Sync {
    /// At zero, for a label set of `metric`.
    fn new(metric: &Metric) -> Self;
    /// Puts them into `shown`.
    fn show(&self, shown: &mut proto::Metric);
}

/// Counts up.
#[derive(Debug)]
pub struct Count(AtomicU64);

/// A number of things at this moment.
#[derive(Debug)]
pub struct Level(AtomicI64);

/// The last reading of something, the bits of a float.
#[derive(Debug)]
pub struct Reading(AtomicU64);

/// Counts of durations by their length.
#[derive(Debug)]
pub struct Buckets {
    /// Seconds.
    bounds: &'static [f64],
    /// Values up to each bound and above the one before; the last are above all.
    counts: Box<[AtomicU64]>,
    /// Seconds, the bits of a float.
    sum: AtomicU64,
}

impl Count {
    /// Counts so many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// How many there have been.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Level {
    /// One more.
    pub fn rise(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    pub fn fall(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// As many as this.
    pub fn set(&self, to: usize) {
        let to = i64::try_from(to).unwrap_or(i64::MAX);
        self.0.store(to, Ordering::Relaxed);
    }

    /// How many there are.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Reading {
    /// Takes a reading in nanoseconds; it shows in seconds.
    pub fn set_nanos(&self, nanos: i64) {
        self.0.store(seconds(nanos).to_bits(), Ordering::Relaxed);
    }
}

impl Buckets {
    /// Counts a duration in nanoseconds; a negative one, which clocks that are known only so well can show, as 0.
    pub fn observe(&self, nanos: i64) {
        let seconds = seconds(nanos.max(0));
        let place = self.bounds.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get(place) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.add_to_sum(seconds);
    }

    /// Adds many at once: how many lie up to each bound and above the one before, and how long they are in all.
    pub fn add(&self, counts: &[u32], sum_nanos: i64) {
        for (count, more) in self.counts.iter().zip(counts) {
            if *more > 0 {
                count.fetch_add(u64::from(*more), Ordering::Relaxed);
            }
        }
        self.add_to_sum(seconds(sum_nanos.max(0)));
    }

    fn add_to_sum(&self, seconds: f64) {
        let add = |bits| Some((f64::from_bits(bits) + seconds).to_bits());
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        // It always has a new value, and so never fails.
        let _ = self.sum.fetch_update(set, fetch, add);
    }
}

impl Series for Count {
    fn new(_: &Metric) -> Count {
        Count(AtomicU64::new(0))
    }

    fn show(&self, shown: &mut proto::Metric) {
        let mut counter = Counter::default();
        counter.set_value(self.get() as f64);
        shown.set_counter(counter);
    }
}

impl Series for Level {
    fn new(_: &Metric) -> Level {
        Level(AtomicI64::new(0))
    }

    fn show(&self, shown: &mut proto::Metric) {
        let mut gauge = Gauge::default();
        gauge.set_value(self.get() as f64);
        shown.set_gauge(gauge);
    }
}

impl Series for Reading {
    fn new(_: &Metric) -> Reading {
        Reading(AtomicU64::new(0))
    }

    fn show(&self, shown: &mut proto::Metric) {
        let mut gauge = Gauge::default();
        gauge.set_value(f64::from_bits(self.0.load(Ordering::Relaxed)));
        shown.set_gauge(gauge);
    }
}

impl Series for Buckets {
    fn new(metric: &Metric) -> Buckets {
        let bounds = match metric.kind {
            Kind::Histogram(bounds) => bounds,
            Kind::Counter | Kind::Gauge => &[],
        };
        Buckets {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    fn show(&self, shown: &mut proto::Metric) {
        // Read before the counts: what comes in between is then missing in the sum, not in the counts.
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed));
        let mut so_far = 0;
        let counts = self.counts.iter().map(|count| {
            so_far += count.load(Ordering::Relaxed);
            so_far
        });
        let counts: Vec<u64> = counts.collect();
        let buckets = self.bounds.iter().zip(&counts).map(|(bound, count)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(*count);
            bucket
        });
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(counts.last().copied().unwrap_or(0));
        histogram.set_sample_sum(sum);
        shown.set_histogram(histogram);
    }
}

fn seconds(nanos: i64) -> f64 {
    nanos as f64 / NANOS as f64
}
