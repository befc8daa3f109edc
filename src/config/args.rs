//! The flags of `queuescope proxy`, which are made from the keys. Each overrides its key in the config file.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args as ClapArgs, Command, FromArgMatches};
use toml::Value;

use crate::keys::Key;

use super::sections::{FileSection, SECTIONS};

/// Stands before a router or servers and records where each request waits.
#[derive(Clone, Debug, Default, ClapArgs)]
// So that a negative value is refused by its range, not as an unknown flag.
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
    pub(super) keys: KeyFlags,
}

/// The given flags, with their values as text: they are parsed later, so that all invalid ones are reported, where clap would stop
/// at the first.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyFlags(pub(super) Vec<Given>);

/// A flag: its name, and its key with the key's section.
type Flag = (&'static str, &'static FileSection, &'static Key);
/// A given flag with its values.
pub(super) type Given = (Flag, Vec<String>);

/// All flags.
fn flags() -> impl Iterator<Item = Flag> {
    let keys = |section: &'static FileSection| section.keys().map(move |key| (section, key));
    let all = SECTIONS.iter().flat_map(keys);
    all.filter_map(|(section, key)| {
        let (flag, _) = key.flag?.split_once("--")?.1.split_once(' ')?;
        Some((flag, section, key))
    })
}

impl FromArgMatches for KeyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<KeyFlags, clap::Error> {
        let given = flags().filter_map(|flag| {
            let texts = matches.get_many::<String>(flag.0)?;
            Some((flag, texts.cloned().collect()))
        });
        Ok(KeyFlags(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = KeyFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ClapArgs for KeyFlags {
    fn augment_args(command: Command) -> Command {
        flags().fold(command, |command, (flag, section, key)| {
            let lines: Vec<&str> = key.help.iter().map(|line| line.trim()).collect();
            let text = lines.join(" ");
            let (first, _) = text.split_once(". ").unwrap_or((&text, ""));
            let default = match section.default(key.name) {
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
                .value_name(key.flag.and_then(|flag| flag.split(' ').next_back()))
                .help(first)
                .long_help(whole)
                .help_heading(key.heading);
            command.arg(match section.example(key.name) {
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
        KeyFlags::augment_args(command)
    }
}
