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
    /// One that only counts up.
    pub const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Metric {
        let kind = Kind::Counter;
        Metric {
            name,
            kind,
            help,
            labels,
        }
    }

    /// One that goes up and down.
    pub const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Metric {
        let kind = Kind::Gauge;
        Metric {
            kind,
            ..Metric::counter(name, labels, help)
        }
    }

    /// One that counts values by their size.
    pub const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        bounds: &'static [f64],
        help: &'static str,
    ) -> Metric {
        let kind = Kind::Histogram(bounds);
        Metric {
            kind,
            ..Metric::counter(name, labels, help)
        }
    }

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
