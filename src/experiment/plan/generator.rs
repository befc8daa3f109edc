//! The generator's flags as keys: `request_rate` is `--request-rate`. Its own parser checks them.

use std::collections::BTreeMap;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, CommandFactory, Parser};
use toml::Value;

use super::usage::Usage;
use crate::{secret, sim, traffic};

/// The generator's command line.
#[derive(Parser)]
#[command(name = "queuescope traffic", no_binary_name = true)]
struct Traffic {
    #[command(flatten)]
    args: traffic::Args,
}

/// The simulator's command line.
#[derive(Parser)]
#[command(name = "queuescope sim", no_binary_name = true)]
struct Sim {
    #[command(flatten)]
    config: sim::config::Config,
}

/// Flags that the experiment gives itself, that mean nothing in one, or (the key) that no file shall hold.
const OWN: [&str; 14] = [
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
    "calibrate",
];
const SIM_OWN: [&str; 4] = ["host", "port", "help", "version"];

/// Defaults of an experiment that are others than the generator's: the manual's, but for its data set, which has to be
/// downloaded.
pub fn defaults() -> [(&'static str, Value); 3] {
    [
        ("request_rate", Value::Float(f64::INFINITY)),
        ("dataset_name", Value::String("random".to_owned())),
        ("seed", Value::Integer(1)),
    ]
}

/// The generator's flags that an experiment takes, by key.
pub fn keys() -> BTreeMap<String, Arg> {
    of(&Traffic::command(), &OWN)
}

/// The simulator's, without their table's name.
pub fn sim_keys() -> BTreeMap<String, Arg> {
    of(&Sim::command(), &SIM_OWN)
}

fn of(command: &clap::Command, own: &[&str]) -> BTreeMap<String, Arg> {
    let named = command.get_arguments().filter_map(|arg| {
        let key = arg.get_long()?.replace('-', "_");
        (!own.contains(&key.as_str())).then(|| (key, arg.clone()))
    });
    named.collect()
}

/// Whether a flag takes several values.
pub fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
        || arg.get_num_args().is_some_and(|n| n.max_values() > 1)
}

/// Reads the generator's flags.
///
/// # Errors
/// The key and what would be right.
pub fn parse(flags: &[String]) -> Result<traffic::Args, Usage> {
    let read = Traffic::try_parse_from(flags).map_err(|error| usage(&error, ""))?;
    // What does not go together shows only when all is laid out; what lies in files, when they are read.
    Ok(read.args)
}

/// Checks the simulator's flags.
///
/// # Errors
/// The key and what would be right.
pub fn check_sim(flags: &[String]) -> Result<(), Usage> {
    let read = Sim::try_parse_from(flags).map_err(|error| usage(&error, "sim."))?;
    let failures = read.config.failures.validate();
    failures.map_err(|error| Usage(format!("[sim] {error}")))
}

/// A key and its value as flags.
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
pub fn plain(words: &str) -> String {
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

/// Clap's error by the key.
fn usage(error: &clap::Error, table: &str) -> Usage {
    let shown = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let right = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(names)) if !names.is_empty() => {
            Some(format!("must be one of {}", names.join(", ")))
        }
        _ => std::error::Error::source(error).map(|why| plain(&why.to_string())),
    };
    let arg = shown(ContextKind::InvalidArg);
    let flag = arg.as_deref().and_then(|arg| arg.split([' ', '=']).next());
    let value = shown(ContextKind::InvalidValue).filter(|value| !value.is_empty());
    match (flag, value, right) {
        (Some(flag), Some(value), Some(right)) => {
            let key = flag.trim_start_matches('-').replace('-', "_");
            let value = secret::shown(&key, &value);
            Usage(format!("{table}{key} = {value}: {right}"))
        }
        _ => {
            let all = error.to_string();
            let line = all.lines().next().unwrap_or_default();
            Usage(line.trim_start_matches("error: ").to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_one_of_the_generators() {
        let keys = keys();
        for (key, value) in defaults() {
            assert!(keys.contains_key(key), "{key}");
            parse(&flags(key, &value)).unwrap();
        }
        assert!(
            is_list(&keys["goodput"])
                && is_list(&keys["header"])
                && !is_list(&keys["request_rate"])
        );
        assert!(!keys.contains_key("output_dir"));
        assert!(sim_keys().contains_key("decode_step_ms"));
    }

    #[test]
    fn a_wrong_value_is_told_by_its_key() {
        let wrong = |key: &str, value: Value| parse(&flags(key, &value)).unwrap_err().to_string();
        assert_eq!(
            wrong("request_rate", Value::Integer(-1)),
            "request_rate = -1: must be a positive number of requests a second, or inf"
        );
        let text = wrong("dataset_name", Value::String("shared".to_owned()));
        assert!(
            text.starts_with("dataset_name = shared: must be one of random,"),
            "{text}"
        );
        let sim = check_sim(&flags("decode_step_ms", &Value::Integer(-4))).unwrap_err();
        let words = "sim.decode_step_ms = -4: must be a number from 0 to 1000000";
        assert_eq!(sim.to_string(), words);
        let sim = check_sim(&flags("dp_size", &Value::String("x".to_owned()))).unwrap_err();
        assert!(sim.to_string().starts_with("sim.dp_size = x: "), "{sim}");
    }
}
