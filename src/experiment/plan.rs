//! An experiment's plan: keys from a file and flags, expanded into the settings of each run. Does no IO.

use std::collections::BTreeMap;

use anyhow::{anyhow, bail, ensure};
use toml::{Table, Value};

pub mod deploy;
pub mod grid;
pub mod keys;
pub mod settings;

use grid::{Entry, Sweep, Sweeps};
use keys::{ExperimentKind, PRESETS};
use settings::{KEYS, SIM, Settings, flag_text};

use crate::config::sections::{SECTIONS, nearest};
use crate::error::Error;
use crate::experiment::launch::EngineName;
use crate::secret;

/// A valid plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `node` or `routing`.
    pub kind: ExperimentKind,
    /// Its keys: those of the built-in example, overridden by the given ones.
    keys: Sweeps,
    /// The keys that have a default which a plan shows.
    pub defaults: Sweeps,
    /// The names of the keys that a file or flags gave.
    pub given: Vec<String>,
    /// The runs in order, at least one: all settings of the first repeat, then all of the second, and so on, so that a drift over time
    /// affects every setting alike.
    pub runs: Vec<Run>,
}

/// One run of a plan.
#[derive(Clone, Debug)]
pub struct Run {
    /// The name of its folder.
    pub dir: String,
    /// Its varied keys and their values as text, such as `request_rate=5`.
    pub label: String,
    /// The varied keys with this run's values.
    pub varied: Vec<Entry>,
    /// The index of its repeat, from 0.
    pub repeat: u32,
    /// The values of all keys.
    pub settings: Settings,
}

/// The key of a plan's file that holds its kind.
pub(super) const EXPERIMENT: &str = "experiment";
/// The last line of a plan that is written: a file without it was cut.
pub(super) const LAST_LINE: &str =
    "# all other keys of the generator: its own defaults (config in each run's summary.json)";
/// The hint where a key is none of the simulator's.
const SIM_HELP: &str = "`queuescope sim --help` names its flags, with _ for - here";
/// The tables of a plan: further flags, named by the program that gets them or by the role of a pair's server; and environment
/// variables of servers.
const TABLES: &str = "sim, sglang, prefill, decode, sglang_router, proxy, env";

/// Keys of the built-in example that fit only our own balancer: in front of another router, the wait in our front's queue would be
/// taken for the router's.
const OF_BUILTIN: [&str; 2] = ["hops", "proxy.max_concurrent_requests"];

impl Plan {
    /// Makes a plan of the `given` keys, which override those of the built-in `example` (empty if there is a file).
    ///
    /// # Errors
    /// A key is unknown, a value is invalid, or values contradict each other.
    pub fn new(
        kind: ExperimentKind,
        example: impl IntoIterator<Item = Entry>,
        given: impl IntoIterator<Item = Entry>,
    ) -> Result<Plan, Error> {
        let mut given = checked(kind, given).map_err(Error::usage)?;
        let is_preset = |(name, _): &&(&str, _)| has(&given, "preset", |text| text == *name);
        if let Some((_, keys)) = PRESETS.iter().find(is_preset) {
            for (key, value) in grid::file(keys)? {
                given.entry(key).or_insert(vec![value]);
            }
        }
        let mut keys = checked(kind, example).map_err(Error::usage)?;
        let mut defaults = settings::defaults(kind);
        // Then it says when requests are sent.
        if given.contains_key("rate_curve") || has(&given, "arrival", |text| text == "trace") {
            keys.remove("request_rate");
            defaults.remove("request_rate");
        }
        let is_search = has(&given, "find_max_rate", |text| text == "true");
        // It sets how many requests are sent, and begins at a rate of its own.
        if is_search {
            keys.remove("num_prompts");
            defaults.remove("request_rate");
        }
        // Then the example's groups of prompts have no effect.
        let is_shared = |text: &str| text == "generated-shared-prefix";
        if given.contains_key("dataset_name") && !has(&given, "dataset_name", is_shared) {
            keys.retain(|key, _| !key.starts_with("gsp_"));
        }
        let has_pairs = has(&given, "num_prefill", |text| text != "0");
        if has_pairs {
            defaults.insert("router".to_owned(), vec!["sglang-router".into()]);
        }
        let has_other_router = has_pairs || has(&given, "router", |text| text != "builtin");
        let is_external = has(&given, "engine", |text| text == "external");
        // A search takes one setting. The example's sweeps are of our own servers and balancer. Keys of started servers mean nothing to
        // servers that run already.
        keys.retain(|key, values| {
            let drops_sweep = is_search || has_other_router;
            let is_of_builtin = has_other_router && OF_BUILTIN.contains(&key);
            let is_idle = is_external && deploy::is_idle(EngineName::External, key);
            !(drops_sweep && values.len() > 1 || is_of_builtin || is_idle)
        });
        keys.extend(given.clone());
        let mut plan = Plan {
            kind,
            keys,
            defaults,
            given: given.keys().cloned().collect(),
            runs: Vec::new(),
        };
        plan.runs = plan.expand()?;
        plan.check_data_keys()?;
        if plan.is_search() {
            plan.check_search().map_err(Error::usage)?;
        }
        Ok(plan)
    }

