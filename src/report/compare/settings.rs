//! Which settings of an experiment are compared: each with the first that was sent the same requests; if they are few, each with each. And
//! which is best, in a sentence or two.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Difference, Statistic, Strata, apply_holm, compare};
use crate::report::files::{Grade, RunState};
use crate::report::load::is_given_up;
use crate::report::reader::{Loaded, Run};
use crate::request::ColumnId;
use crate::table::Table;

/// All comparisons of the loaded runs.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// The differences, pair by pair.
    pub differences: Vec<Difference>,
    /// The names of settings, grouped by those that were sent the same requests.
    pub groups: Vec<Vec<String>>,
    /// What was not compared, and why.
    pub notes: Vec<String>,
}

/// The columns compared, and what a failed request counts as: the time of a stage that it never reached is unknown. By the first two
/// settings are ranked.
const METRICS: [(ColumnId, f64); 4] = [
    (ColumnId::ttft, f64::INFINITY),
    (ColumnId::total_latency, f64::INFINITY),
    (ColumnId::pure_queue_time, f64::NAN),
    (ColumnId::tpot, f64::NAN),
];
/// Up to so many settings are compared each with each, in the first two of [`METRICS`].
const FEW: usize = 6;
/// The statistics of a metric, their names, and the fewest requests for them.
const STATISTICS: [(Statistic, &str, u32); 2] = [
    (Statistic::Quantile(0.5), "p50", 40),
    (Statistic::Quantile(0.99), "p99", 500),
];
/// The most answers on the terminal.
pub const MAX_ANSWERS: usize = 4;
/// So many repeats show how waits of one run depend on each other.
const ENOUGH_REPEATS: usize = 3;
const FEW_REPEATS: &str =
    "Where queues are long, intervals of one or two runs are too narrow: take three repeats.";
/// Runs that differ in this key alone are repeats with another schedule.
const SEED: &str = "seed";

/// A setting and its runs, by repeat and seed.
struct Setting<'a> {
    settings: Map<String, Value>,
    /// The label of its runs without the seed. Where several folders were given, which may have the same settings, the names of its runs,
    /// after the first only their last words: `policy=a #1 #2`.
    name: String,
    runs: BTreeMap<(u32, String), RunRows<'a>>,
}

/// A run and its rows by their places in the schedule, without requests that were given up when it was stopped.
type RunRows<'a> = (&'a Run, BTreeMap<usize, usize>);

/// Two runs that were sent the same requests, and their rows at each place that either has.
type RunPair<'a> = ([&'a Run; 2], Vec<[Option<usize>; 2]>);

/// Compares each setting with the first one that was sent the same requests, in [`METRICS`] and in failed requests, repeats together; up
/// to [`FEW`] settings each with each. Leaves out runs that are INVALID, unfinished or stopped.
pub fn comparison(loaded: &Loaded) -> Comparison {
    let mut comparison = Comparison::default();
    let experiment = loaded.experiment.as_ref();
    if experiment.is_some_and(|of| of.max_rate.is_some()) {
        // Each rate of a search has requests of its own.
        return comparison;
    }
    let not_compared = |name: &str, why: &str| format!("{name} is not compared: {why}");
    let mut settings: Vec<Setting<'_>> = Vec::new();
    for run in &loaded.runs {
        match exclusion_reason(run) {
            Some(reason) => comparison.notes.push(not_compared(&run.name, reason)),
            None => add_run(&mut settings, run, experiment.is_none()),
        }
    }
    // The settings of a group were sent the same requests as its first.
    let mut groups: Vec<Vec<Setting<'_>>> = Vec::new();
    for setting in settings {
        let is_alike = |group: &&mut Vec<Setting<'_>>| {
            let first = group.first();
            first.is_some_and(|first| first.pairs(&setting).next().is_some())
        };
        match groups.iter_mut().find(is_alike) {
            Some(group) => group.push(setting),
            None => groups.push(vec![setting]),
        }
    }
    for group in &groups {
        let names = group.iter().map(|of| of.name.clone()).collect();
        match group.as_slice() {
            [alone] if loaded.runs.len() > 1 => {
                let note = not_compared(&alone.name, "no other setting was sent the same");
                comparison.notes.push(note);
            }
            [_] => {}
            all => compare_group(all, names, &mut comparison),
        }
    }
    apply_holm(&mut comparison.differences);
    comparison
}

