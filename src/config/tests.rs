//! What a line of `keys!` makes.

use clap::Parser;
use toml::Value;

use super::args::Args;
use super::proxy::Config;
use super::read::Reading;
use super::sections::{Place, SECTIONS};
use super::topology;
use crate::keys::{Section, Taken, keys};

keys! {
/// A section that has one line.
Line {
    /// So many of them.
    most: u64 = 7, Reload "--most N" in "Limits" like 9;
}}

keys! {
/// A section with the keys of another room.
Both {
    /// How many.
    fewest: u64 = 1, Restart;
} with {
    /// Of the other.
    line: Line;
}}

#[derive(clap::Parser)]
struct CommandLine {
    #[command(flatten)]
    args: Args,
}

#[test]
fn a_line_makes_default_help_flag_example_and_what_a_reload_takes() {
    let [[key]] = Line::KEYS else {
        panic!("one line, one key")
    };
    let told = (key.name, key.help, key.flag, key.heading, key.taken);
    assert_eq!(
        told,
        (
            "most",
            &[" So many of them."][..],
            Some("--most N"),
            Some("Limits"),
            Taken::Reload
        )
    );
    assert_eq!(Line::ABOUT, [" A section that has one line."]);
    let (mut line, old) = (Line::default(), Line::default());
    assert_eq!((line.most, line.get("most")), (7, Some(7.into())));
    assert_eq!((key.example)(), Some(9.into()));
    line.set("most", 8.into()).unwrap();
    assert_eq!(old.changes(&line), [("most", Taken::Reload)]);
    assert!(line.set("most", "x".into()).is_err() && line.most == 8);
}

#[test]
fn keys_of_another_room_stand_in_a_section_as_its_own_do() {
    assert_eq!(Both::ABOUT.len(), 1);
    let mut both = Both::default();
    let names = Both::KEYS
        .iter()
        .flat_map(|of| of.iter().map(|key| key.name));
    assert_eq!(names.collect::<Vec<_>>(), ["fewest", "most"]);
    both.set("most", 8.into()).unwrap();
    both.set("fewest", 2.into()).unwrap();
    assert_eq!((both.line.most, both.fewest), (8, 2));
    assert_eq!(both.get("most"), Some(8.into()));
    let changes = Both::default().changes(&both);
    assert_eq!(
        changes,
        [("fewest", Taken::Restart), ("most", Taken::Reload)]
    );
    assert!(both.set("most", "x".into()).is_err());
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

/// Whatever stands in a table of keys is in the file, the flags, the help, what `check` draws, and what a reload sees.
#[test]
fn every_line_is_found_in_file_flag_help_check_and_reload() {
    let help = <CommandLine as clap::CommandFactory>::command()
        .render_long_help()
        .to_string();
    let mut flags = 0;
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
            flags += 1;
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
    assert!(flags > 30, "{flags}");
}
