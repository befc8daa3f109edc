//! What an experiment does: its keys, from file and flags to the settings of each run. Pure.

use std::collections::{BTreeMap, BTreeSet};

use clap::Arg;
use toml::Value;

pub mod deploy;
pub mod example;
pub mod flags;
pub mod generator;
pub mod grid;
pub mod keys;
pub mod presets;
pub mod read;
pub mod settings;
mod shown;
pub mod usage;
pub mod words;

use grid::Sweep;
use keys::{KEYS, Key, Kind, TABLES};
use read::Entry;
use settings::Settings;
use shown::{is_masked, quoted, shown, told};
use usage::Usage;

/// A plan that can be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it is about.
    pub kind: Kind,
    /// The keys that were given, in order; a list of values is varied.
    given: Vec<Entry>,
    /// The built-in example's, below those of presets.
    example: Vec<Entry>,
    /// What was changed in it to go with what was given.
    notes: Vec<String>,
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

impl Plan {
    /// A plan of `given` keys, over those of the built-in `example` (none where a file was given).
    ///
    /// # Errors
    /// A key that is not known, a value that it does not take, values that do not go together.
    pub fn new(kind: Kind, example: Vec<Entry>, given: Vec<Entry>) -> Result<Plan, Usage> {
        let generator = generator::keys();
        let given = kind.known(given, &generator)?;
        let example = kind.known(example, &generator)?;
        let fitted = example::fitted(kind, example, &given);
        let plan = Plan {
            kind,
            given,
            example: fitted.entries,
            notes: fitted.notes,
        };
        if plan.is_search() {
            plan.only_settings()?;
            let repeats = plan.given_value("repeats").and_then(Value::as_integer);
            if repeats.is_some_and(|repeats| repeats > 1) {
                let right = "a search tries each rate once; leave it out, or raise probe_s for longer trials";
                return Err(Usage::of("repeats", right));
            }
            if plan.given_value("duration").is_some() {
                let right = "a search sets how long each rate is tried; give probe_s in its place";
                return Err(Usage::of("duration", right));
            }
        }
        for run in plan.runs()? {
            deploy::check(kind, &run.settings)
                .map_err(|error| Usage(format!("{error}{}", of_run(&run))))?;
        }
        Ok(plan)
    }

    /// The keys that vary, in order: those of the file first, as it has them.
    pub fn sweeps(&self) -> Vec<Sweep> {
        let all = self.written();
        let varied = all.into_iter().filter_map(|(key, value)| {
            let values = values(self.kind, &key, value);
            (values.len() > 1).then_some(Sweep { key, values })
        });
        varied.collect()
    }

    /// The runs, in order: all settings of the first repeat, then all of the next, so that what changes with time
    /// meets every setting.
    ///
    /// # Errors
    /// There are too many.
    pub fn runs(&self) -> Result<Vec<Run>, Usage> {
        let sweeps = self.sweeps();
        let combinations = grid::combinations(&sweeps)?;
        let repeats = self
            .given_value("repeats")
            .and_then(|value| value.as_integer());
        let repeats = u32::try_from(repeats.unwrap_or(1)).unwrap_or(1);
        if combinations.len() * repeats as usize > grid::MOST_RUNS {
            let right = format!("must make {} runs at most", grid::MOST_RUNS);
            return Err(Usage::of("repeats", right));
        }
        let mut runs = Vec::new();
        for repeat in 0..repeats {
            for varied in &combinations {
                let told = told(&sweeps, varied);
                let label = grid::label(&told);
                runs.push(Run {
                    dir: grid::folder(runs.len() + 1, &label, repeat),
                    settings: self.settings(varied, repeat),
                    varied: told,
                    label,
                    repeat,
                });
            }
        }
        Ok(runs)
    }

    /// Whether the highest rate is searched.
    pub fn is_search(&self) -> bool {
        let value = self.given_value("find_max_rate");
        value.and_then(Value::as_bool).unwrap_or_default()
    }

