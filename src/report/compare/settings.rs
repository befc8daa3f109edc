//! The settings of an experiment, and each of them against the first that was sent the same.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Arm, Difference, FAILED, Statistic, compare, judge};
use crate::report::files::RunState;
use crate::report::reader::{Loaded, Run};
use crate::request::outcome::GIVEN_UP;

/// All comparisons of what was loaded.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// One after the other: each setting's metrics against the first's.
    pub differences: Vec<Difference>,
    /// What was not compared, and why.
    pub notes: Vec<String>,
}

/// The columns compared, and whether a request that failed took for ever in it: where a stage was never reached, nobody
/// knows.
const METRICS: [(&str, bool); 4] = [
    ("ttft", true),
    ("total_latency", true),
    ("pure_queue_time", false),
    ("tpot", false),
];
const STATISTICS: [Statistic; 2] = [Statistic::Quantile(0.5), Statistic::Quantile(0.99)];
/// The key of which values are repeats with another schedule.
const SEED: &str = "seed";
const RESAMPLING_SEED: u64 = 1;
/// Times of one schedule, as two files tell them, differ by less: seconds.
const SAME_TIME: f64 = 2e-6;

/// A setting and its runs, by repeat and seed.
struct Setting<'a> {
    settings: Map<String, Value>,
    name: String,
    runs: BTreeMap<(u32, String), Sent<'a>>,
}

/// The requests of a run by place.
struct Sent<'a> {
    run: &'a Run,
    /// The row of each place.
    rows: Vec<Option<usize>>,
}

/// The differences alone.
pub fn table(loaded: &Loaded) -> Vec<Difference> {
    comparison(loaded).differences
}

/// Each setting against the first one that was sent the same, in [`METRICS`] and in failed requests, repeats put
/// together. Runs that are INVALID, unfinished or stopped are not compared.
pub fn comparison(loaded: &Loaded) -> Comparison {
    let mut made = Comparison::default();
    let mut settings: Vec<Setting<'_>> = Vec::new();
    for run in &loaded.runs {
        if let Some(why) = unfit(run) {
            made.notes
                .push(format!("{} is not compared: {why}", run.name));
            continue;
        }
        add(&mut settings, run);
    }
    let mut left = settings;
    while !left.is_empty() {
        let first = left.remove(0);
        let (alike, others): (Vec<_>, Vec<_>) = left
            .into_iter()
            .partition(|setting| first.was_sent_what(setting));
        left = others;
        if alike.is_empty() && loaded.runs.len() > 1 {
            let name = &first.name;
            made.notes.push(format!(
                "{name} is not compared: no other setting was sent the same"
            ));
        }
        for other in &alike {
            against(&first, other, &mut made);
        }
    }
    judge(&mut made.differences);
    made
}

/// Why a run's figures are not to be compared.
fn unfit(run: &Run) -> Option<String> {
    let verdict = run.summary.as_ref().map(|summary| &summary["verdict"]);
    if verdict.is_some_and(|verdict| verdict["grade"] == "INVALID") {
        return Some("it is INVALID".to_owned());
    }
    let state = run.file.as_ref().map(|file| file.state);
    match state {
        Some(RunState::Failed) => Some("it failed".to_owned()),
        Some(RunState::Stopped) => Some("it was stopped".to_owned()),
        _ if run.is_partial => Some("it did not come to its end".to_owned()),
        _ => None,
    }
}

fn add<'a>(settings: &mut Vec<Setting<'a>>, run: &'a Run) {
    let mut of_run = run
        .file
        .as_ref()
        .map(|file| file.settings.clone())
        .unwrap_or_default();
    let seed = of_run
        .remove(SEED)
        .map(|seed| seed.to_string())
        .unwrap_or_default();
    let repeat = run.file.as_ref().map_or(0, |file| file.repeat);
    let is_same = |known: &&mut Setting<'_>| run.file.is_some() && known.settings == of_run;
    let key = (repeat, seed);
    let sent = Sent::of(run);
    if let Some(known) = settings.iter_mut().find(is_same)
        && !known.runs.contains_key(&key)
    {
        known.runs.insert(key, sent);
        return;
    }
    let words: Vec<String> = of_run
        .iter()
        .map(|(key, value)| format!("{key}={}", word(value)))
        .collect();
    let name = if words.is_empty() {
        run.name.clone()
    } else {
        words.join(", ")
    };
    settings.push(Setting {
        settings: of_run,
        name,
        runs: BTreeMap::from([(key, sent)]),
    });
}

/// A value without the quotes of JSON.
fn word(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

impl Setting<'_> {
    /// Whether a repeat of both was sent the same.
    fn was_sent_what(&self, other: &Setting<'_>) -> bool {
        self.pairs(other).next().is_some()
    }

    /// The runs of both that were sent the same.
    fn pairs<'a>(
        &'a self,
        other: &'a Setting<'_>,
    ) -> impl Iterator<Item = (&'a Sent<'a>, &'a Sent<'a>)> {
        self.runs.iter().filter_map(|(key, run)| {
            let other = other.runs.get(key)?;
            run.is_same_workload(other).then_some((run, other))
        })
    }

    /// What both are called, by what they do not share; and what they share.
    fn names(&self, other: &Setting<'_>) -> (String, String, String) {
        let (same, different): (Vec<_>, Vec<_>) = self
            .settings
            .keys()
            .partition(|key| self.settings.get(*key) == other.settings.get(*key));
        let of = |setting: &Setting<'_>| match different.as_slice() {
            [] => setting.name.clone(),
            [key] => setting.settings.get(*key).map(word).unwrap_or_default(),
            keys => described(setting, keys),
        };
        (of(self), of(other), described(self, &same))
    }
}

