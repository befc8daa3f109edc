//! Numbers as flags take them, held to what they may be; durations and sizes as flags, configs and plans take them: a plain
//! number, or one with its unit.

use std::fmt::Display;
use std::str::FromStr;

/// A millisecond, in seconds.
pub const MS: f64 = 1e-3;
/// A microsecond.
pub const US: f64 = 1e-6;
/// A nanosecond.
pub const NS: f64 = 1e-9;

/// Units of time, and their seconds.
const TIMES: [(&str, f64); 7] = [
    ("ns", NS),
    ("us", US),
    ("ms", MS),
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

/// So many a second: of `8`, `8/s`, `480/min`, `inf`.
pub fn rate(text: &str) -> Option<f64> {
    let Some((number, unit)) = text.split_once('/') else {
        return text.parse().ok();
    };
    let (_, seconds) = TIMES.iter().find(|(name, _)| *name == unit.trim())?;
    let number: f64 = number.trim().parse().ok()?;
    Some(number / seconds)
}

/// Seconds as a person reads them: `1.52 s`, `0.33 s`, `4.2 ms`, `80 µs`. The pages' script (`duration` in `dom.js`) says the same.
pub fn duration(seconds: f64) -> String {
    let in_units = |a_second: f64| match seconds * a_second {
        // What may be halfway between two is the larger, as in that script.
        value if (value * 8.0).fract() == 0.0 => value * (1.0 + f64::EPSILON),
        value => value,
    };
    match seconds.abs() {
        size if size >= 0.0995 => format!("{:.2} s", in_units(1.0)),
        size if size >= 0.000_995 => format!("{:.1} ms", in_units(1e3)),
        _ => format!("{:.0} µs", in_units(1e6)),
    }
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

/// Reads a rate from `low` to `high`.
pub fn rates(low: f64, high: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let rate = rate(text).filter(|rate| (low..=high).contains(rate));
        let right = "a second, or one with its unit, such as 480/min";
        rate.ok_or_else(|| format!("must be a number from {low} to {high} {right}"))
    }
}

/// Reads a share of `low` or more: `0.05` or `5%`.
pub fn share(low: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let share = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse().map(|share: f64| share / 100.0),
            None => text.parse(),
        };
        let share = share.ok().filter(|share| (low..=1.0).contains(share));
        share.ok_or_else(|| format!("must be a share from {low} to 1, such as 0.05 or 5%"))
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

/// Reads a time from `low` to `high`: a plain number of the flag's own unit, which is so many seconds, or one with its unit.
pub fn time(unit: f64, low: f64, high: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = text.parse().ok();
        let number = number.or_else(|| Some(seconds(text)? / unit));
        let number = number.filter(|number| (low..=high).contains(number));
        let right = "or one with its unit, such as 250ms";
        number.ok_or_else(|| format!("must be a number from {low} to {high}, {right}"))
    }
}

/// The same of whole milliseconds.
pub fn whole_ms(text: &str) -> Result<u32, String> {
    let read = time(MS, 0.0, f64::from(u32::MAX))(text)?;
    // 0.35 s are 349.99999999999994 ms.
    let whole = read.round();
    match (read - whole).abs() < 1e-6 {
        true => Ok(whole as u32),
        false => Err("must be whole milliseconds".to_owned()),
    }
}

/// So many of these: `1 request`, `2 requests`.
pub fn count(number: impl Display, one: &str) -> String {
    let number = number.to_string();
    let end = if number == "1" { "" } else { "s" };
    format!("{number} {one}{end}")
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
    fn a_flag_with_a_unit_of_its_own_takes_the_others_too() {
        let ms = time(MS, 0.0, 1000.0);
        let read = ["8", "8ms", "0.5s", "2.5"].map(|text| ms(text).unwrap());
        assert_eq!(read, [8.0, 8.0, 500.0, 2.5]);
        for wrong in ["2s", "-1ms", "x", "nan", ""] {
            assert!(ms(wrong).unwrap_err().contains("from 0 to 1000"), "{wrong}");
        }
        let read = ["2s", "7", "0.35s", "1001ms"].map(whole_ms);
        assert_eq!(read, [Ok(2000), Ok(7), Ok(350), Ok(1001)]);
        assert!(whole_ms("0.5").is_err());
    }

    #[test]
    fn one_is_no_more_than_one() {
        let all = [0, 1, 2, 11].map(|number| count(number, "run"));
        assert_eq!(all, ["0 runs", "1 run", "2 runs", "11 runs"]);
    }

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
            ("2ns", Some(2e-9)),
            ("5m", None),
            ("5 MiB", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), number, "{text}");
        }
        for (text, number) in [
            ("8", Some(8.0)),
            ("inf", Some(f64::INFINITY)),
            ("8 / s", Some(8.0)),
            ("480/min", Some(8.0)),
            ("2/ms", Some(2000.0)),
            ("8/m", None),
            ("8s", None),
        ] {
            assert_eq!(rate(text), number, "{text}");
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
