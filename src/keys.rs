//! Keys of a config. Each is one line of `keys!`: its type, default, whether a reload applies a change, its flag, and an example if
//! there is no default. Its comment is its text in config.toml and `--help`.

use toml::Value;

pub mod values;

/// When a changed key is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppliedAt {
    /// Only at a start.
    Restart,
    /// Also at a reload.
    Reload,
}

/// A key of the file, with its flag and help.
#[derive(Debug)]
pub struct Key {
    /// Its name in the file.
    pub name: &'static str,
    /// Its description, in lines.
    pub help: Lines,
    /// `--flag VALUE` or `-f --flag VALUE`, if it has a flag.
    pub flag: Option<&'static str>,
    /// The heading of the flag in the help.
    pub heading: Option<&'static str>,
    /// A valid value, if it has no default.
    pub example: fn() -> Option<Value>,
}

/// The keys of a section: its own, and those of each other module that has some in it.
pub type AllKeys = &'static [&'static [Key]];
/// The lines of a text.
pub type Lines = &'static [&'static str];

/// A section of the config.
pub trait Section {
    /// Its description.
    fn about(&self) -> Lines;

    /// All its keys, in the order of the file.
    fn keys(&self) -> AllKeys;

    /// Sets a key, if it has that.
    ///
    /// # Errors
    /// The value is invalid.
    fn set(&mut self, key: &str, value: Value) -> Result<(), toml::de::Error>;

    /// Returns a key's value; `None` if it is not set, or is no key of it.
    fn get(&self, key: &str) -> Option<Value>;
}

/// Defines a section: a struct of its own keys (a line each), of other modules' keys in the same section (`with`; `if test` for tests),
/// and of subsections (`and`).
macro_rules! keys {
    (@read $value:ident) => { serde::Deserialize::deserialize($value) };
    (@read $value:ident $read:path) => { $read($value) };
    (@or_none) => { None };
    (@or_none $some:literal) => { Some($some) };
    (@example) => { None };
    (@example $example:expr) => { toml::Value::try_from($example).ok() };
    ($(#[doc = $about:literal])* $section:ident {
        $($(#[doc = $help:literal])* $key:ident: $kind:ty $(as $read:path)? = $default:expr,
            $applied:ident $($flag:literal)? $(in $heading:literal)? $(like $example:expr)?;)*
    } $(with { $($(#[doc = $of_about:literal])* $of:ident: $of_kind:ident $(if $cfg:ident)?;)* })?
    $(and { $($(#[$part_about:meta])* $part:ident: $part_kind:ty = $part_name:literal, $part_applied:ident;)* })?) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $section {
            $($(#[doc = $help])* pub $key: $kind,)*
            $($($(#[doc = $of_about])* $(#[cfg($cfg)])? pub $of: $of_kind,)*)?
            $($($(#[$part_about])* pub $part: $part_kind,)*)?
        }

        impl Default for $section {
            fn default() -> $section {
                $section {
                    $($key: $default,)*
                    $($($(#[cfg($cfg)])? $of: Default::default(),)*)?
                    $($($part: Default::default(),)*)?
                }
            }
        }

        impl $section {
            /// Its own keys, in the order of the file.
            pub const OWN: &'static [$crate::keys::Key] = &[$($crate::keys::Key {
                name: stringify!($key),
                help: &[$($help),*],
                flag: $crate::keys::keys!(@or_none $($flag)?),
                heading: $crate::keys::keys!(@or_none $($heading)?),
                example: || $crate::keys::keys!(@example $($example)?),
            },)*];

            /// Returns the keys and subsections in which `new` differs, and when each is applied.
            pub fn changes(&self, new: &$section) -> Vec<(&'static str, $crate::keys::AppliedAt)> {
                let all = [
                    $((self.$key != new.$key, stringify!($key), $crate::keys::AppliedAt::$applied),)*
                    $($((self.$part != new.$part, $part_name, $crate::keys::AppliedAt::$part_applied),)*)?
                ];
                let changed = all.into_iter().filter(|(differs, ..)| *differs);
                let own: Vec<_> = changed.map(|(_, key, at)| (key, at)).collect();
                [own, $($($(#[cfg($cfg)])? self.$of.changes(&new.$of),)*)?].concat()
            }
        }

        impl $crate::keys::Section for $section {
            fn about(&self) -> $crate::keys::Lines {
                &[$($about),*]
            }

            fn keys(&self) -> $crate::keys::AllKeys {
                &[$section::OWN, $($($(#[cfg($cfg)])? $of_kind::OWN,)*)?]
            }

            fn set(&mut self, key: &str, value: toml::Value) -> Result<(), toml::de::Error> {
                match key {
                    $(stringify!($key) => self.$key = $crate::keys::keys!(@read value $($read)?)?,)*
                    _ => {
                        $($($(#[cfg($cfg)])? self.$of.set(key, value.clone())?;)*)?
                    }
                }
                Ok(())
            }

            fn get(&self, key: &str) -> Option<toml::Value> {
                match key {
                    $(stringify!($key) => toml::Value::try_from(&self.$key).ok(),)*
                    _ => [None, $($($(#[cfg($cfg)])? self.$of.get(key),)*)?].into_iter().flatten().next(),
                }
            }
        }
    };
}
pub(crate) use keys;