    /// The varied keys, in the order of the file and then of the flags.
    pub fn sweeps(&self) -> Vec<Sweep> {
        let varied = self.keys.clone().into_iter();
        varied.filter(|(_, values)| values.len() > 1).collect()
    }

    fn expand(&self) -> Result<Vec<Run>, Error> {
        let repeats = self.run_settings(&[])?.keys.repeats;
        let combinations = grid::combinations(&self.sweeps(), repeats)?;
        let mut runs = Vec::new();
        for repeat in 0..repeats {
            for varied in &combinations {
                let mut settings = self.run_settings(varied)?;
                let seed = &mut settings.load.seed;
                *seed = seed.saturating_add(repeat.into());
                runs.push(Run::new(runs.len() + 1, varied.clone(), repeat, settings));
            }
        }
        Ok(runs)
    }

    /// Checks that each key of a data set has an effect in at least one run.
    fn check_data_keys(&self) -> Result<(), Error> {
        let mut runs = self.runs.iter().map(|run| run.settings.load.idle_flags());
        let mut idle = runs.next().unwrap_or_default();
        runs.for_each(|of_run| idle.retain(|flag| of_run.contains(flag)));
        idle.pop().map_or(Ok(()), |flag| Err(Error::usage(flag)))
    }

    /// Whether the plan searches for the highest request rate.
    pub fn is_search(&self) -> bool {
        self.runs[0].settings.keys.find_max_rate
    }

    /// Checks that a search has one setting and leaves it to the search how often and how long each rate is tried.
    fn check_search(&self) -> anyhow::Result<()> {
        if let Some((key, _)) = self.sweeps().first() {
            bail!("find_max_rate: searches with one setting; give {key} one value");
        }
        ensure!(
            self.runs.len() == 1,
            "repeats: a search tries each rate once; leave it out, or raise probe_s for longer trials"
        );
        ensure!(
            !has(&self.keys, "request_rate", |text| text == "inf"),
            "request_rate = inf: a search begins at this rate; give a number, or leave it out"
        );
        let mut keys = self.keys.keys();
        let is_set =
            |key: &&String| ["num_prompts", "duration", "rate_curve"].contains(&key.as_str());
        match keys.find(is_set) {
            Some(key) => bail!(
                "{key}: a search sets what is sent; leave it out (probe_s is the length of a trial)"
            ),
            None => Ok(()),
        }
    }

    /// Returns the search's run at `rate` requests a second.
    ///
    /// # Errors
    /// The generator refuses the rate.
    pub fn trial(&self, number: usize, rate: f64, requests: usize) -> Result<Run, Error> {
        let rate = ("request_rate".to_owned(), Value::Float(rate));
        let count = ("num_prompts".to_owned(), Value::Integer(requests as i64));
        let settings = self.run_settings(&[rate.clone(), count])?;
        Ok(Run::new(number, vec![rate], 0, settings))
    }

