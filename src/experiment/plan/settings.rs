//! The settings of a run: the experiment's own keys and the generator's flags, read by clap as one command line.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser};
use toml::Value;

use super::grid::{self, Entry, Sweeps};
use super::keys::{ExperimentKind, Keys};
use crate::error::Error;
use crate::report::load::Goal;
use crate::{secret, sim, traffic};

/// The keys of a run, each with one value.
#[derive(Clone, Debug, Parser)]
#[command(name = "queuescope", no_binary_name = true)]
pub struct Settings {
    /// The values as the plan has them.
    #[arg(skip)]
    pub values: BTreeMap<String, Value>,
    /// The experiment's own keys.
    #[command(flatten)]
    pub keys: Keys,
    /// The generator's keys.
    #[command(flatten)]
    pub load: traffic::Args,
}

/// The keys that were given as flags, in the order of the command line.
#[derive(Clone, Debug, Default)]
pub struct KeyFlags(pub Vec<Entry>);

/// Flags of the generator that the experiment sets, that have no effect in one, or (`api_key`) that must not be in a file.
const NOT_OF_PLANS: &str =
    "api_key base_url output_dir force json upstream_kind time_base help version shard start_at";
const NOT_OF_SIM: &str = "host port help version";
/// Flags of the generator whose defaults a plan shows.
const SHOWN: &str = "request_rate dataset_name seed";
/// The heading of the generator's flags in the help.
const GENERATOR: &str = "Load";
/// Keys that the help lists first.
const COMMON: &str = "engine servers model_path max_running_requests num_gpus router routing_policy repeats request_rate num_prompts";

/// The parsers of a run's keys and of the table `sim`.
static PARSERS: LazyLock<[Command; 2]> = LazyLock::new(|| {
    let sim = Command::new("queuescope sim").no_binary_name(true);
    [Settings::command(), sim::config::Config::augment_args(sim)]
});
/// All keys that are not in a table.
pub static KEYS: LazyLock<Vec<Arg>> = LazyLock::new(|| arguments(&PARSERS[0], NOT_OF_PLANS));
/// The keys of the table `sim`.
pub static SIM: LazyLock<Vec<String>> = LazyLock::new(|| {
    let all = arguments(&PARSERS[1], NOT_OF_SIM).into_iter();
    let name = |arg: Arg| Some(format!("sim.{}", arg.get_long()?.replace('-', "_")));
    all.filter_map(name).collect()
});
/// The experiment's own keys.
static OWN: LazyLock<Command> = LazyLock::new(|| Keys::augment_args(Command::new("own")));

fn arguments(command: &Command, excluded: &str) -> Vec<Arg> {
    let is_key = |arg: &&Arg| arg.get_long().is_some() && !is_one_of(arg, excluded);
    command.get_arguments().filter(is_key).cloned().collect()
}

fn is_one_of(arg: &Arg, names: &str) -> bool {
    names.split(' ').any(|name| arg.get_id() == name)
}

/// Finds a key by its name.
pub fn key(name: &str) -> Option<&'static Arg> {
    KEYS.iter().find(|key| key.get_id() == name)
}

/// Whether a key takes a list.
pub fn is_list(key: &Arg) -> bool {
    matches!(key.get_action(), ArgAction::Append)
        || key.get_num_args().is_some_and(|n| n.max_values() > 1)
}

/// Whether a key is the experiment's own, not the generator's.
pub fn is_own(key: &Arg) -> bool {
    OWN.get_arguments().any(|own| own.get_id() == key.get_id())
}

/// The default of a key, if plans of this kind show it.
fn default_of(kind: ExperimentKind, key: &Arg) -> Option<Value> {
    match (kind, key.get_id().as_str(), key.get_default_values()) {
        (ExperimentKind::Routing, "num_gpus", _) => Some(4.into()),
        (ExperimentKind::Routing, "router", _) => Some("builtin".into()),
        (_, _, [default]) if is_own(key) || is_one_of(key, SHOWN) => {
            Some(grid::scalar(&default.to_string_lossy()))
        }
        _ => None,
    }
}

/// The keys that have a default which plans of this kind show.
pub fn defaults(kind: ExperimentKind) -> Sweeps {
    let named = |key: &Arg| Some((key.get_id().to_string(), vec![default_of(kind, key)?]));
    KEYS.iter().filter_map(named).collect()
}

