//! Which setting is best, in a sentence or two.

use super::{Comparison, Difference, FAILED, Statistic};

/// What settings are judged by: TTFT and the total latency, of the slowest where that can be said, else in the middle.
const JUDGED: [&str; 2] = ["ttft", "total_latency"];
const STATISTICS: [Statistic; 2] = [Statistic::Quantile(0.99), Statistic::Quantile(0.5)];

impl Comparison {
    /// The best setting by each of two latencies: against whom that is shown, and against whom it is not; and who fails more.
    /// One for all where no difference is shown; none where nothing was compared.
    pub fn answers(&self) -> Vec<String> {
        let all = &self.differences;
        let mut shared: Vec<&str> = all.iter().map(|of| of.at.as_str()).collect();
        shared.sort_unstable();
        shared.dedup();
        let found = JUDGED.iter().flat_map(|metric| {
            let best = |at: &&str| {
                let of = |statistic| best(self.of(metric, statistic, at));
                STATISTICS.into_iter().find_map(of)
            };
            shared.iter().filter_map(best)
        });
        let failed = all.iter().filter(|of| of.shown && of.metric == FAILED);
        let mut found: Vec<String> = found.chain(failed.map(Difference::sentence)).collect();
        if found.is_empty() && !all.is_empty() {
            let count = all.len();
            found.push(format!(
                "No setting is shown to be better than another (comparisons: {count}): run longer, or with more repeats."
            ));
        }
        found
    }

    fn of(&self, metric: &str, statistic: Statistic, at: &str) -> Vec<&Difference> {
        let is_one =
            |of: &&Difference| of.metric == metric && of.statistic == statistic && of.at == at;
        self.differences.iter().filter(is_one).collect()
    }
}

/// What is best by these, if a difference is shown.
fn best(all: Vec<&Difference>) -> Option<String> {
    let shown = || all.iter().filter(|of| of.shown);
    let winner = |of: &Difference| match of.difference < 0.0 {
        true => of.b.clone(),
        false => of.a.clone(),
    };
    let wins = |name: &str| shown().filter(|of| winner(of) == name).count();
    let first = shown().next()?;
    // Nobody is shown to beat it.
    let unbeaten = shown()
        .map(|of| winner(of))
        .filter(|name| !shown().any(|of| of.is_of(name) && winner(of) != *name));
    let name = unbeaten.max_by_key(|name| wins(name))?;
    let against = |is_shown: bool| {
        let others = all.iter().filter(|of| of.is_of(&name));
        let others = others.filter(|of| of.shown == is_shown);
        let names: Vec<&str> = others.map(|of| of.other(&name)).collect();
        names.join(", ")
    };
    let at = match first.at.as_str() {
        "" => String::new(),
        at => format!("{at}: "),
    };
    let not = match against(false).as_str() {
        "" => String::new(),
        others => format!("; not shown against {others}"),
    };
    let (what, repeats) = (first.what(), first.of_repeats());
    Some(format!(
        "{at}best on {what}: {name}, shown against {}{not}{repeats}.",
        against(true)
    ))
}

impl Difference {
    fn is_of(&self, name: &str) -> bool {
        self.a == name || self.b == name
    }

    /// The other one of the two.
    fn other(&self, name: &str) -> &str {
        if self.a == name { &self.b } else { &self.a }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(metric: &str, [a, b]: [&str; 2], seconds: f64, shown: bool) -> Difference {
        let [a, b] = [a, b].map(str::to_owned);
        Difference {
            metric: metric.to_owned(),
            statistic: Statistic::Quantile(0.99),
            difference: seconds,
            low: seconds - 0.1,
            high: seconds + 0.1,
            holds: true,
            a,
            b,
            shown,
            ..Difference::default()
        }
    }

    #[test]
    fn the_best_is_named_with_whom_it_is_shown_against() {
        let of = |all: &[Difference]| {
            let differences = all.to_vec();
            Comparison {
                differences,
                ..Comparison::default()
            }
            .answers()
        };
        let all = [
            difference("ttft", ["x", "y"], -0.5, true),
            difference("ttft", ["x", "z"], 0.05, false),
            difference("ttft", ["y", "z"], 0.05, false),
        ];
        assert_eq!(
            of(&all),
            ["best on p99 TTFT: y, shown against x; not shown against z."]
        );
        // What is beaten is not the best, however many it beats.
        let all = [
            difference("total_latency", ["x", "y"], 0.5, true),
            difference("total_latency", ["x", "z"], 0.5, true),
            difference("total_latency", ["x", "w"], -0.5, true),
            difference("total_latency", ["z", "w"], 0.05, false),
        ];
        assert_eq!(
            of(&all),
            ["best on p99 total latency: w, shown against x; not shown against z."]
        );
        let none = of(&all[3..]);
        assert_eq!(
            none,
            [
                "No setting is shown to be better than another (comparisons: 1): run longer, or with more repeats."
            ]
        );
        assert_eq!(of(&[]), Vec::<String>::new());
    }
}