    /// The keys of its only run.
    ///
    /// # Errors
    /// Something is varied.
    pub fn only_settings(&self) -> Result<Settings, Usage> {
        match self.sweeps().first() {
            None => Ok(self.settings(&[], 0)),
            Some(sweep) => Err(Usage::of(
                "find_max_rate",
                format!("searches with one setting; give {} one value", sweep.key),
            )),
        }
    }

    /// One run of it as of rate `rate`, for the search of the highest.
    pub fn probe(&self, number: usize, rate: f64, requests: usize) -> Run {
        let varied = vec![("request_rate".to_owned(), Value::Float(rate))];
        let mut settings = self.settings(&varied, 0);
        let count = i64::try_from(requests).unwrap_or(i64::MAX);
        settings.set("num_prompts", Value::Integer(count));
        let label = grid::label(&varied);
        Run {
            dir: grid::folder(number, &label, 0),
            label,
            varied,
            repeat: 0,
            settings,
        }
    }

    /// The keys of a run: defaults, below the example, below presets, below what was given.
    fn settings(&self, varied: &[Entry], repeat: u32) -> Settings {
        let mut settings = Settings::default();
        for key in self.kind.keys() {
            if let Some(value) = key.default() {
                settings.set(&key.name(), value);
            }
        }
        for (key, value) in generator::defaults() {
            settings.set(key, value);
        }
        let is_varied = |key: &str| varied.iter().any(|(varied, _)| varied == key);
        let set = |settings: &mut Settings, entries: &[Entry]| {
            for (key, value) in entries.iter().filter(|(key, _)| !is_varied(key)) {
                // One value: a list of one is that value.
                let one = values(self.kind, key, value.clone()).into_iter().next();
                settings.set(key, one.unwrap_or_else(|| value.clone()));
            }
        };
        set(&mut settings, &self.example);
        set(&mut settings, &self.given);
        for (key, value) in varied {
            settings.set(key, value.clone());
        }
        let is_given = |key: &str| self.given.iter().any(|(given, _)| given == key);
        if let Some(preset) = settings.text("preset") {
            for (key, value) in presets::of(&preset) {
                if !is_given(key) {
                    settings.set(key, value);
                }
            }
        }
        if let Some(seed) = settings.whole("seed") {
            settings.set(
                "seed",
                Value::Integer(seed.saturating_add(i64::from(repeat))),
            );
        }
        settings
    }

    /// What is given, over what the example has; without what a preset sets instead of the example.
    fn written(&self) -> Vec<Entry> {
        let presets = self.given_value("preset").into_iter();
        let presets = presets.flat_map(|value| values(self.kind, "preset", value.clone()));
        let by_preset: BTreeSet<&str> = presets
            .flat_map(|name| presets::of(name.as_str().unwrap_or_default()))
            .map(|(key, _)| key)
            .collect();
        let mut all: Vec<Entry> = Vec::new();
        let example = self
            .example
            .iter()
            .filter(|(key, _)| !by_preset.contains(key.as_str()));
        for (key, value) in example.chain(&self.given) {
            match all.iter_mut().find(|(known, _)| known == key) {
                Some((_, old)) => *old = value.clone(),
                None => all.push((key.clone(), value.clone())),
            }
        }
        all
    }

    /// The keys that were given, by file or flag.
    pub fn given_keys(&self) -> Vec<String> {
        self.given.iter().map(|(key, _)| key.clone()).collect()
    }

