//! Value parsers of flags, config keys and plans (numbers within a range; durations, sizes, rates and shares with or without a
//! unit), and how such values are printed.

use std::fmt::Display;
use std::str::FromStr;

/// A millisecond in seconds.
pub const MS: f64 = 1e-3;
/// A microsecond in seconds.
pub const US: f64 = 1e-6;
/// A nanosecond in seconds.
pub const NS: f64 = 1e-9;

/// Units of time in seconds.
const TIME_UNITS: [(&str, f64); 7] = [
    ("ns", NS),
    ("us", US),
    ("ms", MS),
    ("s", 1.0),
    ("min", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
];
/// Units of size in bytes.
const SIZE_UNITS: [(&str, f64); 7] = [
    ("B", 1.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
];

/// Parses a duration in seconds: `90`, `1.5`, `90s`, `250ms`, `2min`, `1h`.
pub fn seconds(text: &str) -> Option<f64> {
    with_unit(text, &TIME_UNITS)
}

/// Parses a size in bytes: `65536`, `64KiB`, `1.5GB`.
pub fn bytes(text: &str) -> Option<f64> {
    with_unit(text, &SIZE_UNITS)
}

/// Parses a rate per second: `5`, `5/s`, `300/min`, `inf`.
pub fn per_second(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let (_, seconds) = TIME_UNITS.iter().find(|(name, _)| *name == unit.trim())?;
    Some(number.trim().parse::<f64>().ok()? / seconds)
}

/// Parses a share of a whole: `0.05`, `5%`.
pub fn fraction(text: &str) -> Option<f64> {
    match text.strip_suffix('%') {
        Some(percent) => percent.trim_end().parse().ok().map(|of: f64| of / 100.0),
        None => text.parse().ok(),
    }
}

/// Rounds to four significant digits.
pub fn round_to_four_digits(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}

/// Returns a parser of rates from `low` to `high` per second.
pub fn rate(low: f64, high: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    let hint = " a second, or one with its unit, such as 300/min";
    move |text| within(per_second(text), low, high, "number", hint)
}

/// Formats seconds in the unit that suits them: `1.52 s`, `0.33 s`, `4.2 ms`, `80 µs`. `duration` in the pages' `dom.js` does the same.
pub fn duration(seconds: f64) -> String {
    let ([number], unit) = durations([seconds]);
    format!("{number} {unit}")
}

/// Formats several durations in the unit that suits the largest finite one; returns the numbers and the unit.
pub fn durations<const N: usize>(seconds: [f64; N]) -> ([String; N], &'static str) {
    let sizes = seconds.iter().map(|of| of.abs());
    let largest = sizes.filter(|of| of.is_finite()).fold(0.0, f64::max);
    // Of several, the small ones need the digits of milliseconds for longer.
    let min_seconds = if N == 1 { 0.0995 } else { 9.95 };
    let (unit, per_second, decimals) = match largest {
        size if size >= min_seconds => ("s", 1.0, 2),
        0.000_995.. => ("ms", 1e3, 1),
        _ => ("µs", 1e6, 0),
    };
    let format = |of: f64| format!("{:.decimals$}", of * per_second);
    (seconds.map(format), unit)
}

/// Formats seconds as milliseconds for a table, without digits that mean nothing; a dash if not finite.
pub fn milliseconds(seconds: f64) -> String {
    let ms = seconds * 1e3;
    match ms.abs() {
        size if !size.is_finite() => "-".to_owned(),
        size if size >= 99.95 => format!("{ms:.1}"),
        size if size >= 9.995 => format!("{ms:.2}"),
        // A rounding error must not be shown as "-0.000".
        size if size < 0.0005 => "0.000".to_owned(),
        _ => format!("{ms:.3}"),
    }
}

/// Formats a count, large ones in thousands: `4096`, `96k`.
pub fn thousands(count: u64) -> String {
    match count {
        ..1_000 => count.to_string(),
        ..10_000 if !count.is_multiple_of(1_000) => count.to_string(),
        _ => format!("{}k", (count + 500) / 1_000),
    }
}

/// Returns between which ascending bounds a number is, and formats these: `8k to 32k`.
pub fn class(edges: &[u64], number: u64) -> (usize, String) {
    let at = edges.partition_point(|edge| *edge < number);
    let edge = |at: usize| edges.get(at).map(|edge| thousands(*edge));
    let name = match (at.checked_sub(1).and_then(edge), edge(at)) {
        (Some(low), Some(high)) => format!("{low} to {high}"),
        (Some(low), None) => format!("above {low}"),
        (None, Some(high)) => format!("up to {high}"),
        (None, None) => String::new(),
    };
    (at, name)
}

/// Formats a share in percent: `0.4 %`, `9.9 %`, `12 %`.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent >= 9.95 => format!("{percent:.0} %"),
        _ => one_decimal(share),
    }
}

/// Formats a share in percent with one decimal: `99.5 %`.
pub fn one_decimal(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Returns a parser of numbers from `low` to `high`.
pub fn between<T: FromStr + Display + PartialOrd + Copy>(
    low: T,
    high: T,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let kind = match "0.5".parse::<T>() {
            Ok(_) => "number",
            Err(_) => "whole number",
        };
        within(text.parse().ok(), low, high, kind, "")
    }
}

/// Returns a parser of shares from `low` to `high`: `0.05` or `5%`.
pub fn share(low: f64, high: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| within(fraction(text), low, high, "share", ", such as 0.05 or 5%")
}

