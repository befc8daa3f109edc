//! All keys of an experiment as one command line: its own and the generator's flags, so that each is read once, by clap.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser};
use toml::Value;

use super::error::PlanError;
use super::keys::{Keys, Kind};
use super::read::{self, Entry};
use crate::experiment::faults::{FaultKind, Schedule};
use crate::report::load::Goal;
use crate::traffic::arrival::curve::Curve;
use crate::{config, secret, sim, traffic};

/// The keys of a run, each with one value: as they stand in a plan, and read.
#[derive(Clone, Debug, Parser)]
#[command(name = "queuescope", no_binary_name = true)]
pub struct Settings {
    #[arg(skip)]
    written: BTreeMap<String, Value>,
    /// The experiment's own.
    #[command(flatten)]
    pub keys: Keys,
    /// The generator's.
    #[command(flatten)]
    pub load: traffic::Args,
}

#[derive(Parser)]
#[command(name = "queuescope sim", no_binary_name = true)]
struct Sim {
    #[command(flatten)]
    config: sim::config::Config,
}

/// The keys that were given as flags, in the order in which they were typed.
#[derive(Clone, Debug, Default)]
pub struct KeyFlags(pub Vec<Entry>);

/// Flags of the generator that the experiment gives itself, that mean nothing in one, or (the key) that no file shall hold.
const NOT_OF_PLANS: &str = "api_key base_url host port output_dir force json upstream_kind time_base help version shard start_at";
const NOT_OF_SIM: &str = "host port help version";
/// Defaults that a plan shows, as the manual has them; of the others the generator's own hold.
const SHOWN: &str = "request_rate dataset_name seed";
/// Where the help shows the generator's flags.
const GENERATOR: &str = "Load";
/// Keys that the help shows first.
const COMMON: &str = "engine servers model_path max_running_requests num_gpus router routing_policy repeats request_rate num_prompts";

/// What reads a run's keys, and what reads the table `sim`.
static READS: LazyLock<[Command; 2]> = LazyLock::new(|| [Settings::command(), Sim::command()]);
/// All keys but those of tables, as flags.
pub static KEYS: LazyLock<Vec<Arg>> = LazyLock::new(|| but(&READS[0], NOT_OF_PLANS));
/// Those of the table `sim`.
pub static SIM: LazyLock<Vec<String>> = LazyLock::new(|| {
    let all = but(&READS[1], NOT_OF_SIM).into_iter();
    let name = |arg: Arg| Some(format!("sim.{}", arg.get_long()?.replace('-', "_")));
    all.filter_map(name).collect()
});
/// The experiment's own.
static OWN: LazyLock<Command> = LazyLock::new(|| Keys::augment_args(Command::new("own")));

fn but(command: &Command, not: &str) -> Vec<Arg> {
    let is_key = |arg: &&Arg| arg.get_long().is_some() && !is_one(arg, not);
    command.get_arguments().filter(is_key).cloned().collect()
}

/// Whether an argument is one of these.
fn is_one(arg: &Arg, names: &str) -> bool {
    names.split(' ').any(|name| arg.get_id() == name)
}

/// A key by its name.
pub fn key(name: &str) -> Option<&'static Arg> {
    KEYS.iter().find(|key| key.get_id() == name)
}

/// Whether the value of a key is a list.
pub fn is_list(key: &Arg) -> bool {
    matches!(key.get_action(), ArgAction::Append)
        || key.get_num_args().is_some_and(|n| n.max_values() > 1)
}

/// Whether a key is the experiment's, not the generator's.
pub fn is_own(key: &Arg) -> bool {
    OWN.get_arguments().any(|own| own.get_id() == key.get_id())
}

/// The default of a key that a plan of this kind shows.
pub fn default_of(kind: Kind, key: &Arg) -> Option<Value> {
    match (kind, key.get_id().as_str(), key.get_default_values()) {
        (Kind::Routing, "num_gpus", _) => Some(4.into()),
        (Kind::Routing, "router", _) => Some("builtin".into()),
        (_, _, [default]) if is_own(key) || is_one(key, SHOWN) => {
            Some(read::scalar(&default.to_string_lossy()))
        }
        _ => None,
    }
}

/// What a key may have, and what it has in a plan of this kind where nothing is given.
fn values(kind: Kind, key: &Arg) -> String {
    let own = || Some(key.get_default_values().first()?.to_str()?.to_owned());
    let default = default_of(kind, key).map(|value| text(&value)).or_else(own);
    let default = default.filter(|_| !key.is_hide_default_value_set());
    let mut names = key.get_possible_values();
    names.retain(|name| !name.is_hide_set() && name.get_name().parse::<bool>().is_err());
    let names: Vec<&str> = names.iter().map(|name| name.get_name()).collect();
    let names = Some(names.join(", ")).filter(|names| !names.is_empty());
    let told = |(what, value): (&str, Option<String>)| Some(format!(" [{what}: {}]", value?));
    let all = [("default", default), ("possible values", names)];
    all.into_iter().filter_map(told).collect()
}

