//! The settings of an experiment: each of them against the first that was sent the same, few of them all with each other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Difference, Statistic, Strata, compare, judge};
use crate::report::files::{RunState, plain};
use crate::report::findings::queue_grew;
use crate::report::load::is_given_up;
use crate::report::reader::{Loaded, Run};
use crate::report::verdict::Grade;
use crate::request::columns::ColumnId;
use crate::table::Table;

/// All comparisons of what was loaded.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Pair by pair: each setting's metrics against the first's, and some of those of the others.
    pub differences: Vec<Difference>,
    /// The settings that were sent the same, by what varies among them.
    pub groups: Vec<Vec<String>>,
    /// Which runs were not compared, and why.
    pub notes: Vec<String>,
    /// Of what too few requests have a value in both of some two settings.
    pub too_few: Vec<String>,
}

/// The columns compared, and whether a request that failed took for ever in it: where a stage was never reached, nobody
/// knows.
const METRICS: [(ColumnId, bool); 4] = [
    (ColumnId::ttft, true),
    (ColumnId::total_latency, true),
    (ColumnId::pure_queue_time, false),
    (ColumnId::tpot, false),
];
/// Of up to so many settings each is held against each, in the first two of [`METRICS`].
const FEW: usize = 6;
/// From this share of the time on, and this many seconds, the server queue is long: what a request waits then hangs on
/// those before it, and bounds of one run hold less than they say.
const LONG_QUEUE: (f64, f64) = (0.1, 0.010);
/// So many repeats show what hangs together within a run.
const ENOUGH_REPEATS: usize = 3;
/// What is compared of a metric, how it is called, and the requests that it takes.
const STATISTICS: [(Statistic, &str, u32); 2] = [
    (Statistic::Quantile(0.5), "p50", 40),
    (Statistic::Quantile(0.99), "p99", 500),
];
/// The key of which values are repeats with another schedule.
const SEED: &str = "seed";
const RESAMPLING_SEED: u64 = 1;

/// Settings and their runs, by repeat and seed.
struct Setting<'a> {
    settings: Map<String, Value>,
    /// Whether another experiment has the same settings, so that only the runs' names differ.
    is_double: bool,
    runs: BTreeMap<(u32, String), Sent<'a>>,
}

/// The requests of a run: their rows by their places in the schedule.
struct Sent<'a> {
    run: &'a Run,
    rows: BTreeMap<usize, usize>,
}

/// Two runs that were sent the same, and their rows of each place that either has.
type Pair<'a> = ([&'a Run; 2], Vec<[Option<usize>; 2]>);

/// Each setting against the first one that was sent the same, in [`METRICS`] and in failed requests, repeats put
/// together; of [`FEW`], each against each. Runs that are INVALID, unfinished or stopped are not compared.
pub fn comparison(loaded: &Loaded) -> Comparison {
    let mut made = Comparison::default();
    let mut settings: Vec<Setting<'_>> = Vec::new();
    for run in &loaded.runs {
        match unfit(run) {
            Some(why) => made.not_compared(&run.name, why),
            None => add(&mut settings, Sent::of(run)),
        }
    }
    // By the first that was sent the same.
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
        match group.as_slice() {
            [alone] if loaded.runs.len() > 1 => {
                made.not_compared(&alone.name(), "no other setting was sent the same");
            }
            [_] => {}
            all => {
                of_group(all, &mut made);
                let others: Vec<&Setting<'_>> = all.iter().collect();
                let names = all.iter().map(|setting| setting.names(&others).0);
                made.groups.push(names.collect());
            }
        }
    }
    judge(&mut made.differences);
    made
}

impl Comparison {
    fn not_compared(&mut self, name: &str, why: &str) {
        self.notes.push(format!("{name} is not compared: {why}"));
    }
}

