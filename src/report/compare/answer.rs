//! The best setting, in a sentence or two.

use crate::request::ColumnId;

use super::{Comparison, Difference, Statistic};

/// The latencies that settings are ranked by, each by the statistic that shows more differences.
const METRICS: [ColumnId; 2] = [ColumnId::ttft, ColumnId::total_latency];
const STATISTICS: [Statistic; 2] = [Statistic::Quantile(0.5), Statistic::Quantile(0.99)];
/// The most answers on the terminal.
pub const MAX_ANSWERS: usize = 4;
/// So many repeats show how waits of one run depend on each other.
const ENOUGH_REPEATS: usize = 3;
const FEW_REPEATS: &str =
    "Where queues are long, intervals of one or two runs are too narrow: take three repeats.";

impl Comparison {
    /// Names the best setting by each latency, with the settings it beats and those it is not shown to beat; and settings that fail more
    /// often. If no difference is shown, says so; empty if nothing was compared.
    pub fn answers(&self) -> Vec<String> {
        let all = &self.differences;
        let mut found = Vec::new();
        for metric in METRICS {
            for (group, names) in self.groups.iter().enumerate() {
                let of = |statistic| {
                    let is_one = |of: &&Difference| {
                        of.between.0 == group
                            && of.metric == Some(metric)
                            && of.statistic == statistic
                    };
                    best(names, &all.iter().filter(is_one).collect::<Vec<_>>())
                };
                // Of equals the last: the p99.
                let by_statistic = STATISTICS.into_iter().filter_map(of);
                let most = by_statistic.max_by_key(|(wins, _)| *wins);
                found.extend(most.map(|(_, sentence)| sentence));
            }
        }
        let shown = || all.iter().filter(|of| of.shown);
        let mut failed = shown().filter(|of| of.metric.is_none()).peekable();
        if found.is_empty() && failed.peek().is_none() && !all.is_empty() {
            let count = all.len();
            return vec![format!(
                "No setting is shown to be the best by TTFT or total latency (comparisons: {count}): run longer, or with more repeats."
            )];
        }
        let is_few = shown().any(|of| of.repeats < ENOUGH_REPEATS);
        if is_few {
            // The terminal leaves out the last of many.
            found.insert(found.len().min(MAX_ANSWERS - 1), FEW_REPEATS.to_owned());
        }
        found.extend(failed.map(Difference::sentence));
        found
    }
}

/// Returns the best setting by these differences as a sentence, with the number of settings that it beats: no setting beats it, and it
/// beats the most others, or by the most. `None` if no difference is shown.
fn best(names: &[String], all: &[&Difference]) -> Option<(usize, String)> {
    let shown = || all.iter().filter(|of| of.shown);
    let is_beaten = |at: usize| shown().any(|of| of.loser() == at);
    let wins = |at: usize| shown().filter(move |of| of.winner() == at);
    let score = |at: usize| {
        let by: f64 = wins(at).map(|of| of.difference.abs()).sum();
        (wins(at).count(), by)
    };
    let unbeaten = (0..names.len()).filter(|at| wins(*at).count() > 0 && !is_beaten(*at));
    let best = unbeaten.max_by(|x, y| {
        let (x, y) = (score(*x), score(*y));
        x.0.cmp(&y.0).then(x.1.total_cmp(&y.1))
    })?;
    let name = |at: usize| names.get(at).map_or("", String::as_str);
    let against = |at: usize| all.iter().find(|of| of.is_of(best) && of.is_of(at));
    let (mut beaten, mut not_shown, mut not_compared) = (Vec::new(), Vec::new(), 0);
    for other in (0..names.len()).filter(|at| *at != best) {
        match against(other) {
            Some(of) if of.shown => beaten.push(name(other)),
            Some(_) => not_shown.push(name(other)),
            None => not_compared += 1,
        }
    }
    let first = wins(best).next()?;
    let mut sentence = format!(
        "best on {}: {}, shown against {}",
        first.label(),
        name(best),
        beaten.join(" and ")
    );
    if !not_shown.is_empty() {
        sentence += &format!("; not shown against {}", not_shown.join(" and "));
    }
    if not_compared > 0 {
        sentence += &format!("; not compared with the other {not_compared}");
    }
    Some((score(best).0, sentence + "."))
}

