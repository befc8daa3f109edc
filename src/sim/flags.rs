//! Numbers of flags, held to what they may be; and what flags are that nobody gives.

use std::fmt::Display;
use std::str::FromStr;

/// Reads a number from `low` to `high`.
pub(super) fn between<T: FromStr + Display + PartialOrd + Copy>(
    low: T,
    high: T,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let value = text.parse().ok();
        // Not a number is outside of every range.
        let value = value.filter(|value| (low..=high).contains(value));
        value.ok_or_else(|| format!("must be a number from {low} to {high}"))
    }
}

/// Reads a number of `low` or more.
pub(super) fn at_least<T: FromStr + Display + PartialOrd + Copy>(
    low: T,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let value = text.parse().ok().filter(|value| *value >= low);
        value.ok_or_else(|| format!("must be a whole number, {low} or more"))
    }
}

/// What a command line without flags says.
pub(super) fn default<T: clap::Args>() -> T {
    let command = T::augment_args(clap::Command::new("sim").no_binary_name(true));
    let read = command.try_get_matches_from(std::iter::empty::<&str>());
    match read.and_then(|matches| T::from_arg_matches(&matches)) {
        Ok(flags) => flags,
        Err(error) => error.exit(),
    }
}