/// Compares settings that were sent the same.
fn of_group(group: &[Setting<'_>], made: &mut Comparison) {
    for (n, a) in group.iter().enumerate() {
        let metrics = match n {
            0 => &METRICS[..],
            _ if group.len() <= FEW => &METRICS[..2],
            _ => break,
        };
        for (m, b) in group.iter().enumerate().skip(n + 1) {
            let pairs: Vec<Pair<'_>> = a.pairs(b).collect();
            if !pairs.is_empty() {
                let found = against([a, b], &pairs, metrics, &mut made.too_few);
                made.differences
                    .extend(found.into_iter().map(|difference| Difference {
                        is_against_first: n == 0,
                        between: (made.groups.len(), [n, m]),
                        ..difference
                    }));
            }
        }
    }
}

/// Why a run's figures are not to be compared.
fn unfit(run: &Run) -> Option<&'static str> {
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

fn add<'a>(settings: &mut Vec<Setting<'a>>, sent: Sent<'a>) {
    let file = sent.run.file.as_ref();
    let mut of_run = file.map(|file| file.settings.clone()).unwrap_or_default();
    let seed = of_run.remove(SEED).map(|seed| seed.to_string());
    let key = (file.map_or(0, |file| file.repeat), seed.unwrap_or_default());
    let is_same = |known: &&mut Setting<'_>| {
        let mut runs = known.runs.values().map(|sent| sent.run.dir.parent());
        let is_of_one = runs.all(|dir| dir == sent.run.dir.parent());
        file.is_some() && known.settings == of_run && is_of_one && !known.runs.contains_key(&key)
    };
    if let Some(known) = settings.iter_mut().find(is_same) {
        known.runs.insert(key, sent);
        return;
    }
    let alike = |known: &&mut Setting<'_>| file.is_some() && known.settings == of_run;
    let doubles: Vec<&mut Setting<'_>> = settings.iter_mut().filter(alike).collect();
    let is_double = !doubles.is_empty();
    doubles.into_iter().for_each(|known| known.is_double = true);
    settings.push(Setting {
        settings: of_run,
        is_double,
        runs: BTreeMap::from([(key, sent)]),
    });
}

/// `request_rate=8, tp_size=2`: the settings of which the keys are wanted.
fn described(settings: &Map<String, Value>, is_wanted: impl Fn(&str) -> bool) -> String {
    let wanted = settings.iter().filter(|(key, _)| is_wanted(key));
    let words: Vec<String> = wanted
        .map(|(key, value)| format!("{key}={}", plain(value)))
        .collect();
    words.join(", ")
}

impl Setting<'_> {
    /// The runs of both that were sent the same.
    fn pairs<'a>(&'a self, other: &'a Setting<'_>) -> impl Iterator<Item = Pair<'a>> {
        self.runs.iter().filter_map(|(key, own)| {
            let both = [own, other.runs.get(key)?];
            let [hash, other] = both.map(|sent| sent.run.workload_sha256());
            (hash.is_some() && hash == other).then(|| {
                let places: BTreeSet<&usize> = both.iter().flat_map(|of| of.rows.keys()).collect();
                let row = |place| both.map(|sent| sent.rows.get(place).copied());
                let rows = places.into_iter().map(row).collect();
                (both.map(|sent| sent.run), rows)
            })
        })
    }

    /// All of its settings, or its run's name.
    fn name(&self) -> String {
        match self.runs.values().next() {
            Some(sent) if self.is_double || self.settings.is_empty() => sent.run.name.clone(),
            _ => described(&self.settings, |_| true),
        }
    }

    /// What it is called beside others, by what they do not all share; and what they share.
    fn names(&self, others: &[&Setting<'_>]) -> (String, String) {
        let own = &self.settings;
        let is_shared = |key: &str| {
            let mut values = others.iter().map(|other| other.settings.get(key));
            values.all(|value| value == own.get(key))
        };
        let name = match described(own, |key| !is_shared(key)) {
            name if name.is_empty() || self.is_double => self.name(),
            name => name,
        };
        (name, described(own, is_shared))
    }
}

