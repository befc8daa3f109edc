//! The keys as flags of `queuescope node` and `queuescope routing`.

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::generator;
use super::keys::{Kind, Takes};
use super::read::{self, Entry};

/// The keys that were given as flags.
#[derive(Clone, Debug, Default)]
pub struct KeyFlags<const ROUTING: bool>(pub Vec<Entry>);

/// Where the help shows the generator's flags.
const GENERATOR: &str = "Load (queuescope traffic --help says more)";

impl<const ROUTING: bool> KeyFlags<ROUTING> {
    const KIND: Kind = if ROUTING { Kind::Routing } else { Kind::Node };

    /// The flags of this table's keys and of the generator's.
    fn args() -> impl Iterator<Item = Arg> {
        let own = Self::KIND.keys().map(|key| {
            let default = key
                .default
                .map(|default| format!(" [default: {}]", default.trim_matches('"')));
            let arg = Arg::new(key.flag)
                .long(key.flag)
                .help(format!("{}{}", key.help, default.unwrap_or_default()))
                .help_heading(key.group);
            valued(arg, matches!(key.takes, Takes::Flag))
        });
        let generator = generator::keys().into_iter().map(|(key, arg)| {
            let is_flag = !arg.get_action().takes_values();
            let defaults = arg.get_default_values().iter();
            let defaults: Vec<String> = defaults
                .map(|value| value.to_string_lossy().into_owned())
                .collect();
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let others = generator::defaults();
            let own = others.iter().find(|(known, _)| *known == key);
            let help = match (own, defaults.as_slice()) {
                // It says so itself.
                _ if is_flag || help.contains("[default: ") => help,
                (Some((_, toml::Value::String(default))), _) => {
                    format!("{help} [default: {default}]")
                }
                (_, [default]) => format!("{help} [default: {default}]"),
                _ => help,
            };
            let arg = arg
                .default_value(Resettable::Reset)
                .help(help)
                .help_heading(GENERATOR);
            valued(arg, is_flag)
        });
        own.chain(generator)
    }
}

fn valued(arg: Arg, is_flag: bool) -> Arg {
    let arg = arg
        .action(ArgAction::Append)
        .value_parser(clap::value_parser!(String))
        .allow_negative_numbers(true)
        .value_name("VALUE")
        .required(false);
    match is_flag {
        true => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("BOOL"),
        false => arg.num_args(1),
    }
}

impl<const ROUTING: bool> Args for KeyFlags<ROUTING> {
    fn augment_args(command: Command) -> Command {
        command.args(Self::args())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const ROUTING: bool> FromArgMatches for KeyFlags<ROUTING> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut entries = Vec::new();
        for arg in Self::args() {
            let id = arg.get_id().as_str();
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            let words: Vec<String> = matches
                .get_many::<String>(id)
                .into_iter()
                .flatten()
                .cloned()
                .collect();
            let name = arg.get_long().unwrap_or_default().replace('-', "_");
            let key = Self::KIND.key(&name);
            let is_list = match key {
                Some(key) => key.takes.is_list(),
                None => generator::keys().get(&name).is_some_and(generator::is_list),
            };
            let value = read::flag(key.map(|key| key.takes), is_list, &words);
            let wrong = |right| {
                clap::Error::raw(
                    ErrorKind::ValueValidation,
                    format!("--{}: {right}\n", name.replace('_', "-")),
                )
            };
            let at = matches.index_of(id).unwrap_or_default();
            entries.push((at, (name.clone(), value.map_err(wrong)?)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_one_default_which_is_that_of_a_plan() {
        let args: Vec<Arg> = KeyFlags::<true>::args().collect();
        let help = |name: &str| {
            let arg = args
                .iter()
                .find(|arg| arg.get_long() == Some(name))
                .unwrap();
            arg.get_help().unwrap().to_string()
        };
        for arg in &args {
            let name = arg.get_long().unwrap();
            assert!(
                help(name).matches("[default:").count() <= 1,
                "{name}: {}",
                help(name)
            );
        }
        for (key, value) in generator::defaults() {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            let said = format!("[default: {value}]");
            assert!(help(&key.replace('_', "-")).ends_with(&said), "{key}");
        }
    }
}
