//! The flags of `queuescope proxy`, made of the tables of keys. Each overrides its key in the config file.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args as ClapArgs, Command, FromArgMatches};
use toml::Value;

use crate::keys::Key;

use super::sections::{Place, SECTIONS};

/// Stands before a router or servers and records where each request waits.
#[derive(Clone, Debug, Default, ClapArgs)]
// Wrong signs are told by name and range, not as unknown flags.
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// Config file; see config.toml in the repository for every key and default
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A hop between the router and a server; repeat for several. Replaces those of the file. Without hops the
    /// router queue is not seen
    #[arg(long, value_name = "NAME=LISTEN=UPSTREAM")]
    pub(super) worker: Vec<String>,
    #[command(flatten)]
    keys: Keys,
}

/// The keys that were given, by their flags, as they were written: all that is wrong is told at once, where clap would stop at the
/// first.
#[derive(Clone, Debug, Default)]
struct Keys(Vec<Given>);

/// A flag that was given, what it sets, and to what.
pub(super) type Given = (&'static str, &'static Place, &'static Key, Vec<String>);

impl Args {
    /// The flags that were given.
    pub(super) fn given(&self) -> &[Given] {
        &self.keys.0
    }
}

/// All flags: name, what stands for the value, and the key.
fn flags() -> impl Iterator<Item = (&'static str, &'static str, &'static Place, &'static Key)> {
    let of = |place: &'static Place| place.keys().map(move |key| (place, key));
    let all = SECTIONS.iter().flat_map(of);
    all.filter_map(|(place, key)| {
        let (flag, value) = key.flag?.split_once("--")?.1.split_once(' ')?;
        Some((flag, value, place, key))
    })
}

impl FromArgMatches for Keys {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Keys, clap::Error> {
        let given = flags().filter_map(|(flag, _, place, key)| {
            let texts = matches.get_many::<String>(flag)?;
            Some((flag, place, key, texts.cloned().collect()))
        });
        Ok(Keys(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Keys::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ClapArgs for Keys {
    fn augment_args(command: Command) -> Command {
        flags().fold(command, |command, (flag, value, place, key)| {
            let lines: Vec<&str> = key.help.iter().map(|line| line.trim()).collect();
            let text = lines.join(" ");
            let (first, _) = text.split_once(". ").unwrap_or((&text, ""));
            let default = match place.default(key.name) {
                Some(Value::String(text)) => format!(" [default: {text}]"),
                Some(Value::Boolean(_) | Value::Array(_)) | None => String::new(),
                Some(value) => format!(" [default: {value}]"),
            };
            let first = format!("{}{default}", first.trim_end_matches('.'));
            let whole = format!("{}{default}", text.trim_end_matches('.'));
            let short = key.flag.and_then(|flag| flag.chars().nth(1));
            let arg = Arg::new(flag)
                .short(short.filter(|short| *short != '-'))
                .long(flag)
                .value_name(value)
                .help(first)
                .long_help(whole)
                .help_heading(key.heading);
            command.arg(match place.example(key.name) {
                Some(Value::Boolean(_)) => arg
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("true"),
                Some(Value::Array(_)) => arg.action(ArgAction::Append),
                _ => arg,
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Keys::augment_args(command)
    }
}
