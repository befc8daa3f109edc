//! All keys of an experiment as one command line: its own and the generator's flags, so that each is read once, by clap.

use std::sync::LazyLock;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser};
use toml::Value;

use super::keys::Keys;
use super::read::{self, Entry};
use super::usage::Usage;
use crate::{secret, sim, traffic};

/// The keys of a run.
#[derive(Clone, Debug, Parser)]
#[command(name = "queuescope", no_binary_name = true)]
pub struct Line {
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

/// A key of an experiment.
#[derive(Debug)]
pub struct Key {
    /// Its name in a plan.
    pub name: String,
    arg: Arg,
    /// Whether it is the experiment's, not the generator's.
    is_own: bool,
}

/// The keys that were given as flags, in the order in which they were typed.
#[derive(Clone, Debug, Default)]
pub struct KeyFlags(pub Vec<Entry>);

/// Flags of the generator that the experiment gives itself, that mean nothing in one, or (the key) that no file shall hold.
const NOT_OF_PLANS: [&str; 13] = [
    "save_workload",
    "api_key",
    "base_url",
    "host",
    "port",
    "output_dir",
    "force",
    "upstream_kind",
    "time_base",
    "help",
    "version",
    "shard",
    "start_at",
];
const NOT_OF_SIM: [&str; 4] = ["host", "port", "help", "version"];
/// Defaults that a plan shows, as the manual has them; of the others the generator's own hold.
const SHOWN: [&str; 3] = ["request_rate", "dataset_name", "seed"];
/// Where the help shows the generator's flags.
const GENERATOR: &str = "Load (queuescope traffic --help says more)";

/// All keys but those of tables.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let own = Keys::augment_args(Command::new("own"));
    let is_own = |arg: &Arg| own.get_arguments().any(|own| own.get_id() == arg.get_id());
    let all = named(&Line::command(), &NOT_OF_PLANS);
    let keys = all.into_iter().map(|(name, arg)| Key {
        is_own: is_own(&arg),
        name,
        arg,
    });
    keys.collect()
});
/// Those of the table `sim`.
pub static SIM: LazyLock<Vec<String>> = LazyLock::new(|| {
    let all = named(&Sim::command(), &NOT_OF_SIM).into_iter();
    all.map(|(name, _)| format!("sim.{name}")).collect()
});

fn named(command: &Command, but: &[&str]) -> Vec<(String, Arg)> {
    let named = command.get_arguments().filter_map(|arg| {
        let key = arg.get_long()?.replace('-', "_");
        (!but.contains(&key.as_str())).then(|| (key, arg.clone()))
    });
    named.collect()
}

/// A key by its name.
pub fn key(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

impl Key {
    /// Whether its value is a list.
    pub fn is_list(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
            || self.arg.get_num_args().is_some_and(|n| n.max_values() > 1)
    }

    /// Whether it is one of the generator's.
    pub fn is_of_load(&self) -> bool {
        !self.is_own
    }

    /// Where the help shows it.
    pub fn heading(&self) -> &str {
        self.arg.get_help_heading().unwrap_or_default()
    }

    /// The default that a plan shows.
    pub fn default(&self) -> Option<Value> {
        let is_shown = self.is_own || SHOWN.contains(&self.name.as_str());
        let [default] = self.arg.get_default_values() else {
            return None;
        };
        is_shown.then(|| read::scalar(&default.to_string_lossy()))
    }

    /// It and its value as flags.
    fn flags(&self, value: &Value) -> Vec<String> {
        let flag = format!("--{}", self.name.replace('_', "-"));
        let valued = |value: &Value| format!("{flag}={}", text(value));
        match value {
            Value::Boolean(is_on) if !self.arg.get_action().takes_values() => {
                is_on.then(|| flag.clone()).into_iter().collect()
            }
            Value::Array(all) => all.iter().map(valued).collect(),
            value => vec![valued(value)],
        }
    }

    /// Its flag of `queuescope node` and `queuescope routing`, which takes any words: what they mean is known with all others.
    fn any(&'static self) -> Arg {
        let is_switch = !self.arg.get_action().takes_values();
        let is_bool = self
            .arg
            .get_value_names()
            .is_some_and(|names| names[0] == "BOOL");
        let help = self
            .arg
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let help = match self.arg.get_default_values() {
            [default] if !is_switch && !help.contains("[default: ") => {
                format!("{help} [default: {}]", default.to_string_lossy())
            }
            // It says so itself.
            _ => help,
        };
        let heading = if self.is_own {
            self.heading()
        } else {
            GENERATOR
        };
        let flag = self.arg.get_long().unwrap_or_default();
        let arg = Arg::new(self.name.as_str()).long(flag);
        let arg = arg.help(help).help_heading(heading);
        let arg = arg.action(ArgAction::Append).allow_negative_numbers(true);
        let arg = arg.allow_hyphen_values(self.arg.is_allow_hyphen_values_set());
        match is_switch || is_bool {
            true => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_name("BOOL"),
            false => arg.num_args(1).value_name("VALUE"),
        }
    }
}

impl Line {
    /// Reads the keys of a run; those of tables are passed over.
    ///
    /// # Errors
    /// The key and what would be right.
    pub fn parse<'a>(
        entries: impl Iterator<Item = (&'a String, &'a Value)>,
    ) -> Result<Line, Usage> {
        let flags = entries.filter_map(|(name, value)| Some(key(name)?.flags(value)));
        // What does not go together shows only when all is laid out; what lies in files, when they are read.
        Line::try_parse_from(flags.flatten()).map_err(|error| usage(&error, ""))
    }
}