    /// What was changed in the built-in example to go with what was given.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn given_value(&self, key: &str) -> Option<&Value> {
        let mut all = self.given.iter().chain(&self.example);
        all.find(|(given, _)| given == key).map(|(_, value)| value)
    }

    /// Whether it says what is not for everybody.
    pub fn holds_secret(&self) -> bool {
        let all = self.written().into_iter();
        all.into_iter()
            .any(|(key, value)| shown(&key, &value) != value)
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
        let written = self.written();
        let mut text = format!("{EXPERIMENT} = \"{}\"\n\n# given\n", self.kind.name());
        for note in &self.notes {
            text.push_str(&format!("# {note}\n"));
        }
        for (key, value) in &written {
            text.push_str(&format!("{} = {}\n", quoted(key), shown(key, value)));
        }
        let presets: Vec<Value> = self.given_value("preset").cloned().into_iter().collect();
        let presets = presets
            .into_iter()
            .flat_map(|value| values(self.kind, "preset", value));
        let mut by_preset = BTreeSet::new();
        for preset in presets {
            let name = preset.as_str().unwrap_or_default().to_owned();
            for (key, value) in presets::of(&name) {
                if self.given.iter().all(|(given, _)| given != key) {
                    by_preset.insert(key);
                    text.push_str(&format!("# {key} = {value} by preset {name}\n"));
                }
            }
        }
        text.push_str("\n# defaults\n");
        for (key, value) in self.defaults() {
            let is_written = written.iter().any(|(known, _)| *known == key);
            if !is_written && !by_preset.contains(key.as_str()) {
                text.push_str(&format!("{key} = {value}\n"));
            }
        }
        text.push_str("# all other keys of the generator: its own defaults (config in each run's summary.json)\n");
        text
    }

    /// What holds where nothing is given.
    fn defaults(&self) -> impl Iterator<Item = Entry> {
        let own = self.kind.keys();
        let own = own.filter_map(|key| Some((key.name(), key.default()?)));
        let more = generator::defaults().map(|(key, value)| (key.to_owned(), value));
        own.chain(more)
    }

    /// The keys in which two plans differ.
    pub fn differs(&self, other: &Plan) -> Vec<String> {
        let all = |plan: &Plan| -> BTreeMap<String, Value> {
            plan.defaults().chain(plan.written()).collect()
        };
        let (ours, theirs) = (all(self), all(other));
        let keys: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
        let differ = keys
            .into_iter()
            .filter(|key| ours.get(*key) != theirs.get(*key));
        let mut differ: Vec<String> = differ.cloned().collect();
        // The same values in another order number the runs otherwise.
        let order = |plan: &Plan| {
            plan.sweeps()
                .into_iter()
                .map(|sweep| sweep.key)
                .collect::<Vec<_>>()
        };
        if differ.is_empty() && order(self) != order(other) {
            differ = order(self);
        }
        differ
    }
}

/// Which run it is, for an error.
fn of_run(run: &Run) -> String {
    match run.varied.is_empty() {
        true => String::new(),
        false => format!(" (in the run with {})", run.label),
    }
}

/// The values of a key that is varied, or the one that it has.
fn values(kind: Kind, key: &str, value: Value) -> Vec<Value> {
    let is_list = kind.is_list(key);
    match value {
        Value::Array(all) if !is_list || all.iter().any(Value::is_array) => all,
        // A list of one may be written without brackets.
        value if is_list && !value.is_array() => vec![Value::Array(vec![value])],
        value => vec![value],
    }
}

/// Whether a variable of the environment may stand in a plan: secrets may not, as its files are kept and shown.
fn check_variable(variable: &str, key: &str, value: &Value) -> Result<(), Usage> {
    const SECRET: [&str; 10] = [
        "TOKEN",
        "KEY",
        "APIKEY",
        "SECRET",
        "PASS",
        "PASSWORD",
        "PASSWD",
        "CREDENTIALS",
        "AUTH",
        "HEADERS",
    ];
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if variable.is_empty() || !variable.chars().all(is_name) {
        return Err(Usage::of(
            key,
            "is no name of a variable, such as env.CUDA_VISIBLE_DEVICES",
        ));
    }
    let upper = variable.to_ascii_uppercase();
    if upper.split('_').any(|word| SECRET.contains(&word)) {
        let right = "looks like a secret, which files of an experiment would show: leave it out and export it, servers \
                     inherit the environment";
        return Err(Usage::of(key, right));
    }
    let all = value
        .as_array()
        .map_or(std::slice::from_ref(value), Vec::as_slice);
    let is_plain = |value: &Value| !(value.is_array() || value.is_table() || value.is_datetime());
    match !all.is_empty() && all.iter().all(is_plain) {
        true => Ok(()),
        false => Err(Usage::of(key, "must be a text, a number, true or false")),
    }
}

impl Kind {
    fn is_list(self, key: &str) -> bool {
        match self.key(key) {
            Some(key) => key.takes.is_list(),
            None => generator::keys().get(key).is_some_and(generator::is_list),
        }
    }

