//! The settings of an experiment: each of them against the first that was sent the same, few of them all with each other.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Difference, FAILED, Statistic, Strata, compare, judge};
use crate::report::files::RunState;
use crate::report::load::label;
use crate::report::reader::{Loaded, Run};
use crate::report::verdict::Grade;
use crate::request::outcome::GIVEN_UP;

/// All comparisons of what was loaded.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Pair by pair: each setting's metrics against the first's, and some of those of the others.
    pub differences: Vec<Difference>,
    /// Which of the runs were compared, by their places among those loaded.
    pub compared: Vec<usize>,
    /// What was not compared, and why.
    pub notes: Vec<String>,
}

/// The columns compared, and whether a request that failed took for ever in it: where a stage was never reached, nobody
/// knows.
const METRICS: [(&str, bool); 4] = [
    ("ttft", true),
    ("total_latency", true),
    (QUEUE, false),
    ("tpot", false),
];
/// Of up to so many settings each is held against each, in the first two of [`METRICS`].
const FEW: usize = 6;
/// From this share of the time on, and this many seconds, the servers' queue is long: what a request waits then hangs on
/// those before it, and bounds of one run hold less than they say.
const LONG_QUEUE: (f64, f64) = (0.1, 0.010);
/// So many repeats show what hangs together within a run.
const ENOUGH_REPEATS: usize = 3;
const STATISTICS: [Statistic; 2] = [Statistic::Quantile(0.5), Statistic::Quantile(0.99)];
/// The key of which values are repeats with another schedule.
const SEED: &str = "seed";
/// The servers' queue.
const QUEUE: &str = "pure_queue_time";
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
    /// Places and their rows, in order.
    rows: Vec<(usize, usize)>,
}

/// Two runs that were sent the same, and their rows of each place that either has.
struct Twins<'a> {
    runs: [&'a Sent<'a>; 2],
    rows: Vec<[Option<usize>; 2]>,
}

/// The differences alone.
pub fn table(loaded: &Loaded) -> Vec<Difference> {
    comparison(loaded).differences
}

/// Each setting against the first one that was sent the same, in [`METRICS`] and in failed requests, repeats put
/// together; of [`FEW`], each against each. Runs that are INVALID, unfinished or stopped are not compared.
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
    let mut too_few = BTreeMap::new();
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
        let group: Vec<Setting<'_>> = std::iter::once(first).chain(alike).collect();
        of_group(&group, &mut made, &mut too_few);
        let compared = |run: &Run| group.len() > 1 && group.iter().any(|of| of.has(run));
        let places = loaded.runs.iter().enumerate();
        made.compared
            .extend(places.filter(|(_, run)| compared(run)).map(|(at, _)| at));
    }
    let too_few = too_few.into_iter();
    made.notes.extend(too_few.map(|(what, pairs)| {
        let pairs: Vec<String> = pairs;
        format!("{what}: {}", pairs.join("; "))
    }));
    judge(&mut made.differences);
    made
}