impl Args for KeyFlags {
    fn augment_args(command: Command) -> Command {
        command.args(KEYS.iter().map(Key::any))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KeyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut entries = Vec::new();
        for key in KEYS.iter() {
            if matches.value_source(&key.name) != Some(ValueSource::CommandLine) {
                continue;
            }
            let words = matches.get_many::<String>(&key.name).into_iter().flatten();
            let words: Vec<&str> = words.map(String::as_str).collect();
            let value = read::flag(&words, key.is_list(), key.is_own);
            entries.push((matches.index_of(&key.name), (key.name.clone(), value)));
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

/// Checks the simulator's flags.
///
/// # Errors
/// The key and what would be right.
pub fn check_sim(flags: &[String]) -> Result<(), Usage> {
    let read = Sim::try_parse_from(flags).map_err(|error| usage(&error, "sim."))?;
    let checked = read.config.failures.validate();
    checked.map_err(|error| Usage(format!("[sim] {error}")))
}

/// A key of a table and its value as flags.
pub fn flags(key: &str, value: &Value) -> Vec<String> {
    let flag = format!("--{}", key.replace('_', "-"));
    match value {
        Value::Boolean(true) => vec![flag],
        Value::Boolean(false) => Vec::new(),
        Value::Array(all) => {
            let pairs = all.iter().flat_map(|value| [flag.clone(), text(value)]);
            pairs.collect()
        }
        value => vec![flag, text(value)],
    }
}

/// The same for SGLang and its router, whose parser (Python's argparse) takes all values of a list behind one flag and
/// of a flag that is repeated only the last.
pub fn flags_of_python(key: &str, value: &Value) -> Vec<String> {
    match value {
        Value::Array(all) => {
            let flag = format!("--{}", key.replace('_', "-"));
            std::iter::once(flag).chain(all.iter().map(text)).collect()
        }
        value => flags(key, value),
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
    let flag = flag.split([' ', '=']).next()?.trim_matches(['<', '>']);
    let value = shown(ContextKind::InvalidValue)?;
    let is_told = !value.is_empty() || error.kind() == ErrorKind::ValueValidation;
    is_told.then(|| (flag.to_owned(), value, right))
}

/// Clap's error by the key.
fn usage(error: &clap::Error, table: &str) -> Usage {
    let Some((flag, value, right)) = wrong_value(error) else {
        let all = error.to_string();
        let line = all.lines().next().unwrap_or_default();
        return Usage(line.trim_start_matches("error: ").to_owned());
    };
    let key = flag.trim_start_matches('-').replace('-', "_");
    match error.kind() {
        ErrorKind::TooManyValues => Usage::of(&format!("{table}{key}"), right),
        _ => {
            let value = secret::shown(&key, &value);
            Usage(format!("{table}{key} = {value}: {right}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_vary_as_they_were_typed() {
        let line = "x --request-rate 5,inf --num-gpus=2 --routing-policy random --routing-policy round_robin --flush-cache \
                    --goodput ttft:500 --goodput e2el:5000 --enable-metrics=false";
        let command = KeyFlags::augment_args(Command::new("x"));
        let matches = command.get_matches_from(line.split_whitespace());
        let entries = KeyFlags::from_arg_matches(&matches).unwrap().0;
        let lines = entries
            .iter()
            .map(|(key, value)| format!("{key} = {value}\n"));
        assert_eq!(
            lines.collect::<String>(),
            "request_rate = [5, inf]\nnum_gpus = 2\nrouting_policy = [\"random\", \"round_robin\"]\nflush_cache = true\n\
             goodput = [\"ttft:500\", \"e2el:5000\"]\nenable_metrics = false\n"
        );
    }
}
