//! The sentence of a difference.

use super::{Difference, Statistic};
use crate::units::durations;

impl Difference {
    /// Says which setting beats the other, on what and by how much, or that no difference is shown; and how failed requests count.
    pub fn sentence(&self) -> String {
        let (a, b, what) = (&self.a, &self.b, self.label());
        let at = match self.at.as_str() {
            "" => String::new(),
            at => format!("{at}: "),
        };
        let found = [self.difference, self.low, self.high];
        let less = [-self.difference, -self.high, -self.low];
        let is_less = self.difference < 0.0;
        let result = match (self.is_shown(), is_less) {
            (true, true) => format!("{b} beats {a} on {what} by {}", self.range(less)),
            (true, false) => format!("{a} beats {b} on {what} by {}", self.range(found)),
            (false, _) => format!(
                "no difference can be shown between {a} and {b} on {what} ({}{})",
                self.range(found),
                match self.excludes_zero() {
                    true if self.failed_could_reverse_it() =>
                        ", which those that failed could turn",
                    true => ", which one of so many comparisons may show by chance",
                    false => "",
                }
            ),
        };
        format!("{at}{result}{}", self.failed_text())
    }

    /// The label of statistic and metric: `p99 TTFT`.
    pub(super) fn label(&self) -> String {
        let Some(metric) = self.metric.map(|metric| metric.column().label) else {
            return "failed requests".to_owned();
        };
        match self.statistic {
            Statistic::Mean => format!("mean {metric}"),
            Statistic::Quantile(q) => {
                let percent = format!("{:.3}", q * 100.0);
                let percent = percent.trim_end_matches('0').trim_end_matches('.');
                format!("p{percent} {metric}")
            }
        }
    }

    /// The numbers of pairs left out and of failed requests, and how these count.
    fn failed_text(&self) -> String {
        let mut text = String::new();
        if self.metric.is_none() {
            return text;
        }
        if self.left_out > 0 {
            let all = self.pairs + self.left_out;
            text += &format!("; of the {} of {all} pairs with both values", self.pairs);
        }
        if self.failed_a + self.failed_b > 0 {
            let (a, b) = (&self.a, &self.b);
            text += &format!("; failed: {a} {}, {b} {}", self.failed_a, self.failed_b);
        }
        if self.is_with_failed {
            text += ", counted as infinitely slow";
        }
        text
    }

    /// Formats a value and its bounds in one unit: `31.0 ms [21.6, 41.2]`; a share of failed requests as `1.20 % of all [0.90, 1.50]`.
    fn range(&self, values: [f64; 3]) -> String {
        let (shown, unit) = match self.metric {
            None => (values.map(|of| format!("{:.2}", of * 100.0)), "% of all"),
            Some(_) => durations(values),
        };
        let [value, low, high] = shown.map(|shown| {
            match shown.contains(|digit| matches!(digit, '1'..='9')) {
                true => shown.replace('-', "−"),
                // No minus before 0.
                false => shown.replace('-', ""),
            }
        });
        format!("{value} {unit} [{low}, {high}]")
    }
}
