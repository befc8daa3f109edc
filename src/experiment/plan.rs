//! What an experiment does: its keys, from file and flags to the settings of each run. Pure.

use std::collections::BTreeMap;

use anyhow::{bail, ensure};
use toml::{Table, Value};

pub mod announcement;
pub mod deploy;
pub mod error;
mod example;
pub mod grid;
pub mod keys;
mod known;
pub mod line;
pub mod read;
mod shown;

use error::PlanError;
use grid::Sweep;
use keys::Kind;
use line::Settings;
use read::Entry;
use shown::{quoted, shown, told};

/// A plan that can be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it is about.
    pub kind: Kind,
    /// Its keys, in order: those of the built-in example, and what was given over them. A list of values is varied.
    keys: Table,
    /// The keys that were given, by file or flag.
    pub given: Vec<String>,
    /// What was changed in the built-in example to go with what was given.
    pub notes: Vec<String>,
    runs: Vec<Run>,
}

/// A run to be done.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its folder's name.
    pub dir: String,
    /// What tells it from the others.
    pub label: String,
    /// The keys that vary, with its values as they are shown.
    pub varied: Vec<Entry>,
    /// Which of the repeats, from 0.
    pub repeat: u32,
    /// All its keys.
    pub settings: Settings,
}

/// What says of which kind a plan in a file is.
const EXPERIMENT: &str = "experiment";
/// Tables of further flags, by the program that gets them (of a pair's servers, by what they do).
const TABLES: [&str; 7] = [
    "traffic",
    "sim",
    "sglang",
    "prefill",
    "decode",
    "sglang_router",
    "proxy",
];

impl Plan {
    /// A plan of `given` keys, over those of the built-in `example` (none where a file was given).
    ///
    /// # Errors
    /// A key that is not known, a value that it does not take, values that do not go together.
    pub fn new(
        kind: Kind,
        example: impl IntoIterator<Item = Entry>,
        given: impl IntoIterator<Item = Entry>,
    ) -> Result<Plan, PlanError> {
        let given = known::known(kind, given)?;
        let (mut keys, notes) = example::fitted(known::known(kind, example)?, &given);
        keys.extend(given.clone());
        let mut plan = Plan {
            kind,
            keys,
            given: given.keys().cloned().collect(),
            notes,
            runs: Vec::new(),
        };
        plan.runs = plan.grid()?;
        if plan.is_search() {
            let checked = plan.check_search();
            checked.map_err(|wrong| PlanError(wrong.to_string()))?;
        }
        Ok(plan)
    }

    /// The keys that vary, in order: those of the file first, as it has them.
    pub fn sweeps(&self) -> Vec<Sweep> {
        let varied = self.keys.iter().filter_map(|(key, value)| {
            let (key, values) = (key.clone(), values(key, value));
            (values.len() > 1).then_some(Sweep { key, values })
        });
        varied.collect()
    }

