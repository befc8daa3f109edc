//! A difference in a sentence.

use super::{Difference, Statistic};
use crate::units::durations;

impl Difference {
    /// Who beats whom, on what and by how much, or what is known where no difference can be shown; and what became of
    /// failed requests.
    pub fn sentence(&self) -> String {
        let (a, b, what) = (&self.a, &self.b, self.what());
        let at = match self.at.as_str() {
            "" => String::new(),
            at => format!("{at}: "),
        };
        let found = [self.difference, self.low, self.high];
        let less = [-self.difference, -self.high, -self.low];
        let is_less = self.difference < 0.0;
        let said = match (self.is_shown(), is_less) {
            (true, true) => format!("{b} beats {a} on {what} by {}", self.range(less)),
            (true, false) => format!("{a} beats {b} on {what} by {}", self.range(found)),
            (false, _) => format!(
                "no difference can be shown between {a} and {b} on {what} ({}{})",
                self.range(found),
                match self.is_by_bounds() {
                    true if self.failed_could_turn_it() => ", which those that failed could turn",
                    true => ", which one of so many comparisons may show by chance",
                    false => "",
                }
            ),
        };
        format!("{at}{said}{}{}", self.of_repeats(), self.of_failed())
    }

    /// That its bounds are of too few runs.
    pub(super) fn of_repeats(&self) -> &'static str {
        match (self.needs_repeats && self.is_shown(), self.repeats) {
            (false, _) => "",
            (true, 0..2) => " (one run: take three repeats)",
            (true, _) => " (two runs: take three repeats)",
        }
    }

    /// Statistic and metric as people say them.
    pub(super) fn what(&self) -> String {
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

    /// How many pairs were left out and how many requests failed, and how that was taken.
    fn of_failed(&self) -> String {
        let mut said = String::new();
        if self.metric.is_none() {
            return said;
        }
        if self.left_out > 0 {
            let all = self.pairs + self.left_out;
            said += &format!("; of the {} of {all} pairs with both values", self.pairs);
        }
        if self.failed_a + self.failed_b > 0 {
            let (a, b) = (&self.a, &self.b);
            said += &format!("; failed: {a} {}, {b} {}", self.failed_a, self.failed_b);
        }
        if self.is_with_failed {
            said += ", counted as endless";
        }
        said
    }

    /// A value and its bounds in one unit: `31.0 ms [21.6, 41.2]`; of the share that failed, `1.20 % of all [0.90, 1.50]`.
    fn range(&self, values: [f64; 3]) -> String {
        let (shown, unit) = match self.metric {
            None => (values.map(|of| format!("{:.2}", of * 100.0)), "% of all"),
            Some(_) => durations(values),
        };
        let [value, low, high] = shown.map(|shown| {
            match shown.contains(|digit| matches!(digit, '1'..='9')) {
                _ if shown.ends_with("inf") => "no end".to_owned(),
                true => shown.replace('-', "−"),
                // A minus before nothing but zeros says nothing.
                false => shown.replace('-', ""),
            }
        });
        format!("{value} {unit} [{low}, {high}]")
    }
}
