//! A metric's description, for `/metrics` and `docs/METRICS.md`.

use prometheus::proto::MetricType;

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
