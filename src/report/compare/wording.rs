//! A difference in a sentence.

use crate::report::load::label;

use super::{Difference, FAILED, Statistic};

/// A unit in which figures have few digits.
#[derive(Clone, Copy)]
struct Scale {
    unit: &'static str,
    factor: f64,
    digits: usize,
}

impl Difference {
    /// Who beats whom, on what and by how much, or that no difference can be shown; and what became of failed requests.
    pub fn sentence(&self) -> String {
        let (a, b) = (&self.a, &self.b);
        let what = self.what();
        let at = if self.at.is_empty() {
            String::new()
        } else {
            format!("{}: ", self.at)
        };
        let (low, high, by) = (self.low, self.high, self.difference);
        let mut said = if !self.is_shown() {
            let range = range(by, low, high, self.is_share());
            format!(
                "{at}no difference can be shown between {a} and {b} on {what} ({range}{})",
                self.why_not()
            )
        } else if by < 0.0 {
            let range = range(-by, -high, -low, self.is_share());
            format!("{at}{b} beats {a} on {what} by {range}")
        } else {
            let range = range(by, low, high, self.is_share());
            format!("{at}{a} beats {b} on {what} by {range}")
        };
        if self.needs_repeats && self.is_shown() {
            let runs = if self.repeats < 2 {
                "one run"
            } else {
                "two runs"
            };
            said += &format!(" ({runs}: take three repeats)");
        }
        said += &self.of_failed();
        said
    }

    /// Statistic and metric as people say them.
    fn what(&self) -> String {
        if self.is_share() {
            return "failed requests".to_owned();
        }
        let metric = label(&self.metric);
        match self.statistic {
            Statistic::Mean => format!("mean {metric}"),
            Statistic::Quantile(q) => {
                let percent = format!("{:.3}", q * 100.0);
                format!(
                    "p{} {metric}",
                    percent.trim_end_matches('0').trim_end_matches('.')
                )
            }
        }
    }

    fn is_share(&self) -> bool {
        self.metric == FAILED
    }

    /// Why it is not shown, where the bounds alone would show it.
    fn why_not(&self) -> String {
        let by_bounds = self.is_by_bounds();
        if by_bounds && !self.holds {
            return format!(
                ", which one of {} comparisons may show by chance",
                self.comparisons
            );
        }
        if by_bounds && self.failed_could_turn_it() {
            return ", which those that failed could turn".to_owned();
        }
        String::new()
    }

    /// How many pairs were left out and how many requests failed, and how that was taken.
    fn of_failed(&self) -> String {
        if self.is_share() {
            return String::new();
        }
        let mut said = String::new();
        if self.left_out > 0 {
            let all = self.pairs + self.left_out;
            said += &format!("; of the {} of {all} pairs with both values", self.pairs);
        }
        if self.failed_a + self.failed_b > 0 {
            said += &format!(
                "; failed: {} {}, {} {}",
                self.a, self.failed_a, self.b, self.failed_b
            );
        }
        if self.is_with_failed {
            said += ", counted as endless";
        }
        said
    }
}

/// `31 ms [22, 41]`.
fn range(value: f64, low: f64, high: f64, is_share: bool) -> String {
    let largest = [value, low, high]
        .into_iter()
        .filter(|v| v.is_finite())
        .fold(0.0, |most: f64, v| most.max(v.abs()));
    let scale = if is_share {
        Scale::of_share()
    } else {
        Scale::of(largest)
    };
    let (value, low, high) = (scale.number(value), scale.number(low), scale.number(high));
    format!("{value} {} [{low}, {high}]", scale.unit)
}

impl Scale {
    /// Of shares of all requests.
    fn of_share() -> Scale {
        Scale {
            unit: "% of all",
            factor: 100.0,
            digits: 2,
        }
    }

    /// Of seconds up to `largest`.
    fn of(largest: f64) -> Scale {
        let (unit, factor) = match largest {
            size if size >= 9.95 => ("s", 1.0),
            size if size >= 0.000_995 => ("ms", 1e3),
            _ => ("µs", 1e6),
        };
        let digits =
            usize::from(largest * factor < 99.5 && (unit == "s" || largest * factor < 9.95));
        Scale {
            unit,
            factor,
            digits,
        }
    }

    fn number(self, value: f64) -> String {
        if value.is_infinite() {
            return "no end".to_owned();
        }
        let shown = format!("{:.*}", self.digits, value * self.factor);
        // A minus before nothing but zeros says nothing.
        let is_zero = shown.chars().all(|c| matches!(c, '-' | '0' | '.'));
        let shown = if is_zero {
            shown.trim_start_matches('-')
        } else {
            &shown
        };
        shown.replace('-', "−")
    }
}
