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
    /// `--flag VALUE`, where it has one.
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
