//! A metric's description, for `/metrics` and `docs/METRICS.md`.

/// The description of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name, which ends in its unit.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// What it counts and how to read it, in a few sentences.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// It only increases.
    Counter,
    /// It increases and decreases.
    Gauge,
    /// It counts values up to each of these bounds, in its unit.
    Histogram(&'static [f64]),
}

impl Kind {
    /// Returns its name in `/metrics`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }
}
