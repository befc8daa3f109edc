//! Enums whose variants have names: those stand in columns, labels and headers.

/// An enum and its names, each variant once: `ALL`, `name`, `named`, `help` (what stands above the variant), and that it may be a
/// column's type. Before the enum may stand what the first two functions are called instead.
macro_rules! names {
    ($(#[$meta:meta])* pub enum $($rest:tt)+) => {
        names! { name, named: $(#[$meta])* pub enum $($rest)+ }
    };
    ($name:ident, $named:ident: $(#[$meta:meta])* pub enum $type:ident {
        $($(#[doc = $about:literal])+ $variant:ident = $word:literal,)+
    }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        $(#[$meta])*
        pub enum $type {
            $($(#[doc = $about])+ $variant,)+
        }

        impl $type {
            /// All of them.
            pub const ALL: [$type; [$($word),+].len()] = [$($type::$variant),+];

            /// Its name.
            pub const fn $name(self) -> &'static str {
                match self {
                    $($type::$variant => $word,)+
                }
            }

            /// What it means.
            pub const fn help(self) -> &'static str {
                match self {
                    $($type::$variant => concat!($($about),+).trim_ascii(),)+
                }
            }

            /// The one of that name.
            pub fn $named(name: &str) -> Option<$type> {
                $type::ALL.into_iter().find(|one| one.$name() == name)
            }
        }

        $crate::request::cell::cells! {
            $type: $crate::request::cell::Value::Text(name) => $type::$named(&name),
                |one| $crate::request::cell::Value::Text(one.$name().into());
        }
    };
}
pub(crate) use names;