    /// The entries by their keys' own names, if all are known and take their values.
    fn known(
        self,
        entries: Vec<Entry>,
        generator: &BTreeMap<String, Arg>,
    ) -> Result<Vec<Entry>, Usage> {
        let mut all: Vec<Entry> = Vec::new();
        for (name, value) in entries {
            if name == EXPERIMENT {
                self.is_meant(&value)?;
                continue;
            }
            let key = match name.strip_prefix("traffic.") {
                Some(key) if self.key(key).is_none() => key.to_owned(),
                _ => name.clone(),
            };
            self.check(&key, &value, generator)?;
            if is_masked(&key, &value) {
                let wrong = format!(
                    "{} stands for what was not shown; give it again",
                    crate::secret::MASK
                );
                return Err(Usage::of(&name, wrong));
            }
            if all.iter().any(|(known, _)| *known == key) {
                return Err(Usage::of(&name, "is given twice"));
            }
            all.push((key, value));
        }
        Ok(all)
    }

    fn is_meant(self, value: &Value) -> Result<(), Usage> {
        match value.as_str() {
            Some(name) if name == self.name() => Ok(()),
            _ => {
                let right = format!(
                    "this is queuescope {}; queuescope node and queuescope routing are two commands",
                    self.name()
                );
                Err(Usage(format!("{EXPERIMENT} = {value}: {right}")))
            }
        }
    }

    fn check(
        self,
        name: &str,
        value: &Value,
        generator: &BTreeMap<String, Arg>,
    ) -> Result<(), Usage> {
        if let Some(key) = self.key(name) {
            return self.check_values(key, value);
        }
        let is_known = match name.split_once('.') {
            Some(("sim", flag)) => generator::sim_keys().contains_key(flag),
            Some(("env", variable)) => return check_variable(variable, name, value),
            Some((table, _)) => ["sglang", "sglang_router", "proxy"].contains(&table),
            None => generator.contains_key(name),
        };
        if !is_known {
            return Err(self.unknown(name, value, generator));
        }
        match value {
            Value::Array(all) if all.is_empty() => {
                Err(Usage::of(name, "must not be an empty list"))
            }
            Value::Datetime(_) => Err(Usage(format!(
                "{name} = {value}: must be a number, a text, true or false"
            ))),
            _ => Ok(()),
        }
    }

    fn check_values(self, key: &Key, value: &Value) -> Result<(), Usage> {
        let name = key.name();
        let all = values(self, &name, value.clone());
        if all.is_empty() {
            return Err(Usage::of(&name, "must not be an empty list"));
        }
        if name == "repeats" && all.len() > 1 {
            return Err(Usage::of(&name, "must be one number: it is not varied"));
        }
        for one in all {
            let wrong = |right| Usage(format!("{name} = {one}: {right}"));
            key.takes.check(&one).map_err(wrong)?;
        }
        Ok(())
    }

    fn unknown(self, name: &str, value: &Value, generator: &BTreeMap<String, Arg>) -> Usage {
        if KEYS.iter().any(|key| key.name() == name) {
            return Usage::of(
                name,
                format!("is a key of queuescope routing, not of {}", self.name()),
            );
        }
        if value.is_table() && !TABLES.contains(&name) {
            let right = format!("is no key and no table; tables are {}", TABLES.join(", "));
            return Usage::of(name, right);
        }
        let sim = generator::sim_keys();
        let known: Vec<String> = match name.split_once('.') {
            Some(_) => sim.keys().map(|key| format!("sim.{key}")).collect(),
            None => self
                .keys()
                .map(Key::name)
                .chain(generator.keys().cloned())
                .collect(),
        };
        let near = known
            .iter()
            .map(|known| (strsim::levenshtein(name, known), known))
            .min();
        match near.filter(|(distance, _)| *distance <= 1 + name.len() / 4) {
            Some((_, near)) => Usage::of(name, format!("no such key; {near} is one")),
            None => Usage::of(
                name,
                format!("no such key; `queuescope {} --help` names all", self.name()),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