    /// The runs, in order: all settings of the first repeat, then all of the next, so that what changes with time
    /// meets every setting.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    fn grid(&self) -> Result<Vec<Run>, PlanError> {
        let sweeps = self.sweeps();
        let repeats = match self.keys.contains_key("repeats") {
            true => self.settings(&[], 0)?.keys.repeats,
            false => 1,
        };
        let combinations = grid::combinations(&sweeps, repeats)?;
        let mut runs = Vec::new();
        for repeat in 0..repeats {
            for varied in &combinations {
                let told = told(&sweeps, varied);
                let settings = self
                    .settings(varied, repeat)
                    .map_err(|error| match &told[..] {
                        [] => error,
                        told => {
                            let label = grid::label(told);
                            PlanError(format!("{error} (in the run with {label})"))
                        }
                    })?;
                runs.push(Run::new(runs.len() + 1, told, repeat, settings));
            }
        }
        Ok(runs)
    }

    /// Whether the highest rate is searched.
    pub fn is_search(&self) -> bool {
        let first = self.runs.first();
        first.is_some_and(|run| run.settings.keys.find_max_rate)
    }

    /// A search has one setting, and says itself how often and how long each rate is tried.
    fn check_search(&self) -> anyhow::Result<()> {
        if let Some(Sweep { key, .. }) = self.sweeps().first() {
            bail!("find_max_rate: searches with one setting; give {key} one value");
        }
        ensure!(
            self.runs.len() == 1,
            "repeats: a search tries each rate once; leave it out, or raise probe_s for longer trials"
        );
        ensure!(
            !self.keys.contains_key("duration"),
            "duration: a search sets how long each rate is tried; give probe_s in its place"
        );
        Ok(())
    }

    /// A run of it at rate `rate`, for the search of the highest.
    ///
    /// # Errors
    /// The generator does not take the rate.
    pub fn trial(&self, number: usize, rate: f64, requests: usize) -> Result<Run, PlanError> {
        let rate = ("request_rate".to_owned(), Value::Float(rate));
        let count = i64::try_from(requests).unwrap_or(i64::MAX);
        let count = ("num_prompts".to_owned(), Value::Integer(count));
        let settings = self.settings(&[rate.clone(), count], 0)?;
        Ok(Run::new(number, vec![rate], 0, settings))
    }

    /// The keys of a run, checked: those that are given, over defaults.
    fn settings(&self, varied: &[Entry], repeat: u32) -> Result<Settings, PlanError> {
        let one = |(key, value): (&String, &Value)| {
            // One value: a list of one is that value.
            let one = values(key, value).into_iter().next();
            (key.clone(), one.unwrap_or_else(|| value.clone()))
        };
        let own = self.keys.iter().map(one).chain(varied.iter().cloned());
        let mut all: BTreeMap<String, Value> = self.defaults().chain(own).collect();
        if let Some(Value::Integer(seed)) = all.get_mut("seed") {
            *seed = seed.saturating_add(i64::from(repeat));
        }
        let settings = Settings::read(all)?;
        deploy::check(&settings)?;
        Ok(settings)
    }

    /// Whether it says what is not for everybody.
    pub fn holds_secret(&self) -> bool {
        self.to_text() != self.to_toml()
    }

    /// Every key with its value, as a file: read again it makes the same plan.
    pub fn to_toml(&self) -> String {
        self.lines(|_, value| value.clone())
    }

    /// The same to be looked at: without secrets.
    pub fn to_text(&self) -> String {
        self.lines(shown)
    }

    fn lines(&self, shown: fn(&str, &Value) -> Value) -> String {
        let mut text = format!("{EXPERIMENT} = \"{}\"\n\n# given\n", self.kind.name());
        for note in &self.notes {
            text.push_str(&format!("# {note}\n"));
        }
        for (key, value) in &self.keys {
            text.push_str(&format!("{} = {}\n", quoted(key), shown(key, value)));
        }
        text.push_str("\n# defaults\n");
        for (key, value) in self.defaults() {
            if !self.keys.contains_key(&key) {
                text.push_str(&format!("{key} = {value}\n"));
            }
        }
        text.push_str("# all other keys of the generator: its own defaults (config in each run's summary.json)\n");
        text
    }

    /// What holds where nothing is given.
    fn defaults(&self) -> impl Iterator<Item = Entry> {
        line::KEYS.iter().filter_map(|key| {
            let name = key.get_id().as_str();
            let is_of_pair = name == "router" && self.keys.contains_key("num_prefill");
            let value = match is_of_pair {
                true => Some("sglang-router".into()),
                false => line::default_of(self.kind, key),
            };
            Some((name.to_owned(), value?))
        })
    }
}

impl Run {
    fn new(number: usize, varied: Vec<Entry>, repeat: u32, settings: Settings) -> Run {
        let label = grid::label(&varied);
        Run {
            dir: grid::folder(number, &label, repeat),
            label,
            varied,
            repeat,
            settings,
        }
    }
}

/// The values of a key that was given, as texts.
fn texts(all: &Table, name: &str) -> Vec<String> {
    let all = all.get(name).map(|value| values(name, value));
    let all = all.into_iter().flatten();
    all.map(|value| line::text(&value)).collect()
}

/// The values of a key that is varied, or the one that it has.
fn values(key: &str, value: &Value) -> Vec<Value> {
    let is_list = line::key(key).is_some_and(line::is_list);
    match value {
        Value::Array(all) if !is_list || all.iter().any(Value::is_array) => all.clone(),
        // A list of one may be written without brackets.
        value if is_list && !value.is_array() => vec![Value::Array(vec![value.clone()])],
        value => vec![value.clone()],
    }
}

#[cfg(test)]
mod tests;