impl Sent<'_> {
    fn of(run: &Run) -> Sent<'_> {
        let mut rows = BTreeMap::new();
        for row in run.counted() {
            if let Some(place) = run.table.place(row) {
                rows.entry(place).or_insert(row);
            }
        }
        Sent { run, rows }
    }
}

/// What `of` says of both runs' requests, by place and repeat; `NaN` where there is none, or where it was given up for the
/// run's end.
fn strata(pairs: &[Pair<'_>], of: impl Fn(&Table, usize) -> f64) -> Strata {
    let value = |Run { table, .. }: &Run, row: Option<usize>| {
        let told = row.filter(|row| !is_given_up(table, *row));
        told.map_or(f64::NAN, |row| of(table, row))
    };
    let values = |([first, other], rows): &Pair<'_>| {
        let rows = rows.iter();
        rows.map(|[a, b]| (value(first, *a), value(other, *b)))
            .collect()
    };
    pairs.iter().map(values).collect()
}

/// A column of both; `is_endless`: a request that failed took for ever.
fn of_column(pairs: &[Pair<'_>], column: ColumnId, is_endless: bool) -> Strata {
    let failed = if is_endless { f64::INFINITY } else { f64::NAN };
    strata(pairs, |table, row| match table.is_ok(row) {
        true => table.number(column, row).unwrap_or(f64::NAN),
        false => failed,
    })
}

/// The finite values of both sides.
fn known(strata: &Strata) -> [Vec<f64>; 2] {
    let (a, b): (Vec<f64>, Vec<f64>) = strata.iter().flatten().copied().unzip();
    [a, b].map(|side| side.into_iter().filter(|value| value.is_finite()).collect())
}

/// Whether the requests of a setting spent much of their time in the server queue, as far as that is known.
fn has_long_queue(pairs: &[Pair<'_>]) -> bool {
    let means = |column| {
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
        known(&of_column(pairs, column, false)).map(mean)
    };
    let is_long =
        |(queue, total): (f64, f64)| queue >= LONG_QUEUE.1 && queue >= LONG_QUEUE.0 * total;
    means(ColumnId::pure_queue_time)
        .into_iter()
        .zip(means(ColumnId::total_latency))
        .any(is_long)
}

/// Compares two settings by those of their runs that were sent the same.
fn against(
    [first, other]: [&Setting<'_>; 2],
    pairs: &[Pair<'_>],
    metrics: &[(ColumnId, bool)],
    too_few: &mut Vec<String>,
) -> Vec<Difference> {
    let ((a, at), (b, _)) = (first.names(&[other]), other.names(&[first]));
    let mut found = Vec::new();
    let failed = strata(pairs, |table, row| f64::from(u8::from(!table.is_ok(row))));
    let counts = known(&failed).map(|side| side.iter().filter(|failed| **failed > 0.0).count());
    if counts != [0, 0] {
        let mean = Statistic::Mean;
        found.extend(compare(&failed, counts, None, mean, RESAMPLING_SEED));
    }
    for &(column, is_endless) in metrics {
        let values = of_column(pairs, column, is_endless);
        if known(&values).iter().any(Vec::is_empty) {
            continue;
        }
        for (statistic, what, least) in STATISTICS {
            let compared = compare(&values, counts, Some(column), statistic, RESAMPLING_SEED);
            if compared.is_none() {
                let metric = column.column().label;
                let note = format!(
                    "the {what} of {metric} is not compared where fewer than {least} requests have a value in both settings"
                );
                too_few.extend((!too_few.contains(&note)).then_some(note));
            }
            found.extend(compared);
        }
    }
    let needs_repeats = pairs.len() < ENOUGH_REPEATS && has_long_queue(pairs);
    let mut runs = pairs.iter().flat_map(|(runs, _)| runs);
    let queue_grew = runs.any(|run| queue_grew(run));
    let told = found.into_iter().map(|difference| Difference {
        a: a.clone(),
        b: b.clone(),
        at: at.clone(),
        needs_repeats,
        queue_grew,
        ..difference
    });
    told.collect()
}