    /// Returns the checked settings of a run: `varied` over the plan's keys over the defaults.
    fn run_settings(&self, varied: &[Entry]) -> Result<Settings, Error> {
        let first = |(key, values): (&String, &Vec<Value>)| (key.clone(), values[0].clone());
        let own = self.defaults.iter().chain(&self.keys).map(first);
        let all: BTreeMap<String, Value> = own.chain(varied.iter().cloned()).collect();
        let settings = Settings::read(all)?;
        deploy::check(&settings).map_err(Error::usage)?;
        Ok(settings)
    }

    /// Returns every key with its value as a file that makes the same plan again.
    pub fn to_toml(&self) -> String {
        self.render(|_, value| value.clone())
    }

    /// Returns the same with secrets masked.
    pub fn to_text(&self) -> String {
        self.render(masked)
    }

    fn render(&self, shown: fn(&str, &Value) -> Value) -> String {
        let line = |(key, values): (&String, &Vec<Value>)| {
            let value = match &values[..] {
                [value] if alternatives(key, value) == *values => shown(key, value),
                // Also of one value that is a list, which would be read as several.
                all => shown(key, &all.to_vec().into()),
            };
            format!("{} = {value}\n", toml_key(key))
        };
        let given: String = self.keys.iter().map(line).collect();
        let defaults = self.defaults.iter();
        let defaults = defaults.filter(|(key, _)| !self.keys.contains_key(*key));
        let defaults: String = defaults.map(line).collect();
        let kind = self.kind.name();
        format!(
            "{EXPERIMENT} = \"{kind}\"\n\n# given\n{given}\n# defaults\n{defaults}{LAST_LINE}\n"
        )
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

/// Whether a key has such a value, as text.
fn has(all: &Sweeps, key: &str, is_such: impl Fn(&str) -> bool) -> bool {
    let mut values = all.get(key).into_iter().flatten();
    values.any(|value| is_such(&flag_text(value)))
}

/// Returns the values that a varied key takes in turn, or its only value.
fn alternatives(key: &str, value: &Value) -> Vec<Value> {
    let is_list = match key.strip_prefix("proxy.") {
        Some(key) => takes_list(key),
        None => settings::key(key).is_some_and(settings::is_list),
    };
    match value {
        Value::Array(all) if !is_list || all.iter().any(Value::is_array) => all.clone(),
        // A list with one item may be written without brackets.
        value if is_list && !value.is_array() => vec![Value::Array(vec![value.clone()])],
        value => vec![value.clone()],
    }
}

/// Whether a key of the proxy's config takes a list. In a plan, keys of other sections than `[proxy]` begin with the section's name.
fn takes_list(key: &str) -> bool {
    let (section, key) = key.rsplit_once('.').unwrap_or(("proxy", key));
    let mut sections = SECTIONS.iter().filter(|of| of.name == section);
    sections.any(|of| of.takes_list(key))
}

/// Checks entries one by one. Whether values are valid shows with all settings of a run.
///
/// # Errors
/// Names the key and the problem: it is unknown, or given twice.
pub(super) fn checked(
    kind: ExperimentKind,
    entries: impl IntoIterator<Item = Entry>,
) -> anyhow::Result<Sweeps> {
    let mut all = Sweeps::new();
    for (name, value) in entries {
        if name == EXPERIMENT {
            let name = kind.name();
            ensure!(
                value.as_str() == Some(name),
                "{EXPERIMENT} = {value}: this is queuescope {name}; queuescope node and queuescope routing are two commands"
            );
            continue;
        }
        ensure!(is_key(&name), unknown_key(kind, &name, &value));
        let values = alternatives(&name, &value);
        check_values(&name, &values).map_err(|problem| anyhow!("{name}: {problem}"))?;
        ensure!(
            !is_masked(&name, &value),
            "{name}: {} is in place of a hidden value; give the value itself",
            secret::MASK
        );
        ensure!(
            !all.contains_key(&name),
            "{name}: is given twice; give it once, by its flag or by --set"
        );
        if let Some(twice) = settings::given_twice(values.iter().cloned()) {
            let value = flag_text(&masked(&name, &twice));
            bail!("{name} = {value}: is given twice; repeats = 2 does each setting again");
        }
        all.insert(name, values);
    }
    Ok(all)
}

/// Whether a list for one flag of a program has an item that its parser would take for another flag.
fn has_flag(value: &Value) -> bool {
    let items = value.as_array().filter(|items| items.len() > 1);
    let mut texts = items.into_iter().flatten().filter_map(Value::as_str);
    texts.any(|text| text.starts_with('-'))
}

/// Whether `name` is a table of a plan.
fn is_table(name: &str) -> bool {
    TABLES.split(", ").any(|table| table == name)
}

/// Whether `name` is a key of a plan. Those of the programs' tables are theirs to check, but for the simulator's.
fn is_key(name: &str) -> bool {
    match name.split_once('.') {
        Some(("sim", _)) => SIM.iter().any(|known| known == name),
        Some((table, _)) => is_table(table),
        None => settings::key(name).is_some(),
    }
}

/// Checks what can be said of a key's values without its parser.
fn check_values(name: &str, values: &[Value]) -> Result<(), &'static str> {
    if let Some(variable) = name.strip_prefix("env.") {
        check_variable(variable, values)?;
    }
    let is_secret = |value: &Value| masked(name, value) != *value;
    let is_scalar = settings::key(name).is_some_and(|key| !settings::is_list(key));
    Err(match values.len() {
        0 => "must not be an empty list",
        // Of the proxy it is a key of its file; what has no table is given as --flag=ITEM.
        _ if name.contains('.') && !name.starts_with("proxy.") && values.iter().any(has_flag) => {
            "an item that begins with - would be taken for a flag; give it alone, or without -"
        }
        _ if is_scalar && values.iter().any(Value::is_array) => {
            "takes no list; [1, 2] varies it, without further brackets"
        }
        2.. if name == "repeats" => "must be one number: it is not varied",
        2.. if name == "preset" => "must be one name: it is not varied",
        // It would be part of folder names.
        2.. if values.iter().any(is_secret) => "must be one value: a secret is not varied",
        _ => return Ok(()),
    })
}

/// Checks an environment variable of a plan. Secrets are refused, as the files of an experiment show them.
fn check_variable(variable: &str, values: &[Value]) -> Result<(), &'static str> {
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
    match values.iter().all(is_plain) {
        true => Ok(()),
        false => Err("must be a text, a number, true or false"),
    }
}

