//! A key of a config is one line of `keys!` in its section: type, default, when a change of it is taken on, its flag, and an example
//! where the default is none. Its comment is what config.toml and `--help` say of it.

use toml::Value;

/// When a changed key is taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// At a start.
    Restart,
    /// At a reload, too.
    Reload,
}

/// A key as file, flags and help know it.
#[derive(Debug)]
pub struct Key {
    /// Its name in the file.
    pub name: &'static str,
    /// What it is, in lines.
    pub help: &'static [&'static str],
    /// When a change of it is taken on.
    pub taken: Taken,
    /// `--flag VALUE` or `-f --flag VALUE`, where it has one.
    pub flag: Option<&'static str>,
    /// The heading of the flag in the help.
    pub heading: Option<&'static str>,
}

/// A section of the config.
pub trait Section {
    /// Reads a key's value.
    ///
    /// # Errors
    /// It is none of the key's.
    fn set(&mut self, key: &str, value: Value) -> Result<(), toml::de::Error>;

    /// A key's value; `None` where it is not set.
    fn get(&self, key: &str) -> Option<Value>;

    /// What a key may have, where it has no value by default.
    fn example(&self, key: &str) -> Option<Value>;
}

/// Makes a section of a table with a line a key, and the parts that are sections of their own in the file.
macro_rules! keys {
    (@read $value:ident) => { serde::Deserialize::deserialize($value) };
    (@read $value:ident $read:path) => { $read($value) };
    (@or_none) => { None };
    (@or_none $some:literal) => { Some($some) };
    (@example) => { None };
    (@example $example:expr) => { toml::Value::try_from($example).ok() };
    ($(#[doc = $about:literal])* $section:ident {
        $($(#[doc = $help:literal])* $key:ident: $kind:ty $(as $read:path)? = $default:expr,
            $taken:ident $($flag:literal)? $(in $heading:literal)? $(like $example:expr)?;)*
    } $(and { $($(#[$part_about:meta])* $part:ident: $part_kind:ty = $part_name:literal, $part_taken:ident;)* })?) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $section {
            $($(#[doc = $help])* pub $key: $kind,)*
            $($($(#[$part_about])* pub $part: $part_kind,)*)?
        }

        impl Default for $section {
            fn default() -> $section {
                $section { $($key: $default,)* $($($part: Default::default(),)*)? }
            }
        }

        impl $section {
            /// What it is, in lines.
            pub const ABOUT: &'static [&'static str] = &[$($about),*];

            /// Its keys, in the order of the file.
            pub const KEYS: &'static [$crate::config::keys::Key] = &[$($crate::config::keys::Key {
                name: stringify!($key),
                help: &[$($help),*],
                taken: $crate::config::keys::Taken::$taken,
                flag: $crate::config::keys::keys!(@or_none $($flag)?),
                heading: $crate::config::keys::keys!(@or_none $($heading)?),
            },)*];

            /// The keys and parts in which `new` differs, and when each is taken on.
            pub fn changes(&self, new: &$section) -> Vec<(&'static str, $crate::config::keys::Taken)> {
                let all = [
                    $((self.$key != new.$key, stringify!($key), $crate::config::keys::Taken::$taken),)*
                    $($((self.$part != new.$part, $part_name, $crate::config::keys::Taken::$part_taken),)*)?
                ];
                let changed = all.into_iter().filter(|(differs, ..)| *differs);
                changed.map(|(_, key, taken)| (key, taken)).collect()
            }
        }

        impl $crate::config::keys::Section for $section {
            fn set(&mut self, key: &str, value: toml::Value) -> Result<(), toml::de::Error> {
                match key {
                    $(stringify!($key) => self.$key = $crate::config::keys::keys!(@read value $($read)?)?,)*
                    _ => {}
                }
                Ok(())
            }

            fn get(&self, key: &str) -> Option<toml::Value> {
                match key {
                    $(stringify!($key) => toml::Value::try_from(&self.$key).ok(),)*
                    _ => None,
                }
            }

            fn example(&self, key: &str) -> Option<toml::Value> {
                match key {
                    $(stringify!($key) => $crate::config::keys::keys!(@example $($example)?),)*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use keys;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::args::Args;
    use crate::config::proxy::Config;
    use crate::config::read::Reading;
    use crate::config::sections::{Place, SECTIONS};
    use crate::config::topology;
    use clap::Parser;

    keys! {
    /// A section that has one line.
    Line {
        /// So many of them.
        most: u64 = 7, Reload "--most N" in "Limits" like 9;
    }}

    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_line_makes_default_help_flag_example_and_what_a_reload_takes() {
        let [key] = Line::KEYS else {
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
        assert_eq!(
            (line.most, line.get("most"), line.example("most")),
            (7, Some(7.into()), Some(9.into()))
        );
        line.set("most", 8.into()).unwrap();
        assert_eq!(old.changes(&line), [("most", Taken::Reload)]);
        assert!(line.set("most", "x".into()).is_err() && line.most == 8);
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
        all.find(|value| {
            default.as_ref() != Some(value) && place.problem(key, value.clone()).is_none()
        })
    }

    /// Whatever stands in a table of keys is in the file, the flags, the help, what `check` draws, and what a reload sees.
    #[test]
    fn every_line_is_found_in_file_flag_help_check_and_reload() {
        let help = <CommandLine as clap::CommandFactory>::command()
            .render_long_help()
            .to_string();
        let mut flags = 0;
        for place in SECTIONS.iter().filter(|place| !place.is_list()) {
            for key in place.keys {
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
                let line =
                    CommandLine::try_parse_from(["proxy".to_owned(), format!("{flag}={text}")])
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
}
