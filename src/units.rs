//! Numbers as flags take them, held to what they may be; durations and sizes as flags, configs and plans take them: a plain
//! number, or one with its unit.

use std::fmt::Display;
use std::str::FromStr;

/// Units of time, and their seconds.
const TIMES: [(&str, f64); 6] = [
    ("us", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("min", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
];
/// Units of sizes, and their bytes.
const SIZES: [(&str, f64); 7] = [
    ("B", 1.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
];

/// Seconds: of `90`, `1.5`, `90s`, `250ms`, `2min`, `1h`.
pub fn seconds(text: &str) -> Option<f64> {
    with_unit(text, &TIMES)
}

/// Bytes: of `65536`, `64KiB`, `1.5GB`.
pub fn bytes(text: &str) -> Option<f64> {
    with_unit(text, &SIZES)
}

/// Reads a number from `low` to `high`.
pub fn between<T: FromStr + Display + PartialOrd + Copy>(
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
pub fn at_least<T: FromStr + Display + PartialOrd + Copy>(
    low: T,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let value = text.parse().ok().filter(|value| *value >= low);
        value.ok_or_else(|| format!("must be a whole number, {low} or more"))
    }
}

fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    if let Ok(plain) = text.parse() {
        return Some(plain);
    }
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.strip_prefix(number)?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let number: f64 = number.trim_end().parse().ok()?;
    Some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_a_unit_or_none() {
        for (text, number) in [
            ("90", Some(90.0)),
            ("1e3", Some(1000.0)),
            ("inf", Some(f64::INFINITY)),
            ("90s", Some(90.0)),
            ("1.5 s", Some(1.5)),
            ("250ms", Some(0.25)),
            ("2min", Some(120.0)),
            ("1h", Some(3600.0)),
            ("-1s", Some(-1.0)),
            ("s", None),
            ("5m", None),
            ("5 MiB", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), number, "{text}");
        }
        for (text, number) in [
            ("64KiB", Some(65_536.0)),
            ("1.5GB", Some(1.5e9)),
            ("7", Some(7.0)),
            ("7s", None),
        ] {
            assert_eq!(bytes(text), number, "{text}");
        }
    }
}
