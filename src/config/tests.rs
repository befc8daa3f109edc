//! What one line of `keys!` defines.

use clap::Parser;
use toml::Value;

use super::Reading;
use super::args::Args;
use super::proxy::Config;
use super::sections::{FileSection, SECTIONS};
use crate::keys::values::Whole;
use crate::keys::{AppliedAt, keys};

keys! {
/// Keys of another module in the proxy's section.
New {
    /// So many of them.
    newest: Whole<1, 9> = Whole::of::<7>(), Reload "--newest N" in "Limits" like 9;
}}

#[derive(clap::Parser)]
struct CommandLine {
    #[command(flatten)]
    args: Args,
}

/// Values, of which each key takes one.
const VALUES: &str = r#"all = ["random", "run", "server", "never", "grpc", true, false, 2.5, 0.5, 300, 100_000, 3, "127.0.0.1:9",
    "w", ["127.0.0.1:9"], ["a: b"]]"#;

/// Returns a valid value of the key that is not its default.
fn other(section: &FileSection, key: &str) -> Option<Value> {
    let default = section.default(key);
    let values: toml::Table = VALUES.parse().unwrap();
    let values = values["all"].as_array().unwrap().iter().cloned();
    let is_secret = key.contains("token") || key.contains("secret");
    section
        .example(key)
        .into_iter()
        .chain(values)
        .find(|value| {
            let is_long = value.as_str().is_some_and(|text| text.len() > 15);
            let is_other = default.as_ref() != Some(value) && (is_long || !is_secret);
            is_other && section.problem(key, value.clone()).is_none()
        })
}

/// Each key is in the file, the flags, the help, the output of `check`, and what a reload compares: also a new key, of which nothing
/// else is written anywhere.
#[test]
fn every_line_is_found_in_file_flag_help_check_and_reload() {
    let help = <CommandLine as clap::CommandFactory>::command()
        .render_long_help()
        .to_string();
    let mut flags = Vec::new();
    for section in SECTIONS.iter().filter(|section| !section.is_list()) {
        for key in section.keys() {
            let value = other(section, key.name).unwrap_or_else(|| panic!("{}", key.name));
            let text = format!("[{}]\n{} = {value}\n", section.name, key.name);
            let mut read = Reading::new(&text).unwrap();
            assert_eq!(read.problems, [], "{text}");
            let changes = Config::default().changes(&read.config);
            assert_eq!(changes.len(), 1, "{text}: {changes:?}");
            let shown = section.get(&mut read.config, key.name).unwrap();
            let drawn = super::changes(&read.config);
            let line = format!("{} = {shown}\n", key.name);
            assert!(drawn.contains(&line), "{drawn}");
            let flag = key.flag.map(|flag| flag.trim_start_matches("-u "));
            let Some((flag, _)) = flag.and_then(|flag| flag.split_once(' ')) else {
                continue;
            };
            flags.push(flag);
            let has = |end: &str| help.contains(&format!("{flag}{end}"));
            assert!(has(" <") || has("[="), "{flag}");
            let text = match &value {
                Value::String(text) => text.clone(),
                Value::Array(all) => all[0].as_str().unwrap().to_owned(),
                other => other.to_string(),
            };
            let words = ["proxy".to_owned(), format!("{flag}={text}")];
            let line = CommandLine::try_parse_from(words).unwrap();
            let mut given = Reading::default();
            given.apply(&line.args);
            assert!(
                given.problems.is_empty() && given.config == read.config,
                "{flag}"
            );
        }
    }
    assert!(flags.len() > 30 && flags.contains(&"--newest"), "{flags:?}");
    let (mut config, proxy) = (Config::default(), &SECTIONS[0]);
    let problem = proxy.set(&mut config, "newest", "x".into()).unwrap_err();
    let expected = "must be a whole number from 1 to 9";
    assert_eq!(problem, expected);
    let before = config.clone();
    config.new.newest = Whole::of::<8>();
    assert_eq!(before.changes(&config), [("newest", AppliedAt::Reload)]);
    let entry = "--newest <N>\n          So many of them [default: 7]";
    assert_eq!(help.matches(entry).count(), 1);
}
