//! A metric as `/metrics` and `docs/METRICS.md` tell it.

/// A metric of a proxy, as `/metrics` shows it.
#[derive(Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Whether it goes up and down; else it only counts up.
    pub is_gauge: bool,
    /// What it counts, in one sentence.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}