/// Compares settings that were sent the same requests.
fn compare_group(group: &[Setting<'_>], names: Vec<String>, comparison: &mut Comparison) {
    for (n, a) in group.iter().enumerate() {
        let metrics = match n {
            0 => &METRICS[..],
            _ if group.len() <= FEW => &METRICS[..2],
            _ => break,
        };
        for b in &group[n + 1..] {
            let pairs: Vec<RunPair<'_>> = a.pairs(b).collect();
            let found = compare_settings(&pairs, metrics, &mut comparison.notes);
            let of_pair = found.into_iter().map(|difference| Difference {
                a: a.name.clone(),
                b: b.name.clone(),
                is_against_first: n == 0,
                ..difference
            });
            comparison.differences.extend(of_pair);
        }
    }
    comparison.groups.push(names);
}

/// Why a run is not compared; `None` if it is.
fn exclusion_reason(run: &Run) -> Option<&'static str> {
    let file = run.file.as_ref();
    let is_invalid = run.verdict().is_some_and(|of| of.grade == Grade::Invalid);
    match file.map(|file| file.state) {
        _ if is_invalid => Some("it is INVALID"),
        Some(RunState::Failed) => Some("it failed"),
        Some(RunState::Stopped) => Some("it was stopped"),
        _ if run.is_partial => Some("it did not come to its end"),
        _ if file.is_some_and(|file| file.kept_cache) => {
            Some("a server kept its cache from before the run")
        }
        _ => None,
    }
}

fn add_run<'a>(settings: &mut Vec<Setting<'a>>, run: &'a Run, is_named_by_run: bool) {
    let file = run.file.as_ref();
    let mut of_run = file.map(|file| file.settings.clone()).unwrap_or_default();
    let seed = of_run.remove(SEED).map(|seed| seed.to_string());
    let key = (file.map_or(0, |file| file.repeat), seed.unwrap_or_default());
    let ended = run.counted().filter(|row| !is_given_up(&run.table, *row));
    let rows = ended.filter_map(|row| Some((run.table.schedule_index(row)?, row)));
    let rows = rows.collect();
    let is_same = |known: &&mut Setting<'_>| {
        let mut runs = known.runs.values();
        let mut is_of_one = || runs.all(|(of, _)| of.experiment() == run.experiment());
        file.is_some() && known.settings == of_run && !known.runs.contains_key(&key) && is_of_one()
    };
    let label = file.map_or("", |file| &file.label).split(',');
    let label = label.filter(|key| key.trim().split('=').next() != Some(SEED));
    let label = label.collect::<Vec<_>>().join(",");
    let is_named_by_run = is_named_by_run || label.is_empty();
    if let Some(known) = settings.iter_mut().find(is_same) {
        known.runs.insert(key, (run, rows));
        let word = run.name.split(' ').next_back().filter(|_| is_named_by_run);
        known.name.extend(word.map(|word| format!(" {word}")));
        return;
    }
    settings.push(Setting {
        name: match is_named_by_run {
            true => run.name.clone(),
            false => label.trim().to_owned(),
        },
        settings: of_run,
        runs: BTreeMap::from([(key, (run, rows))]),
    });
}

impl Setting<'_> {
    /// Pairs the runs of both that were sent the same requests.
    fn pairs<'a>(&'a self, other: &'a Setting<'_>) -> impl Iterator<Item = RunPair<'a>> {
        self.runs.iter().filter_map(|(key, own)| {
            let both = [own, other.runs.get(key)?];
            let [hash, other] = both.map(|(run, _)| run.workload_sha256());
            (hash.is_some() && hash == other).then(|| {
                let places: BTreeSet<&usize> =
                    both.iter().flat_map(|(_, rows)| rows.keys()).collect();
                let row = |place| both.map(|(_, rows)| rows.get(place).copied());
                let rows = places.into_iter().map(row).collect();
                (both.map(|(run, _)| *run), rows)
            })
        })
    }
}

/// The values of both runs' requests by place and repeat; `NaN` if missing.
fn strata(pairs: &[RunPair<'_>], of: impl Fn(&Table, usize) -> f64) -> Strata {
    let value = |run: &Run, row: Option<usize>| row.map_or(f64::NAN, |row| of(&run.table, row));
    let values = |([first, other], rows): &RunPair<'_>| {
        let rows = rows.iter();
        rows.map(|[a, b]| (value(first, *a), value(other, *b)))
            .collect()
    };
    pairs.iter().map(values).collect()
}