/// The end of a key's help: its default in plans of this kind, and its possible values.
fn help_of_values(kind: ExperimentKind, key: &Arg) -> String {
    let own = || Some(key.get_default_values().first()?.to_str()?.to_owned());
    let default = default_of(kind, key)
        .map(|value| flag_text(&value))
        .or_else(own);
    let default = default.filter(|_| !key.is_hide_default_value_set());
    let mut names = key.get_possible_values();
    names.retain(|name| !name.is_hide_set() && name.get_name().parse::<bool>().is_err());
    let names: Vec<&str> = names.iter().map(|name| name.get_name()).collect();
    let names = Some(names.join(", ")).filter(|names| !names.is_empty());
    let note = |(label, value): (&str, Option<String>)| Some(format!(" [{label}: {}]", value?));
    let all = [("default", default), ("possible values", names)];
    all.into_iter().filter_map(note).collect()
}

/// A key's flag of `queuescope node` and `queuescope routing`. It takes any text, because a value may be a list that is varied; each
/// value is checked with the other settings of its run.
fn plan_flag(kind: ExperimentKind, key: &'static Arg) -> Arg {
    let is_switch = !key.get_action().takes_values();
    let names = key.get_value_names().unwrap_or_default();
    let is_bool = is_switch || names.first().is_some_and(|name| name == "BOOL");
    let is_common = is_one_of(key, COMMON);
    let heading = key.get_help_heading().filter(|_| is_own(key));
    let values = help_of_values(kind, key);
    let with_values = |help: &StyledStr| format!("{help}{values}");
    let help = key.get_help().cloned().unwrap_or_default();
    // Without what it needs of other flags, which may be keys of the file.
    let arg = Arg::new(key.get_id())
        .long(key.get_long().unwrap_or_default())
        .short(key.get_short())
        .allow_hyphen_values(key.is_allow_hyphen_values_set())
        .help(with_values(&help))
        .long_help(with_values(key.get_long_help().unwrap_or(&help)))
        .help_heading(heading.or(Some(GENERATOR)).filter(|_| !is_common))
        // It goes on with a plan that is complete.
        .conflicts_with("resume")
        .hide_short_help(!is_common && !is_own(key))
        .action(ArgAction::Append)
        .allow_negative_numbers(true);
    match is_bool {
        true => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("BOOL"),
        false => arg.num_args(1).value_name("VALUE"),
    }
}

/// Returns the flags that give a key's value to its parser.
fn parser_flags(key: &Arg, value: &Value) -> Vec<String> {
    let flag = format!("--{}", key.get_long().unwrap_or_default());
    let valued = |value: &Value| format!("{flag}={}", flag_text(value));
    match value {
        Value::Boolean(is_on) if !key.get_action().takes_values() => {
            is_on.then_some(flag).into_iter().collect()
        }
        Value::Array(all) => all.iter().map(valued).collect(),
        // A flag of the generator that takes a table takes it as JSON.
        Value::Table(_) if is_own(key) => vec![format!("{flag}={value}")],
        value => vec![valued(value)],
    }
}

/// Returns the first value whose text, or number, is that of one before.
pub fn given_twice(mut values: impl Iterator<Item = Value>) -> Option<Value> {
    let text = |of: &Value| of.as_float().map_or(flag_text(of), |of| of.to_string());
    let mut earlier = HashSet::new();
    values.find(|value| !earlier.insert(text(value)))
}

impl Settings {
    /// Parses the keys; those of tables are left to the programs that get them.
    ///
    /// # Errors
    /// Names the key and what would be valid.
    pub fn read(values: BTreeMap<String, Value>) -> Result<Settings, Error> {
        let all = values.iter();
        let flags = all.filter_map(|(name, value)| Some(parser_flags(key(name)?, value)));
        let parsed =
            Settings::try_parse_from(flags.flatten()).map_err(|error| plan_error(&error, ""))?;
        Ok(Settings { values, ..parsed })
    }

    /// The value of a key as text.
    pub fn text(&self, key: &str) -> Option<String> {
        self.values.get(key).map(flag_text)
    }

    /// The keys of a table, without the table's name.
    pub fn table(&self, name: &str) -> impl Iterator<Item = Entry> {
        self.values.iter().filter_map(move |(key, value)| {
            let key = key.strip_prefix(name)?.strip_prefix('.')?;
            Some((key.to_owned(), value.clone()))
        })
    }