/// `request_rate=8, tp_size=2`.
fn described(setting: &Setting<'_>, keys: &[&String]) -> String {
    let values = keys
        .iter()
        .filter_map(|key| Some((key, setting.settings.get(*key)?)));
    let words: Vec<String> = values
        .map(|(key, value)| format!("{key}={}", word(value)))
        .collect();
    words.join(", ")
}

impl Sent<'_> {
    fn of(run: &Run) -> Sent<'_> {
        let mut rows: Vec<Option<usize>> = Vec::new();
        let is_counted = run.is_counted();
        for row in 0..run.table.len() {
            let first = run.table.is_first(row) && is_counted(row);
            let Some(place) = run
                .table
                .place(row)
                .filter(|place| first && *place < run.table.len() * 2 + 1000)
            else {
                continue;
            };
            if rows.len() <= place {
                rows.resize(place + 1, None);
            }
            rows[place] = Some(row);
        }
        Sent { run, rows }
    }

    /// By the hash of what was sent; where nobody took it, by time and length of each request.
    fn is_same_workload(&self, other: &Sent<'_>) -> bool {
        let hash = |sent: &Sent<'_>| sent.run.file.as_ref()?.workload_sha256.clone();
        if let (Some(a), Some(b)) = (hash(self), hash(other)) {
            return a == b;
        }
        let mut common = self
            .rows
            .iter()
            .zip(&other.rows)
            .filter_map(|(a, b)| Some(((*a)?, (*b)?)))
            .peekable();
        let alike = |column: &str, a: usize, b: usize| match (
            self.run.table.number(column, a),
            other.run.table.number(column, b),
        ) {
            (Some(a), Some(b)) => (a - b).abs() < SAME_TIME,
            (a, b) => a == b,
        };
        common.peek().is_some()
            && common.all(|(a, b)| alike("scheduled_time", a, b) && alike("input_length", a, b))
    }

    /// By place, what `of` says of a row; `NaN` where there is no row, or where its request was given up for the run's end.
    fn values(&self, of: impl Fn(usize) -> f64) -> Vec<f64> {
        let table = &self.run.table;
        let value = |row: &Option<usize>| match *row {
            Some(row) if table.is_ok(row) || table.text("error", row) != GIVEN_UP => of(row),
            _ => f64::NAN,
        };
        self.rows.iter().map(value).collect()
    }

    fn metric(&self, column: &str, is_endless: bool) -> Vec<f64> {
        let table = &self.run.table;
        self.values(|row| match table.is_ok(row) {
            true => table.number(column, row).unwrap_or(f64::NAN),
            false if is_endless => f64::INFINITY,
            false => f64::NAN,
        })
    }

    fn failed(&self) -> Vec<f64> {
        self.values(|row| f64::from(u8::from(!self.run.table.is_ok(row))))
    }
}

/// Compares one setting with the first.
fn against(first: &Setting<'_>, other: &Setting<'_>, made: &mut Comparison) {
    let (a, b, at) = first.names(other);
    let arms = |of: &dyn Fn(&Sent<'_>) -> Vec<f64>| -> [Arm; 2] {
        let (of_a, of_b) = first.pairs(other).map(|(a, b)| (of(a), of(b))).unzip();
        let arm = |name: &String, repeats| Arm {
            name: name.clone(),
            repeats,
        };
        [arm(&a, of_a), arm(&b, of_b)]
    };
    let mut found = Vec::new();
    let failed = arms(&|sent| sent.failed());
    if failed
        .iter()
        .any(|arm| arm.repeats.iter().flatten().any(|v| *v > 0.0))
    {
        found.extend(compare(
            &failed[0],
            &failed[1],
            FAILED,
            Statistic::Mean,
            RESAMPLING_SEED,
        ));
    }
    for (column, is_endless) in METRICS {
        let arms = arms(&|sent| sent.metric(column, is_endless));
        let known = |arm: &Arm| arm.repeats.iter().flatten().any(|v| v.is_finite());
        if !arms.iter().all(known) {
            continue;
        }
        let compared = STATISTICS
            .map(|statistic| compare(&arms[0], &arms[1], column, statistic, RESAMPLING_SEED));
        if compared.iter().any(Option::is_none) {
            made.notes.push(format!(
                "{a} and {b}: too few requests with both values for the p99 of {column} (500), or for its p50 (40)"
            ));
        }
        found.extend(compared.into_iter().flatten());
    }
    for difference in &mut found {
        difference.at.clone_from(&at);
    }
    made.differences.extend(found);
}