/// A key's flag of `queuescope node` and `queuescope routing`, which takes any words: what they mean is known with all others.
fn any(kind: Kind, key: &'static Arg) -> Arg {
    let is_switch = !key.get_action().takes_values();
    let names = key.get_value_names().unwrap_or_default();
    let is_bool = is_switch || names.first().is_some_and(|name| name == "BOOL");
    let is_common = is_one(key, COMMON);
    let heading = key.get_help_heading().filter(|_| is_own(key));
    let values = values(kind, key);
    let told = |help: &StyledStr| format!("{help}{values}");
    let arg = Arg::new(key.get_id()).long(key.get_long().unwrap_or_default());
    let help = key.get_help().cloned().unwrap_or_default();
    let arg = arg
        .help(told(&help))
        .long_help(told(key.get_long_help().unwrap_or(&help)));
    let arg = arg.short(key.get_short());
    let arg = arg.help_heading(heading.or(Some(GENERATOR)).filter(|_| !is_common));
    let arg = arg.hide_short_help(!is_common && !is_own(key));
    let arg = arg.action(ArgAction::Append).allow_negative_numbers(true);
    let arg = arg.allow_hyphen_values(key.is_allow_hyphen_values_set());
    match is_bool {
        true => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("BOOL"),
        false => arg.num_args(1).value_name("VALUE"),
    }
}

/// A key and its value as flags of its own parser.
fn own_flags(key: &Arg, value: &Value) -> Vec<String> {
    let flag = format!("--{}", key.get_long().unwrap_or_default());
    let valued = |value: &Value| format!("{flag}={}", text(value));
    match value {
        Value::Boolean(is_on) if !key.get_action().takes_values() => {
            is_on.then_some(flag).into_iter().collect()
        }
        Value::Array(all) => all.iter().map(valued).collect(),
        // Of the generator's what takes a table takes JSON.
        Value::Table(_) if is_own(key) => vec![format!("{flag}={value}")],
        value => vec![valued(value)],
    }
}

/// A value as its key's reader takes it: a number of the key's own unit, whatever it was written with, so that what is the same is
/// called the same. One that it does not take stays: what is wrong is told of all of a run's.
pub fn as_read(name: &str, value: Value) -> Value {
    let (command, flags, name) = match (key(name), name.split_once('.')) {
        (Some(key), _) => (&READS[0], own_flags(key, &value), name),
        (_, Some(("sim" | "prefill" | "decode", name))) => (&READS[1], flags(name, &value), name),
        (_, Some(("proxy", name))) => {
            let number = config::sections::as_read(name, &value);
            return number.map_or(value, |number| read::scalar(&number.to_string()));
        }
        _ => return value,
    };
    value_of(command.clone(), flags, name, value)
}

/// The value of an argument as its command reads it, given these flags; as it is where it does not.
pub fn value_of(command: Command, flags: Vec<String>, name: &str, value: Value) -> Value {
    let Ok(read) = command.try_get_matches_from(flags) else {
        return value;
    };
    if let Ok(Some(goals)) = read.try_get_many::<Goal>(name) {
        return goals.map(Goal::to_string).collect::<Vec<_>>().into();
    }
    let of_any_type = [
        taken(&read, name, f64::to_string),
        taken(&read, name, |of: &Duration| of.as_secs_f64().to_string()),
        taken(&read, name, i64::to_string),
        taken(&read, name, u32::to_string),
        taken(&read, name, u64::to_string),
        taken(&read, name, usize::to_string),
        taken(&read, name, bool::to_string),
        taken(&read, name, Curve::to_string),
        taken(&read, name, FaultKind::to_string),
        taken(&read, name, Schedule::to_string),
    ];
    of_any_type.into_iter().flatten().next().unwrap_or(value)
}

/// The values of a key, as they were read.
///
/// # Errors
/// The first that is given twice.
pub fn distinct(values: impl Iterator<Item = Value>) -> Result<Vec<Value>, Value> {
    let mut all = Vec::new();
    for value in values {
        if all.contains(&value) {
            return Err(value);
        }
        all.push(value);
    }
    Ok(all)
}

/// The value that was read of an argument, if it is of this type.
fn taken<T: Any + Clone + Send + Sync>(
    read: &ArgMatches,
    name: &str,
    text: fn(&T) -> String,
) -> Option<Value> {
    Some(read::scalar(&text(read.try_get_one(name).ok()??)))
}

impl Settings {
    /// Reads the keys that have a value; those of tables are left to the programs that get them.
    ///
    /// # Errors
    /// The key and what would be right.
    pub fn read(written: BTreeMap<String, Value>) -> Result<Settings, PlanError> {
        let all = written.iter();
        let flags = all.filter_map(|(name, value)| Some(own_flags(key(name)?, value)));
        // What does not go together shows only when all is laid out; what lies in files, when they are read.
        let read = Settings::try_parse_from(flags.flatten()).map_err(|error| usage(&error, ""))?;
        Ok(Settings { written, ..read })
    }

