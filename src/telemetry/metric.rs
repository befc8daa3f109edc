//! A metric as `/metrics` and `docs/METRICS.md` tell it.

/// A metric of a proxy, as `/metrics` shows it.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name, which ends in its unit.
    pub name: &'static str,
    /// What kind of numbers it has.
    pub kind: Kind,
    /// What it counts and how to read it, in a sentence or two.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}

/// What kind of numbers a metric has.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// It only counts up.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Counts of values up to each of these bounds, in its unit.
    Histogram(&'static [f64]),
}

impl Metric {
    /// Its unit, which its name tells; empty for a number of things.
    pub fn unit(&self) -> &'static str {
        let base = self.name.strip_suffix("_total").unwrap_or(self.name);
        let units = ["seconds", "bytes"];
        let unit = units.into_iter().find(|unit| base.ends_with(unit));
        unit.unwrap_or_default()
    }
}

impl Kind {
    /// Its name in the text of `/metrics`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }
}