/// The finite values of both sides.
fn known(strata: &Strata) -> [Vec<f64>; 2] {
    let (a, b): (Vec<f64>, Vec<f64>) = strata.iter().flatten().copied().unzip();
    [a, b].map(|side| side.into_iter().filter(|value| value.is_finite()).collect())
}

/// Compares two settings by pairs of their runs.
fn compare_settings(
    pairs: &[RunPair<'_>],
    metrics: &[(ColumnId, f64)],
    notes: &mut Vec<String>,
) -> Vec<Difference> {
    let mut found = Vec::new();
    let failed = strata(pairs, |table, row| f64::from(u8::from(!table.is_ok(row))));
    let counts = known(&failed).map(|side| side.iter().filter(|failed| **failed > 0.0).count());
    if counts != [0, 0] {
        found.extend(compare(&failed, counts, None, Statistic::Mean));
    }
    for &(column, failed) in metrics {
        let values = strata(pairs, |table, row| match table.is_ok(row) {
            true => table.number(column, row).unwrap_or(f64::NAN),
            false => failed,
        });
        if known(&values).iter().any(Vec::is_empty) {
            continue;
        }
        for (statistic, name, min) in STATISTICS {
            let compared = compare(&values, counts, Some(column), statistic);
            if compared.is_none() {
                let note = format!(
                    "a {name} is not compared where fewer than {min} requests have a value in both settings"
                );
                notes.extend((!notes.contains(&note)).then_some(note));
            }
            found.extend(compared);
        }
    }
    found
}

impl Comparison {
    /// Names the best setting by each latency, with the settings it beats and those it is not shown to beat; and settings that fail more
    /// often. If no difference is shown, says so; empty if nothing was compared.
    pub fn answers(&self) -> Vec<String> {
        let all = &self.differences;
        let mut found = Vec::new();
        for (metric, _) in &METRICS[..2] {
            for names in &self.groups {
                let of = |(statistic, ..): &(Statistic, &str, u32)| {
                    let is_one = |of: &&Difference| {
                        names.contains(&of.a)
                            && of.metric == Some(*metric)
                            && of.statistic == *statistic
                    };
                    best(names, &all.iter().filter(is_one).collect::<Vec<_>>())
                };
                // Of equals the last: the p99.
                let by_statistic = STATISTICS.iter().filter_map(of);
                let most = by_statistic.max_by_key(|(wins, _)| *wins);
                found.extend(most.map(|(_, sentence)| sentence));
            }
        }
        let shown = || all.iter().filter(|of| of.is_shown());
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
fn best<'n>(names: &'n [String], all: &[&Difference]) -> Option<(usize, String)> {
    let shown = || all.iter().filter(|of| of.is_shown());
    let is_beaten = |name: &str| shown().any(|of| of.is_of(name) && of.winner() != name);
    let wins = |name: &'n str| shown().filter(move |of| of.winner() == name);
    let score = |name: &'n str| {
        let by: f64 = wins(name).map(|of| of.difference.abs()).sum();
        (wins(name).count(), by)
    };
    let names = || names.iter().map(String::as_str);
    let unbeaten = names().filter(|name| wins(name).count() > 0 && !is_beaten(name));
    let best = unbeaten.max_by(|x, y| {
        let (x, y) = (score(x), score(y));
        x.0.cmp(&y.0).then(x.1.total_cmp(&y.1))
    })?;
    let against = |name: &str| all.iter().find(|of| of.is_of(best) && of.is_of(name));
    let (mut beaten, mut not_shown, mut not_compared) = (Vec::new(), Vec::new(), 0);
    for other in names().filter(|name| *name != best) {
        match against(other) {
            Some(of) if of.is_shown() => beaten.push(other),
            Some(_) => not_shown.push(other),
            None => not_compared += 1,
        }
    }
    let first = wins(best).next()?;
    let mut sentence = format!(
        "best on {}: {best}, shown against {}",
        first.label(),
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
    fn winner(&self) -> &str {
        [&self.a, &self.b][usize::from(self.difference < 0.0)]
    }

    fn is_of(&self, name: &str) -> bool {
        self.a == name || self.b == name
    }
}

#[cfg(test)]
mod tests;
