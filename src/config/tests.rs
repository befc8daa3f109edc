//! What a line of `keys!` makes.

use clap::Parser;
use toml::Value;

use super::args::Args;
use super::proxy::Config;
use super::read::Reading;
use super::sections::{Place, SECTIONS};
use super::topology;
use crate::keys::values::Whole;
use crate::keys::{Taken, keys};

keys! {
/// A section of another room, in that of the proxy.
New {
    /// So many of them.
    newest: Whole<1, 9> = Whole::of::<7>(), Reload "--newest N" in "Limits" like 9;
}}

#[derive(clap::Parser)]
struct CommandLine {
    #[command(flatten)]
    args: Args,
}

/// Another value of the same kind that the key takes, if there is one.
fn other(place: &Place, key: &str) -> Option<Value> {
    let default = place.default(key);
    let all = [
        true.into(),
        false.into(),
        Value::Float(2.5),
        Value::Float(0.5),
        300.into(),
        100_000.into(),
        3.into(),
        "127.0.0.1:9".into(),
        "w".into(),
    ];
    let words = ["random", "run", "server", "never", "grpc"].map(Value::from);
    let lists = [vec!["127.0.0.1:9"].into(), vec!["a: b"].into()];
    let all = place
        .example(key)
        .into_iter()
        .chain(words)
        .chain(all)
        .chain(lists);
    let is_secret = key.contains("token") || key.contains("secret");
    let mut all =
        all.filter(|value| !is_secret || value.as_str().is_some_and(|text| text.len() > 15));
    all.find(|value| default.as_ref() != Some(value) && place.problem(key, value.clone()).is_none())
}

/// Whatever stands in a table of keys is in the file, the flags, the help, what `check` draws, and what a reload sees: also a new
/// line, of which nothing else is written anywhere.
#[test]
fn every_line_is_found_in_file_flag_help_check_and_reload() {
    let help = <CommandLine as clap::CommandFactory>::command()
        .render_long_help()
        .to_string();
    let mut flags = Vec::new();
    for place in SECTIONS.iter().filter(|place| !place.is_list()) {
        for key in place.keys() {
            let value = other(place, key.name).unwrap_or_else(|| panic!("{}", key.name));
            let text = format!("[{}]\n{} = {value}\n", place.name, key.name);
            let mut read = Reading::of(&text);
            assert!(read.of_file.is_empty(), "{text}: {:?}", read.of_file);
            let changes = Config::default().changes(&read.config);
            assert_eq!(changes.len(), 1, "{text}: {changes:?}");
            let shown = place.get(&mut read.config, key.name).unwrap();
            let drawn = topology::changes(&read.config);
            assert!(
                drawn.contains(&format!("{} = {shown}\n", key.name)),
                "{drawn}"
            );
            let Some((flag, _)) = key
                .flag
                .and_then(|flag| flag.trim_start_matches("-u ").split_once(' '))
            else {
                continue;
            };
            flags.push(flag);
            assert!(
                help.contains(&format!("{flag} <")) || help.contains(&format!("{flag}[=")),
                "{flag}"
            );
            let text = match &value {
                Value::String(text) => text.clone(),
                Value::Array(all) => all[0].as_str().unwrap().to_owned(),
                other => other.to_string(),
            };
            let line = CommandLine::try_parse_from(["proxy".to_owned(), format!("{flag}={text}")])
                .unwrap();
            let mut given = Reading::default();
            given.put(&line.args);
            assert_eq!(
                (&given.config, given.of_flags.len()),
                (&read.config, 0),
                "{flag}"
            );
        }
    }
    assert!(flags.len() > 30 && flags.contains(&"--newest"), "{flags:?}");
    let (mut config, proxy) = (Config::default(), &SECTIONS[0]);
    let wrong = proxy.set(&mut config, "newest", "x".into()).unwrap_err();
    assert_eq!(
        wrong,
        "must be a whole number, from 1 to 9, as in newest = 9"
    );
    let new = Config {
        new: New {
            newest: Whole::of::<8>(),
        },
        ..config.clone()
    };
    assert_eq!(config.changes(&new), [("newest", Taken::Reload)]);
    assert_eq!(
        help.matches("--newest <N>\n          So many of them [default: 7]")
            .count(),
        1
    );
}
