//! Enums whose variants have names, used in columns, labels and headers.

/// Declares an enum and its names: `ALL`, `name`, `named`, and `help` (the variant's comment). Other names for `name` and `named`
/// may stand before the enum; `default` after a variant's name marks the one of `derive(Default)`.
macro_rules! names {
    ($(#[$meta:meta])* pub enum $($rest:tt)+) => {
        names! { name, named: $(#[$meta])* pub enum $($rest)+ }
    };
    ($name:ident, $named:ident: $(#[$meta:meta])* pub enum $type:ident {
        $($(#[doc = $about:literal])+ $variant:ident = $word:literal $($default:ident)?,)+
    }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        $(#[$meta])*
        pub enum $type {
            $($(#[doc = $about])+ $(#[$default])? $variant,)+
        }

        impl $type {
            /// All variants.
            pub const ALL: [$type; [$($word),+].len()] = [$($type::$variant),+];

            /// Returns its name.
            pub const fn $name(self) -> &'static str {
                match self {
                    $($type::$variant => $word,)+
                }
            }

            /// Returns its meaning: the comment above the variant.
            pub const fn help(self) -> &'static str {
                match self {
                    $($type::$variant => concat!($($about),+).trim_ascii(),)+
                }
            }

            /// Finds a variant by its name.
            pub fn $named(name: &str) -> Option<$type> {
                $type::ALL.into_iter().find(|one| one.$name() == name)
            }
        }
    };
}
pub(crate) use names;
