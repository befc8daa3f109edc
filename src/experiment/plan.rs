//! What an experiment does: its keys, from file and flags to the settings of each run. Pure.

use std::collections::{BTreeMap, BTreeSet};

use toml::Value;

pub mod deploy;
mod example;
pub mod grid;
pub mod keys;
mod known;
pub mod line;
pub mod presets;
pub mod read;
pub mod settings;
mod shown;
pub mod usage;
pub mod words;

use grid::Sweep;
use keys::Kind;
use read::Entry;
use settings::Settings;
use shown::{quoted, shown, told};
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
/// Tables of further flags, by the program that gets them; and of variables of servers' environments.
const TABLES: [&str; 6] = ["traffic", "sim", "sglang", "sglang_router", "proxy", "env"];

impl Plan {
    /// A plan of `given` keys, over those of the built-in `example` (none where a file was given).
    ///
    /// # Errors
    /// A key that is not known, a value that it does not take, values that do not go together.
    pub fn new(kind: Kind, example: Vec<Entry>, given: Vec<Entry>) -> Result<Plan, Usage> {
        let given = known::known(kind, given)?;
        let (example, notes) = example::fitted(known::known(kind, example)?, &given);
        let mut plan = Plan {
            kind,
            given,
            example,
            notes,
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
        let varied = self.written().into_iter().filter_map(|(key, value)| {
            let values = values(&key, &value);
            (values.len() > 1).then_some(Sweep { key, values })
        });
        varied.collect()
    }

    /// The runs, in order: all settings of the first repeat, then all of the next, so that what changes with time
    /// meets every setting.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    fn grid(&self) -> Result<Vec<Run>, Usage> {
        let sweeps = self.sweeps();
        let combinations = grid::combinations(&sweeps)?;
        let first = self.settings(&combinations[0], 0);
        let first = first.map_err(of_run(&sweeps, &combinations[0]))?;
        let repeats = u32::try_from(first.line.keys.repeats).unwrap_or(1);
        if combinations.len() * repeats as usize > grid::MOST_RUNS {
            let right = format!("must make {} runs at most", grid::MOST_RUNS);
            return Err(Usage::of("repeats", right));
        }
        let mut runs = Vec::new();
        for repeat in 0..repeats {
            for varied in &combinations {
                let settings = self.settings(varied, repeat);
                let settings = settings.and_then(|settings| {
                    deploy::check(self.kind, &settings)?;
                    Ok(settings)
                });
                let settings = settings.map_err(of_run(&sweeps, varied))?;
                runs.push(Run::new(
                    runs.len() + 1,
                    told(&sweeps, varied),
                    repeat,
                    settings,
                ));
            }
        }
        Ok(runs)
    }

    /// Whether the highest rate is searched.
    pub fn is_search(&self) -> bool {
        let value = self.given_value("find_max_rate");
        value.and_then(Value::as_bool).unwrap_or_default()
    }

    /// A search has one setting, and says itself how often and how long each rate is tried.
    fn check_search(&self) -> Result<(), Usage> {
        let sweeps = self.sweeps();
        let wrong = if let Some(Sweep { key, .. }) = sweeps.first() {
            let right = format!("searches with one setting; give {key} one value");
            Usage::of("find_max_rate", right)
        } else if self.runs.len() > 1 {
            let right =
                "a search tries each rate once; leave it out, or raise probe_s for longer trials";
            Usage::of("repeats", right)
        } else if self.given_value("duration").is_some() {
            let right = "a search sets how long each rate is tried; give probe_s in its place";
            Usage::of("duration", right)
        } else {
            return Ok(());
        };
        Err(wrong)
    }

    /// A run of it at rate `rate`, for the search of the highest.
    ///
    /// # Errors
    /// The generator does not take the rate.
    pub fn trial(&self, number: usize, rate: f64, requests: usize) -> Result<Run, Usage> {
        let rate = ("request_rate".to_owned(), Value::Float(rate));
        let count = i64::try_from(requests).unwrap_or(i64::MAX);
        let count = ("num_prompts".to_owned(), Value::Integer(count));
        let settings = self.settings(&[rate.clone(), count], 0)?;
        Ok(Run::new(number, vec![rate], 0, settings))
    }