/// Compares settings that were sent the same.
fn of_group(
    group: &[Setting<'_>],
    made: &mut Comparison,
    too_few: &mut BTreeMap<String, Vec<String>>,
) {
    for (n, a) in group.iter().enumerate() {
        for b in group.iter().skip(n + 1).filter(|b| a.was_sent_what(b)) {
            let metrics = match n {
                0 => &METRICS[..],
                _ if group.len() <= FEW => &METRICS[..2],
                _ => break,
            };
            let mut found = against(a, b, metrics, too_few);
            for difference in &mut found {
                difference.is_against_first = n == 0;
            }
            made.differences.extend(found);
        }
    }
}

/// Why a run's figures are not to be compared.
fn unfit(run: &Run) -> Option<String> {
    if run
        .verdict()
        .is_some_and(|told| told.grade == Grade::Invalid)
    {
        return Some("it is INVALID".to_owned());
    }
    let state = run.file.as_ref().map(|file| file.state);
    match state {
        Some(RunState::Failed) => Some("it failed".to_owned()),
        Some(RunState::Stopped) => Some("it was stopped".to_owned()),
        _ if run.is_partial => Some("it did not come to its end".to_owned()),
        _ if run.file.as_ref().is_some_and(|file| file.kept_cache) => {
            Some("a server kept its cache from before the run".to_owned())
        }
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

    fn has(&self, run: &Run) -> bool {
        self.runs.values().any(|sent| std::ptr::eq(sent.run, run))
    }

    /// What both are called, by what they do not share; and what they share.
    fn names(&self, other: &Setting<'_>) -> (String, String, String) {
        let (same, different): (Vec<_>, Vec<_>) = self
            .settings
            .keys()
            .partition(|key| self.settings.get(*key) == other.settings.get(*key));
        let of = |setting: &Setting<'_>| match different.as_slice() {
            [] => setting.name.clone(),
            // A word says what it is; a number does not.
            [key] if is_word(self, key) && is_word(other, key) => {
                setting.settings.get(*key).map(word).unwrap_or_default()
            }
            keys => described(setting, keys),
        };
        (of(self), of(other), described(self, &same))
    }
}

fn is_word(setting: &Setting<'_>, key: &str) -> bool {
    setting.settings.get(key).is_some_and(Value::is_string)
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
        let table = &run.table;
        let is_counted = run.is_counted();
        let firsts = (0..table.len()).filter(|row| table.is_first(*row) && is_counted(*row));
        let mut rows: Vec<(usize, usize)> = firsts
            .filter_map(|row| Some((table.place(row)?, row)))
            .collect();
        rows.sort_unstable();
        rows.dedup_by_key(|(place, _)| *place);
        Sent { run, rows }
    }

    /// The rows of both at each place that either has.
    fn with(&self, other: &Sent<'_>) -> Vec<[Option<usize>; 2]> {
        let (mut left, mut right) = (self.rows.iter().peekable(), other.rows.iter().peekable());
        let mut rows = Vec::with_capacity(self.rows.len().max(other.rows.len()));
        while let Some(place) = [left.peek(), right.peek()]
            .into_iter()
            .flatten()
            .map(|(place, _)| *place)
            .min()
        {
            let is_next = |(next, _): &&(usize, usize)| *next == place;
            let pair = [left.next_if(is_next), right.next_if(is_next)];
            rows.push(pair.map(|of| of.map(|(_, row)| *row)));
        }
        rows
    }

    /// By the hash of what was sent; where nobody took it, by time and length of each request.
    fn is_same_workload(&self, other: &Sent<'_>) -> bool {
        let hash = |sent: &Sent<'_>| sent.run.file.as_ref()?.workload_sha256.clone();
        if let (Some(a), Some(b)) = (hash(self), hash(other)) {
            return a == b;
        }
        let rows = self.with(other);
        let mut common = rows
            .iter()
            .filter_map(|[a, b]| Some(((*a)?, (*b)?)))
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

    /// What `of` says of a row; `NaN` where there is no row, or where its request was given up for the run's end.
    fn value(&self, row: Option<usize>, of: impl Fn(usize) -> f64) -> f64 {
        let table = &self.run.table;
        match row {
            Some(row) if table.is_ok(row) || table.text("error", row) != GIVEN_UP => of(row),
            _ => f64::NAN,
        }
    }

    fn metric(&self, row: Option<usize>, column: &str, is_endless: bool) -> f64 {
        let table = &self.run.table;
        self.value(row, |row| match table.is_ok(row) {
            true => table.number(column, row).unwrap_or(f64::NAN),
            false if is_endless => f64::INFINITY,
            false => f64::NAN,
        })
    }

    fn failed(&self, row: Option<usize>) -> f64 {
        self.value(row, |row| f64::from(u8::from(!self.run.table.is_ok(row))))
    }
}

/// A value of a run's request, by its row.
type Get<'a> = &'a dyn Fn(&Sent<'_>, Option<usize>) -> f64;

/// What `of` both says, by place and repeat.
fn strata(twins: &[Twins<'_>], of: Get<'_>) -> Strata {
    let pairs = |twins: &Twins<'_>| {
        let pair = |[a, b]: &[Option<usize>; 2]| (of(twins.runs[0], *a), of(twins.runs[1], *b));
        twins.rows.iter().map(pair).collect()
    };
    twins.iter().map(pairs).collect()
}

/// The finite values of one side.
fn known(strata: &Strata, side: usize) -> impl Iterator<Item = f64> {
    let values = strata
        .iter()
        .flatten()
        .map(move |(a, b)| if side == 0 { *a } else { *b });
    values.filter(|value| value.is_finite())
}

/// Whether the requests of a setting spent much of their time in the servers' queue, as far as that is known.
fn has_long_queue(twins: &[Twins<'_>]) -> bool {
    let of = |column: &'static str| strata(twins, &|sent, row| sent.metric(row, column, false));
    let (queues, totals) = (of(QUEUE), of("total_latency"));
    let mean = |strata: &Strata, side| {
        let (sum, count) = known(strata, side).fold((0.0, 0.0), |(sum, n), v| (sum + v, n + 1.0));
        sum / count
    };
    (0..2).any(|side| {
        let (queue, total) = (mean(&queues, side), mean(&totals, side));
        queue >= LONG_QUEUE.1 && queue >= LONG_QUEUE.0 * total
    })
}

/// Compares two settings.
fn against(
    first: &Setting<'_>,
    other: &Setting<'_>,
    metrics: &[(&str, bool)],
    too_few: &mut BTreeMap<String, Vec<String>>,
) -> Vec<Difference> {
    let (a, b, at) = first.names(other);
    let twins = first.pairs(other).map(|(a, b)| Twins {
        runs: [a, b],
        rows: a.with(b),
    });
    let twins: Vec<Twins<'_>> = twins.collect();
    let mut found = Vec::new();
    let failed = strata(&twins, &|sent, row| sent.failed(row));
    let counts = [0, 1].map(|side| known(&failed, side).filter(|value| *value > 0.0).count());
    if counts != [0, 0] {
        let mean = Statistic::Mean;
        found.extend(compare(&failed, counts, FAILED, mean, RESAMPLING_SEED));
    }
    let mut missing = [Vec::new(), Vec::new()];
    for &(column, is_endless) in metrics {
        let values = strata(&twins, &|sent, row| sent.metric(row, column, is_endless));
        if (0..2).any(|side| known(&values, side).next().is_none()) {
            continue;
        }
        for (statistic, missing) in STATISTICS.into_iter().zip(&mut missing) {
            match compare(&values, counts, column, statistic, RESAMPLING_SEED) {
                Some(difference) => found.push(difference),
                None => missing.push(label(column)),
            }
        }
    }
    for (missing, (what, least)) in missing.iter().zip([("p50", 40), ("p99", 500)]) {
        if !missing.is_empty() {
            let columns = missing.join(", ");
            let what = format!(
                "the {what} of {columns} is not compared, as fewer than {least} requests have a value in both"
            );
            too_few
                .entry(what)
                .or_default()
                .push(format!("{a} and {b}"));
        }
    }
    let needs_repeats = twins.len() < ENOUGH_REPEATS && has_long_queue(&twins);
    for difference in &mut found {
        (difference.a, difference.b) = (a.clone(), b.clone());
        difference.at.clone_from(&at);
        difference.needs_repeats = needs_repeats;
    }
    found
}
