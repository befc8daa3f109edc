//! A key of a config is one line of `keys!` in its section: type, default, when a change of it is taken on, its flag, and an example
//! where the default is none. Its comment is what config.toml and `--help` say of it.

use toml::Value;

pub mod values;

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
    /// What it may have, where it has no value by default.
    pub example: fn() -> Option<Value>,
}

/// The keys of a section: its own, and those of each room that has some in it.
pub type AllKeys = &'static [&'static [Key]];

/// A section of the config.
pub trait Section {
    /// Reads a key's value.
    ///
    /// # Errors
    /// It is none of the key's.
    fn set(&mut self, key: &str, value: Value) -> Result<(), toml::de::Error>;

    /// A key's value; `None` where it is not set.
    fn get(&self, key: &str) -> Option<Value>;
}

/// Makes a section of a table with a line a key, those of other rooms whose keys stand in it, and the parts that are sections of their
/// own in the file.
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
    } $(with { $($(#[$of_about:meta])* $of:ident: $of_kind:ident;)* })?
    $(and { $($(#[$part_about:meta])* $part:ident: $part_kind:ty = $part_name:literal, $part_taken:ident;)* })?) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $section {
            $($(#[doc = $help])* pub $key: $kind,)*
            $($($(#[$of_about])* pub $of: $of_kind,)*)?
            $($($(#[$part_about])* pub $part: $part_kind,)*)?
        }

        impl Default for $section {
            fn default() -> $section {
                $section {
                    $($key: $default,)*
                    $($($of: Default::default(),)*)?
                    $($($part: Default::default(),)*)?
                }
            }
        }

        impl $section {
            /// What it is, in lines.
            pub const ABOUT: &'static [&'static str] = &[$($about),*];

            /// Its own keys, in the order of the file.
            pub const OWN: &'static [$crate::keys::Key] = &[$($crate::keys::Key {
                name: stringify!($key),
                help: &[$($help),*],
                taken: $crate::keys::Taken::$taken,
                flag: $crate::keys::keys!(@or_none $($flag)?),
                heading: $crate::keys::keys!(@or_none $($heading)?),
                example: || $crate::keys::keys!(@example $($example)?),
            },)*];

            /// All keys that stand in it, in the order of the file.
            pub const KEYS: $crate::keys::AllKeys = &[$section::OWN, $($($of_kind::OWN,)*)?];

            /// The keys and parts in which `new` differs, and when each is taken on.
            pub fn changes(&self, new: &$section) -> Vec<(&'static str, $crate::keys::Taken)> {
                let all = [
                    $((self.$key != new.$key, stringify!($key), $crate::keys::Taken::$taken),)*
                    $($((self.$part != new.$part, $part_name, $crate::keys::Taken::$part_taken),)*)?
                ];
                let changed = all.into_iter().filter(|(differs, ..)| *differs);
                let changed = changed.map(|(_, key, taken)| (key, taken));
                changed$($(.chain(self.$of.changes(&new.$of)))*)?.collect()
            }
        }

        impl $crate::keys::Section for $section {
            fn set(&mut self, key: &str, value: toml::Value) -> Result<(), toml::de::Error> {
                match key {
                    $(stringify!($key) => self.$key = $crate::keys::keys!(@read value $($read)?)?,)*
                    $($(_ if $of_kind::OWN.iter().any(|of| of.name == key) => self.$of.set(key, value)?,)*)?
                    _ => {}
                }
                Ok(())
            }

            fn get(&self, key: &str) -> Option<toml::Value> {
                match key {
                    $(stringify!($key) => toml::Value::try_from(&self.$key).ok(),)*
                    _ => None$($(.or_else(|| self.$of.get(key)))*)?,
                }
            }
        }
    };
}
pub(crate) use keys;