    /// The value of a key as it is written.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.written.get(key)
    }

    /// The same as a text.
    pub fn text(&self, key: &str) -> Option<String> {
        self.get(key).map(text)
    }

    /// The keys of a table, without its name.
    pub fn table(&self, name: &str) -> impl Iterator<Item = Entry> {
        self.written.iter().filter_map(move |(key, value)| {
            let key = key.strip_prefix(name)?.strip_prefix('.')?;
            Some((key.to_owned(), value.clone()))
        })
    }

    /// The objective's limits: `ttft:500`.
    pub fn goodput(&self) -> Vec<String> {
        self.load.goodput.iter().map(Goal::to_string).collect()
    }

    /// The names of all of them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.written.keys().map(String::as_str)
    }
}

impl Args for KeyFlags {
    fn augment_args(command: Command) -> Command {
        let kind = match command.get_name() {
            "routing" => Kind::Routing,
            _ => Kind::Node,
        };
        command.args(KEYS.iter().map(|key| any(kind, key)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KeyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut entries = Vec::new();
        for key in KEYS.iter() {
            let name = key.get_id().as_str();
            let words = matches.get_many::<String>(name).into_iter().flatten();
            let words: Vec<&str> = words.map(String::as_str).collect();
            if !words.is_empty() {
                let value = read::flag(&words, is_list(key), is_own(key));
                entries.push((matches.index_of(name), (name.to_owned(), value)));
            }
        }
        // As they were typed: the last varies fastest.
        entries.sort_by_key(|(at, _)| *at);
        Ok(KeyFlags(
            entries.into_iter().map(|(_, entry)| entry).collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Checks flags of the simulator's; what is wrong is of `table`.
///
/// # Errors
/// The key and what would be right.
pub fn check_sim(flags: &[String], table: &str) -> Result<(), PlanError> {
    let read = Sim::try_parse_from(flags).map(|_| ());
    read.map_err(|error| usage(&error, &format!("{table}.")))
}

/// A key of a table and its value as flags: as SGLang and its router take them, whose parser (Python's argparse) takes all values of
/// a list behind one flag.
pub fn flags(key: &str, value: &Value) -> Vec<String> {
    let flag = format!("--{}", key.replace('_', "-"));
    match value {
        Value::Boolean(true) => vec![flag],
        Value::Boolean(false) => Vec::new(),
        Value::Array(all) => std::iter::once(flag).chain(all.iter().map(text)).collect(),
        value => vec![flag, text(value)],
    }
}

/// A value as a command line has it.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // What takes a table takes JSON.
        Value::Table(_) => serde_json::to_string(value).unwrap_or_default(),
        value => value.to_string(),
    }
}

/// The standard library's words for what is no number, in ours.
fn plain(words: &str) -> String {
    let ours = match words {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "must be a whole number, 0 or more"
        }
        "number too large to fit in target type" => "is too large",
        "invalid socket address syntax" => "must be IP:PORT, as in 127.0.0.1:8801",
        "invalid float literal" | "cannot parse float from empty string" => "must be a number",
        other => other,
    };
    ours.to_owned()
}

/// A value that does not fit: its flag, the value, and what would be right, in our words; `None` where clap's own are good.
pub fn wrong_value(error: &clap::Error) -> Option<(String, String, String)> {
    let shown = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let right = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(names)) if !names.is_empty() => {
            format!("must be one of {}", names.join(", "))
        }
        _ if error.kind() == ErrorKind::TooManyValues => "must be true or false".to_owned(),
        _ => plain(&std::error::Error::source(error)?.to_string()),
    };
    // A value without a flag has its name in angle brackets.
    let flag = shown(ContextKind::InvalidArg)?;
    let flag = flag
        .split([' ', '='])
        .next()?
        .trim_matches(['<', '>', '[', ']']);
    let value = shown(ContextKind::InvalidValue)?;
    let is_told = !value.is_empty() || error.kind() == ErrorKind::ValueValidation;
    is_told.then(|| (flag.to_owned(), value, right))
}

/// The key of a flag, as clap names it.
pub fn key_of(flag: &str) -> String {
    let flag = flag.split([' ', '=']).next().unwrap_or_default();
    flag.trim_start_matches('-').replace('-', "_")
}

/// Clap's error by the key.
pub fn usage(error: &clap::Error, table: &str) -> PlanError {
    let Some((flag, value, right)) = wrong_value(error) else {
        let all = error.to_string();
        // What is missing stands in lines of its own.
        let lines = all.lines().take_while(|line| !line.is_empty());
        let line = lines.map(str::trim).collect::<Vec<&str>>().join(" ");
        return PlanError(line.trim_start_matches("error: ").to_owned());
    };
    let key = key_of(&flag);
    match error.kind() {
        ErrorKind::TooManyValues => PlanError::of(&format!("{table}{key}"), right),
        _ => {
            let value = secret::shown(&key, &value);
            PlanError(format!("{table}{key} = {value}: {right}"))
        }
    }
}
