//! What an experiment does: its keys, from file and flags to the settings of each run. Pure.

use std::collections::BTreeMap;

use anyhow::{bail, ensure};
use toml::{Table, Value};

pub mod deploy;
pub mod error;
pub mod grid;
pub mod keys;
pub mod line;
pub mod read;

use error::PlanError;
use grid::Sweep;
use keys::{Kind, PRESETS, STARTED};
use line::{KEYS, SIM, Settings, text};
use read::Entry;

use crate::config::sections::nearest;
use crate::secret;

/// A plan that can be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it is about.
    pub kind: Kind,
    /// Its keys, in order: those of the built-in example, and what was given over them. A list of values is varied.
    keys: Table,
    /// The keys that were given, by file or flag.
    pub given: Vec<String>,
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
/// Tables of further flags, by the program that gets them (of a pair's servers, by what they do); and of variables of servers'
/// environments.
const TABLES: &str = "sim, sglang, prefill, decode, sglang_router, proxy, env";

/// Keys of the built-in example that go with our own balancer alone: before another router the front's queue would pass for that one's.
const OF_BUILTIN: [&str; 2] = ["hops", "proxy.max_concurrent_requests"];

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
        let mut given = known(kind, given)?;
        let preset = texts(&given, "preset");
        if let Some((_, keys)) = PRESETS.iter().find(|(name, _)| preset == [*name]) {
            for (key, value) in read::file(keys)? {
                given.entry(key).or_insert(value);
            }
        }
        // Beside a curve `inf` is no rate, but a default that was written out.
        let has_curve = given.contains_key("rate_curve");
        let is_infinite = |value: &Value| value.as_float() == Some(f64::INFINITY);
        given.retain(|key, value| !(has_curve && key == "request_rate" && is_infinite(value)));
        let mut keys = known(kind, example)?;
        let has = |key: &str, value: &str| texts(&given, key).iter().any(|text| text == value);
        let is_other = given.contains_key("num_prefill")
            || texts(&given, "router").iter().any(|name| name != "builtin");
        let (is_search, is_external) = (has("find_max_rate", "true"), has("engine", "external"));
        // What the example varies does not go with these, nor does what is of our own balancer with another router.
        keys.retain(|key, value| {
            let heading = line::key(key).and_then(|key| key.get_help_heading());
            let is_out = is_search || is_other || (is_external && heading == Some(STARTED));
            let is_of_builtin = is_other && OF_BUILTIN.contains(&key);
            let is_rate = key == "request_rate" && has_curve;
            !(is_out && value.is_array() || is_of_builtin || is_rate)
        });
        keys.extend(given.clone());
        let mut plan = Plan {
            kind,
            keys,
            given: given.keys().cloned().collect(),
            runs: Vec::new(),
        };
        plan.runs = plan.grid()?;
        if plan.is_search() {
            plan.check_search()?;
        }
        Ok(plan)
    }

    /// The keys that vary, in order: those of the file first, as it has them.
    pub fn sweeps(&self) -> Vec<Sweep> {
        let varied = self.keys.iter().filter_map(|(key, value)| {
            let values = values(key, value);
            (values.len() > 1).then(|| (key.clone(), values))
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
        let repeats = self.keys.get("repeats").and_then(Value::as_integer);
        // What is no such number is told with the first run.
        let repeats = repeats.map_or(1, |repeats| repeats.clamp(1, 1000) as u32);
        let combinations = grid::combinations(&sweeps, repeats)?;
        let mut runs = Vec::new();
        for repeat in 0..repeats {
            for varied in &combinations {
                let settings = self.settings(varied, repeat);
                let settings = settings.map_err(|error| match &varied[..] {
                    [] => error,
                    varied => {
                        let label = grid::label(varied);
                        PlanError(format!("{error} (in the run with {label})"))
                    }
                })?;
                runs.push(Run::new(runs.len() + 1, varied.clone(), repeat, settings));
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
        if let Some((key, _)) = self.sweeps().first() {
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
        ensure!(
            !self.keys.contains_key("rate_curve"),
            "rate_curve: a search sets the rate itself; leave it out"
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
        let line = |(key, value): Entry| format!("{} = {value}\n", quoted(&key));
        let given = self.keys.iter();
        let given = given.map(|(key, value)| (key.clone(), shown(key, value)));
        let defaults = self.defaults();
        let defaults = defaults.filter(|(key, _)| !self.keys.contains_key(key));
        let given: String = given.map(line).collect();
        let defaults: String = defaults.map(line).collect();
        let kind = self.kind.name();
        format!(
            "{EXPERIMENT} = \"{kind}\"\n\n# given\n{given}\n# defaults\n{defaults}\
             # all other keys of the generator: its own defaults (config in each run's summary.json)\n"
        )
    }

    /// What holds where nothing is given.
    fn defaults(&self) -> impl Iterator<Item = Entry> {
        line::KEYS.iter().filter_map(|key| {
            let name = key.get_id().as_str();
            let has = |key: &str| self.keys.contains_key(key);
            let value = match name {
                "router" if has("num_prefill") => Some("sglang-router".into()),
                "request_rate" if has("rate_curve") => None,
                _ => line::default_of(self.kind, key),
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
    all.map(|value| text(&value)).collect()
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

/// The entries by their keys' own names, if all are known. What values mean is known with all of a run's.
fn known(kind: Kind, entries: impl IntoIterator<Item = Entry>) -> Result<Table, PlanError> {
    let mut all = Table::new();
    for (name, value) in entries {
        if name == EXPERIMENT {
            let name = kind.name();
            if value.as_str() != Some(name) {
                return Err(PlanError(format!(
                    "{EXPERIMENT} = {value}: this is queuescope {name}; queuescope node and queuescope routing are two commands"
                )));
            }
            continue;
        }
        check(kind, &name, &value)?;
        if is_masked(&name, &value) {
            let wrong = "is in place of a hidden value; give the value itself";
            return Err(PlanError::of(&name, format!("{} {wrong}", secret::MASK)));
        }
        if all.contains_key(&name) {
            return Err(PlanError::of(&name, "is given twice"));
        }
        let read = values(&name, &value).into_iter();
        let read = line::distinct(read.map(|value| line::as_read(&name, value)));
        let read = read.map_err(|twice| {
            let right = "is given twice; repeats = 2 does each setting again";
            PlanError(format!("{name} = {}: {right}", text(&shown(&name, &twice))))
        })?;
        let value = match &read[..] {
            // A list of one is that, unless it is a list itself.
            [one] if values(&name, one).len() == 1 => one.clone(),
            _ => read.into(),
        };
        all.insert(name, value);
    }
    Ok(all)
}

/// Whether a table of a plan is called so.
fn is_table(name: &str) -> bool {
    TABLES.split(", ").any(|table| table == name)
}

fn check(kind: Kind, name: &str, value: &Value) -> Result<(), PlanError> {
    let is_known = match name.split_once('.') {
        Some(("sim", _)) => SIM.iter().any(|known| known == name),
        Some((table, _)) => is_table(table),
        None => line::key(name).is_some(),
    };
    if !is_known {
        return Err(unknown(kind, name, value));
    }
    if let Some(variable) = name.strip_prefix("env.") {
        check_variable(variable, value).map_err(|wrong| PlanError::of(name, wrong))?;
    }
    match values(name, value).len() {
        0 => Err(PlanError::of(name, "must not be an empty list")),
        2.. if name == "repeats" => {
            Err(PlanError::of(name, "must be one number: it is not varied"))
        }
        2.. if name == "preset" => Err(PlanError::of(name, "must be one name: it is not varied")),
        // It would be in the names of files.
        2.. if shown(name, value) != *value => Err(PlanError::of(
            name,
            "must be one value: a secret is not varied",
        )),
        _ => Ok(()),
    }
}

/// Whether a variable of the environment may stand in a plan: secrets may not, as its files are kept and shown.
fn check_variable(variable: &str, value: &Value) -> Result<(), &'static str> {
    const SECRET: &str = "TOKEN KEY APIKEY SECRET PASS PASSWORD PASSWD CREDENTIALS AUTH HEADERS";
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if variable.is_empty() || !variable.chars().all(is_name) {
        return Err("is no name of a variable, such as env.CUDA_VISIBLE_DEVICES");
    }
    let is_secret = |word: &str| SECRET.split(' ').any(|secret| secret == word);
    if variable.to_ascii_uppercase().split('_').any(is_secret) {
        return Err(
            "looks like a secret, which files of an experiment would show: leave it out and export it, servers inherit the \
             environment",
        );
    }
    let is_plain = |value: &Value| !(value.is_array() || value.is_table() || value.is_datetime());
    match values("", value).iter().all(is_plain) {
        true => Ok(()),
        false => Err("must be a text, a number, true or false"),
    }
}

fn unknown(kind: Kind, name: &str, value: &Value) -> PlanError {
    // It may have a line break in it.
    let shown = name.escape_debug().to_string();
    if is_table(name) {
        let right = format!("is a table; write [{name}] above its keys, or {name}.KEY = VALUE");
        return PlanError::of(name, right);
    }
    if value.is_table() {
        let right = format!("is no key and no table; tables are {TABLES}");
        return PlanError::of(&shown, right);
    }
    let keys = KEYS.iter().map(|key| key.get_id().as_str());
    let all = keys.chain(SIM.iter().map(String::as_str));
    let right = match nearest(name, all) {
        Some(near) => format!("{near} is one"),
        None => format!("`queuescope {} --help-all` names all", kind.name()),
    };
    PlanError::of(&shown, format!("no such key; {right}"))
}

/// Whether it was copied from where a secret was not shown.
fn is_masked(key: &str, value: &Value) -> bool {
    match value {
        Value::Array(all) => all.iter().any(|value| is_masked(key, value)),
        value => secret::is_masked(key, &text(value)),
    }
}

/// A key as TOML has it; of a table's what comes behind its name is one word.
fn quoted(key: &str) -> String {
    let word = |word: &str| {
        let line = Table::from_iter([(word.to_owned(), Value::from(true))]).to_string();
        line.trim_end().trim_end_matches(" = true").to_owned()
    };
    match key.split_once('.') {
        Some((table, rest)) => format!("{}.{}", word(table), word(rest)),
        None => word(key),
    }
}

/// A value without what may be secret.
pub fn shown(key: &str, value: &Value) -> Value {
    match value {
        Value::Array(all) => Value::Array(all.iter().map(|value| shown(key, value)).collect()),
        value => {
            let written = text(value);
            let shown = secret::shown(key, &written);
            match shown == written {
                true => value.clone(),
                false => shown.into(),
            }
        }
    }
}

#[cfg(test)]
mod tests;