/// Returns a parser of whole numbers that are `low` or more.
pub fn at_least<T: FromStr + Display + PartialOrd + Copy>(
    low: T,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let value = text.parse().ok().filter(|value| *value >= low);
        value.ok_or_else(|| format!("must be a whole number, {low} or more"))
    }
}

/// Returns a parser of durations from `low` to `high` in a flag's own unit, which is `unit` seconds long: a plain number counts in
/// that unit, a text may name another.
pub fn time(unit: f64, low: f64, high: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    let hint = ", or one with its unit, such as 250ms";
    move |text| within(in_unit(text, seconds, unit), low, high, "number", hint)
}

/// As [`time`], of sizes: the unit is so many bytes.
pub fn size(unit: f64, low: f64, high: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    let hint = ", or one with its unit, such as 1.5GB";
    move |text| within(in_unit(text, bytes, unit), low, high, "number", hint)
}

/// Parses a number in a unit, or by `parse` one with a unit of its own, of which `unit` is the length.
pub fn in_unit(text: &str, parse: fn(&str) -> Option<f64>, unit: f64) -> Option<f64> {
    text.parse().ok().or_else(|| Some(parse(text)? / unit))
}

/// Checks a parsed value (`None`: it could not be parsed) against a range. NaN is in no range.
fn within<T: Display + PartialOrd>(
    value: Option<T>,
    low: T,
    high: T,
    kind: &str,
    hint: &str,
) -> Result<T, String> {
    let value = value.filter(|value| (&low..=&high).contains(&value));
    value.ok_or_else(|| format!("must be a {kind} from {low} to {high}{hint}"))
}

/// Formats a count with its noun: `1 request`, `2 requests`.
pub fn count(number: impl Display, singular: &str) -> String {
    let number = number.to_string();
    let end = if number == "1" { "" } else { "s" };
    format!("{number} {singular}{end}")
}

fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    if let Ok(plain) = text.parse() {
        return Some(plain);
    }
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.strip_prefix(number)?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    Some(number.trim_end().parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_with_a_unit_of_its_own_takes_the_others_too() {
        let ms = time(MS, 0.0, 1000.0);
        let parsed = ["8", "8ms", "0.5s", "2.5"].map(|text| ms(text).unwrap());
        assert_eq!(parsed, [8.0, 8.0, 500.0, 2.5]);
        for text in ["2s", "-1ms", "x", "nan", ""] {
            assert!(ms(text).unwrap_err().contains("from 0 to 1000"), "{text}");
        }
    }

    #[test]
    fn durations_that_are_compared_have_one_unit() {
        for (seconds, shown, unit) in [
            ([-0.031, -0.0412, 0.0216], ["-31.0", "-41.2", "21.6"], "ms"),
            ([0.31, 0.0014, f64::INFINITY], ["310.0", "1.4", "inf"], "ms"),
            ([10.0, 0.31, -1.0], ["10.00", "0.31", "-1.00"], "s"),
            ([3.1e-5, 0.0, 4.1e-5], ["31", "0", "41"], "µs"),
        ] {
            assert_eq!(durations(seconds), (shown.map(str::to_owned), unit));
        }
        let in_ms = [-2.4e-7, -0.002, 0.0009, 1.5, f64::INFINITY].map(milliseconds);
        assert_eq!(in_ms, ["0.000", "-2.000", "0.900", "1500.0", "-"]);
    }

    #[test]
    fn four_digits_are_kept_of_any_number() {
        for (number, kept) in [
            (0.0, 0.0),
            (-0.012_345_6, -0.012_35),
            (98_765.4, 98_770.0),
            (1234.6, 1235.0),
            (1.5e-310, 1.5e-310),
            (f64::INFINITY, f64::INFINITY),
        ] {
            assert_eq!(round_to_four_digits(number), kept, "{number}");
        }
        assert!(round_to_four_digits(f64::NAN).is_nan());
    }

    #[test]
    fn one_is_no_more_than_one() {
        let all = [0, 1, 2, 11].map(|number| count(number, "run"));
        assert_eq!(all, ["0 runs", "1 run", "2 runs", "11 runs"]);
    }

    #[test]
    fn a_number_has_a_unit_or_none() {
        let parsed = [
            ("90", 90.0),
            ("1e3", 1000.0),
            ("inf", f64::INFINITY),
            ("90s", 90.0),
            ("1.5 s", 1.5),
            ("250ms", 0.25),
            ("2min", 120.0),
            ("1h", 3600.0),
            ("-1s", -1.0),
            ("2ns", 2e-9),
        ];
        for (text, number) in parsed {
            assert_eq!(seconds(text), Some(number), "{text}");
        }
        assert_eq!(["s", "5m", "5 MiB", ""].map(seconds), [None; 4]);
        let sizes = ["64KiB", "1.5GB", "7", "7s"].map(bytes);
        assert_eq!(sizes, [Some(65_536.0), Some(1.5e9), Some(7.0), None]);
        for (text, number) in [
            ("5", Some(5.0)),
            ("5/s", Some(5.0)),
            ("300 / min", Some(5.0)),
            ("2/ms", Some(2000.0)),
            ("inf", Some(f64::INFINITY)),
            ("5s", None),
            ("5/x", None),
        ] {
            assert_eq!(per_second(text), number, "{text}");
        }
    }
}