    /// The keys of a run: defaults, below the example, below presets, below what was given.
    fn settings(&self, varied: &[Entry], repeat: u32) -> Result<Settings, Usage> {
        let one = |(key, value): &Entry| {
            // One value: a list of one is that value.
            let one = values(key, value).into_iter().next();
            (key.clone(), one.unwrap_or_else(|| value.clone()))
        };
        let mut all: BTreeMap<String, Value> = self.defaults().collect();
        let given: BTreeMap<String, Value> = self
            .given
            .iter()
            .map(one)
            .chain(varied.iter().cloned())
            .collect();
        all.extend(self.example.iter().map(one));
        let preset = given.get("preset").and_then(Value::as_str).map(presets::of);
        all.extend(
            preset
                .into_iter()
                .flatten()
                .map(|(key, value)| (key.to_owned(), value)),
        );
        all.extend(given);
        if let Some(Value::Integer(seed)) = all.get_mut("seed") {
            *seed = seed.saturating_add(i64::from(repeat));
        }
        Settings::read(all)
    }

    /// The names of presets that are asked for.
    fn presets(&self) -> Vec<String> {
        let names = self
            .given_value("preset")
            .map(|value| values("preset", value));
        names
            .into_iter()
            .flatten()
            .map(|name| line::text(&name))
            .collect()
    }

    /// What is given, over what the example has; without what a preset sets instead of the example.
    fn written(&self) -> Vec<Entry> {
        let presets = self.presets();
        let by_preset = presets.iter().flat_map(|name| presets::of(name));
        let by_preset: BTreeSet<&str> = by_preset.map(|(key, _)| key).collect();
        let mut all: Vec<Entry> = self.example.clone();
        all.retain(|(key, _)| !by_preset.contains(key.as_str()));
        put(&mut all, &self.given);
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
        let mut all = self.written().into_iter();
        all.any(|(key, value)| shown(&key, &value) != value)
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
        let mut said: BTreeSet<&str> = written.iter().map(|(key, _)| key.as_str()).collect();
        for preset in self.presets() {
            for (key, value) in presets::of(&preset) {
                if self.given.iter().all(|(given, _)| given != key) {
                    said.insert(key);
                    text.push_str(&format!("# {key} = {value} by preset {preset}\n"));
                }
            }
        }
        text.push_str("\n# defaults\n");
        for (key, value) in self
            .defaults()
            .filter(|(key, _)| !said.contains(key.as_str()))
        {
            text.push_str(&format!("{key} = {value}\n"));
        }
        text.push_str("# all other keys of the generator: its own defaults (config in each run's summary.json)\n");
        text
    }

    /// What holds where nothing is given.
    fn defaults(&self) -> impl Iterator<Item = Entry> {
        let (servers, _) = self.kind.defaults();
        line::KEYS.iter().filter_map(move |key| {
            let value = match key.name.as_str() {
                "num_gpus" => Some(servers.into()),
                _ => key.default(),
            };
            Some((key.name.clone(), value?))
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

/// Puts entries over others, each in the place of the one with its key.
pub(super) fn put(all: &mut Vec<Entry>, more: &[Entry]) {
    for (key, value) in more {
        match all.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value.clone(),
            None => all.push((key.clone(), value.clone())),
        }
    }
}

/// Says in which run an error is.
fn of_run<'a>(sweeps: &'a [Sweep], varied: &'a [Entry]) -> impl Fn(Usage) -> Usage + 'a {
    move |error| match varied.is_empty() {
        true => error,
        false => Usage(format!(
            "{error} (in the run with {})",
            grid::label(&told(sweeps, varied))
        )),
    }
}

/// The values of a key that is varied, or the one that it has.
fn values(key: &str, value: &Value) -> Vec<Value> {
    let is_list = line::key(key).is_some_and(line::Key::is_list);
    match value {
        Value::Array(all) if !is_list || all.iter().any(Value::is_array) => all.clone(),
        // A list of one may be written without brackets.
        value if is_list && !value.is_array() => vec![Value::Array(vec![value.clone()])],
        value => vec![value.clone()],
    }
}

#[cfg(test)]
mod tests;