impl Difference {
    fn winner(&self) -> usize {
        self.between.1[usize::from(self.difference < 0.0)]
    }

    fn loser(&self) -> usize {
        self.between.1[usize::from(self.difference >= 0.0)]
    }

    fn is_of(&self, at: usize) -> bool {
        self.between.1.contains(&at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests;
    use super::*;

    fn difference(metric: ColumnId, between: [usize; 2], seconds: f64, shown: bool) -> Difference {
        Difference {
            metric: Some(metric),
            between: (0, between),
            shown,
            repeats: 3,
            ..tests::difference(seconds, seconds - 0.1, seconds + 0.1)
        }
    }

    #[test]
    fn the_best_is_named_with_the_settings_it_beats() {
        let of = |names: &str, all: &[Difference]| {
            let comparison = Comparison {
                differences: all.to_vec(),
                groups: vec![names.chars().map(String::from).collect()],
                ..Comparison::default()
            };
            comparison.answers()
        };
        let all = [
            difference(ColumnId::ttft, [0, 1], -0.5, true),
            difference(ColumnId::ttft, [0, 2], 0.05, false),
            difference(ColumnId::ttft, [1, 2], 0.05, false),
        ];
        let expected = "best on p99 TTFT: y, shown against x; not shown against z.";
        assert_eq!(of("xyz", &all), [expected]);
        let of_one_run = all.clone().map(|of| Difference { repeats: 1, ..of });
        assert_eq!(of("xyz", &of_one_run), [expected, FEW_REPEATS]);
        // Before who fails more.
        let fails_more = Difference {
            metric: None,
            ..of_one_run[0].clone()
        };
        assert_eq!(of("xyz", &[fails_more])[0], FEW_REPEATS);
        // Two groups with two bests each.
        let latencies = [ColumnId::ttft, ColumnId::total_latency];
        let of_group = |group| {
            latencies.map(|metric| Difference {
                between: (group, [0, 1]),
                repeats: 1,
                ..difference(metric, [0, 1], -0.5, true)
            })
        };
        let comparison = Comparison {
            differences: [0, 1].map(of_group).concat(),
            groups: ["xy", "zw"]
                .map(|names| names.chars().map(String::from).collect())
                .into(),
            ..Comparison::default()
        };
        let answers = comparison.answers();
        assert_eq!(answers.len(), 5, "{answers:?}");
        assert_eq!(answers[MAX_ANSWERS - 1], FEW_REPEATS);
        // A beaten setting is not the best, however many it beats.
        let all = [
            difference(ColumnId::total_latency, [0, 1], 0.5, true),
            difference(ColumnId::total_latency, [0, 2], 0.5, true),
            difference(ColumnId::total_latency, [0, 3], -0.5, true),
            difference(ColumnId::total_latency, [2, 3], 0.05, false),
        ];
        let expected = "best on p99 total latency: w, shown against x; not shown against z; not compared with the other 1.";
        assert_eq!(of("xyzw", &all), [expected]);
        // Of several that beat the first and were not compared with each other, the one that does by the most.
        let all = [(1, -0.4), (2, -0.1), (3, -0.3)];
        let all = all.map(|(at, by)| difference(ColumnId::ttft, [0, at], by, true));
        let expected = "best on p99 TTFT: b, shown against a; not compared with the other 2.";
        assert_eq!(of("abcd", &all), [expected]);
        let none = of("xy", &[difference(ColumnId::ttft, [0, 1], 0.05, false)]);
        let expected = "No setting is shown to be the best by TTFT or total latency (comparisons: 1): run longer, or with more repeats.";
        assert_eq!(none, [expected]);
        let other = of("xy", &[difference(ColumnId::tpot, [0, 1], 0.05, true)]);
        assert_eq!(other, [expected]);
        assert_eq!(of("xy", &[]), Vec::<String>::new());
    }
}