/// The error of a key that there is not.
fn unknown_key(kind: ExperimentKind, name: &str, value: &Value) -> String {
    // It may contain a line break.
    let shown = name.escape_debug();
    let keys = KEYS.iter().map(|key| key.get_id().as_str());
    let all = keys.chain(SIM.iter().map(String::as_str));
    let hint = match nearest(name, all) {
        _ if is_table(name) || value.is_table() => {
            format!("tables (write [sim] above its keys) are {TABLES}")
        }
        Some(near) => format!("{near} is one"),
        None if name.starts_with("sim.") => SIM_HELP.to_owned(),
        None => format!("`queuescope {} --help-all` names all", kind.name()),
    };
    format!("{shown}: no such key; {hint}")
}

/// Whether the value is the mask that stood for a secret where it was copied from.
fn is_masked(key: &str, value: &Value) -> bool {
    match value {
        Value::Array(all) => all.iter().any(|value| is_masked(key, value)),
        value => secret::is_masked(key, &flag_text(value)),
    }
}

/// Quotes a key for TOML. In a table's key, all behind the table's name is one word.
fn toml_key(key: &str) -> String {
    let word = |word: &str| {
        let line = Table::from_iter([(word.to_owned(), Value::from(true))]).to_string();
        line.trim_end().trim_end_matches(" = true").to_owned()
    };
    match key.split_once('.') {
        Some((table, rest)) => format!("{}.{}", word(table), word(rest)),
        None => word(key),
    }
}

/// Returns the value with secrets masked.
pub fn masked(key: &str, value: &Value) -> Value {
    match value {
        Value::Array(all) => Value::Array(all.iter().map(|value| masked(key, value)).collect()),
        value => {
            let plain = flag_text(value);
            let shown = secret::masked(key, &plain);
            match shown == plain {
                true => value.clone(),
                false => shown.into(),
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