    /// The limits that requests are to keep, such as `ttft:500`.
    pub fn goodput(&self) -> Vec<String> {
        self.load.goodput.iter().map(Goal::to_string).collect()
    }
}

impl Args for KeyFlags {
    fn augment_args(command: Command) -> Command {
        let kind = match command.get_name() {
            "routing" => ExperimentKind::Routing,
            _ => ExperimentKind::Node,
        };
        command.args(KEYS.iter().map(|key| plan_flag(kind, key)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KeyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let entry = |key: &Arg| {
            let name = key.get_id().as_str();
            let texts = matches.get_many::<String>(name)?.map(String::as_str);
            let value = grid::flag_value(&texts.collect::<Vec<_>>(), is_list(key));
            Some((matches.index_of(name), (name.to_owned(), value)))
        };
        let mut entries: Vec<_> = KEYS.iter().filter_map(entry).collect();
        // In the order of the command line, as the last key varies fastest.
        entries.sort_by_key(|(index, _)| *index);
        let entries = entries.into_iter().map(|(_, entry)| entry);
        Ok(KeyFlags(entries.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Checks flags of the simulator, which come from the keys of `table`.
///
/// # Errors
/// Names the key and what would be valid.
pub fn check_sim(flags: &[String], table: &str) -> Result<(), Error> {
    let parsed = PARSERS[1].clone().try_get_matches_from(flags).map(|_| ());
    parsed.map_err(|error| plan_error(&error, &format!("{table}.")))
}

/// Returns a key of a table and its value as flags of SGLang or its router, whose parser (Python's argparse) takes all items of a list
/// behind one flag.
pub fn flags(key: &str, value: &Value) -> Vec<String> {
    let flag = format!("--{}", key.replace('_', "-"));
    match value {
        Value::Boolean(true) => vec![flag],
        Value::Boolean(false) => Vec::new(),
        Value::Array(all) if all.len() == 1 && all[0].is_str() => flags(key, &all[0]),
        Value::Array(all) => std::iter::once(flag)
            .chain(all.iter().map(flag_text))
            .collect(),
        // Behind a blank it would be taken for a flag, and shown though it may be a secret.
        Value::String(text) if text.starts_with('-') => vec![format!("{flag}={text}")],
        value => vec![flag, flag_text(value)],
    }
}

/// Returns a value as it stands on a command line.
pub fn flag_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // A flag that takes a table takes JSON; its keys are sorted, as in labels.
        Value::Table(_) => serde_json::json!(value).to_string(),
        value => value.to_string(),
    }
}

/// Returns the flag, the invalid value and what would be valid; `None` if clap's own message is to be shown.
pub fn invalid_value(error: &clap::Error) -> Option<(String, String, String)> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let hint = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(names)) if !names.is_empty() => {
            format!("must be one of {}", names.join(", "))
        }
        _ if error.kind() == ErrorKind::TooManyValues => "must be true or false".to_owned(),
        _ => std::error::Error::source(error)?.to_string(),
    };
    // Clap puts the name of a positional argument in brackets.
    let flag = context(ContextKind::InvalidArg)?;
    let flag = flag
        .split([' ', '='])
        .next()?
        .trim_matches(['<', '>', '[', ']']);
    let value = context(ContextKind::InvalidValue)?;
    let is_known = !value.is_empty() || error.kind() == ErrorKind::ValueValidation;
    is_known.then(|| (flag.to_owned(), value, hint))
}

/// Returns the key of a flag as clap names it.
pub fn key_of(flag: &str) -> String {
    let flag = flag.split([' ', '=']).next().unwrap_or_default();
    flag.trim_start_matches('-').replace('-', "_")
}

/// Converts clap's error into one that names the key, which is of `table` (`""`, or a name and a point).
pub fn plan_error(error: &clap::Error, table: &str) -> Error {
    let Some((flag, value, hint)) = invalid_value(error) else {
        let all = error.to_string();
        // Clap lists missing arguments in lines of their own.
        let lines = all.lines().take_while(|line| !line.is_empty());
        let line = lines.map(str::trim).collect::<Vec<&str>>().join(" ");
        return Error::usage(line.trim_start_matches("error: ").to_owned());
    };
    let key = key_of(&flag);
    let value = secret::masked(&key, &value);
    Error::usage(format!("{table}{key} = {value}: {hint}"))
}
