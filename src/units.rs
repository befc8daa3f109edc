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

type Read = fn(&str) -> Option<f64>;
/// A unit of keys and fields: how their names end, what reads a text with any unit, how much makes one of theirs, what they take, and
/// such a text.
pub type Unit = (&'static str, Read, f64, &'static str, &'static str);

const OF_KEYS: [Unit; 6] = [
    ("bytes_per_s", byte_rate, 1.0, "whole number", "64KiB/s"),
    ("ms", seconds, MS, "whole number", "250ms"),
    ("_s", seconds, 1.0, "number of seconds", "250ms"),
    ("_hours", seconds, 3600.0, "number of hours", "90min"),
    ("_bytes", bytes, 1.0, "whole number", "64KiB"),
    ("_mb", bytes, 1e6, "number of MB", "1.5GB"),
];

/// The unit of a key, if its name has one.
pub fn of_key(key: &str) -> Option<&'static Unit> {
    OF_KEYS.iter().find(|(end, ..)| key.ends_with(end))
}

/// A text with a unit as the number of the key's own; a number in quotes has none.
pub fn in_unit_of(key: &str, text: &str) -> Option<f64> {
    let (_, read, one, ..) = of_key(key).filter(|_| text.parse::<f64>().is_err())?;
    Some(read(text)? / one)
}

/// Seconds: of `90`, `1.5`, `90s`, `250ms`, `2min`, `1h`.
pub fn seconds(text: &str) -> Option<f64> {
    with_unit(text, &TIMES)
}

/// Bytes: of `65536`, `64KiB`, `1.5GB`.
pub fn bytes(text: &str) -> Option<f64> {
    with_unit(text, &SIZES)
}

/// How much a second: of `5`, `5/s`, `300/min`, `inf`.
pub fn per_second(text: &str) -> Option<f64> {
    rate_of(text, |number| number.parse().ok())
}

/// Bytes a second: of `65536`, `64KiB/s`, `1.5MB/min`.
fn byte_rate(text: &str) -> Option<f64> {
    rate_of(text, bytes)
}

fn rate_of(text: &str, read: Read) -> Option<f64> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let (_, seconds) = TIMES.iter().find(|(name, _)| *name == unit.trim())?;
    Some(read(number.trim())? / seconds)
}

/// A number as a person would write it: four digits.
pub fn four_digits(number: f64) -> f64 {
    let scale = 10_f64.powi(3 - number.abs().log10().floor() as i32);
    (number * scale).round() / scale
}

/// Reads a rate from `low` to `high` a second.
pub fn rate(low: f64, high: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let rate = per_second(text).filter(|rate| (low..=high).contains(rate));
        let right = "or one with its unit, such as 300/min";
        rate.ok_or_else(|| format!("must be a number from {low} to {high} a second, {right}"))
    }
}

/// Seconds as a person reads them: `1.52 s`, `0.33 s`, `4.2 ms`, `80 µs`. The pages' script (`duration` in `dom.js`) says the same.
pub fn duration(seconds: f64) -> String {
    let ([shown], unit) = durations([seconds]);
    format!("{shown} {unit}")
}

/// Several of them in one unit, which is that of the largest that has an end: their numbers, and the unit.
pub fn durations<const N: usize>(seconds: [f64; N]) -> ([String; N], &'static str) {
    let sizes = seconds.iter().map(|of| of.abs());
    let largest = sizes.filter(|of| of.is_finite()).fold(0.0, f64::max);
    // Of several some may be small.
    let in_seconds = if N == 1 { 0.0995 } else { 9.95 };
    let (unit, a_second, digits) = match largest {
        size if size >= in_seconds => ("s", 1.0, 2),
        0.000_995.. => ("ms", 1e3, 1),
        _ => ("µs", 1e6, 0),
    };
    let shown = |of: f64| match of * a_second {
        // What may be halfway between two is the larger, as in that script.
        value if (value * 8.0).fract() == 0.0 => {
            format!("{:.digits$}", value * (1.0 + f64::EPSILON))
        }
        value => format!("{value:.digits$}"),
    };
    (seconds.map(shown), unit)
}

/// Seconds as a table of milliseconds has them, with as many digits as are worth reading. What has no end is a dash.
pub fn milliseconds(seconds: f64) -> String {
    let ms = seconds * 1e3;
    match ms.abs() {
        size if !size.is_finite() => "-".to_owned(),
        size if size >= 99.95 => format!("{ms:.1}"),
        size if size >= 9.995 => format!("{ms:.2}"),
        // A float's rounding makes a small negative of nothing: no "-0.000".
        size if size < 0.0005 => "0.000".to_owned(),
        _ => format!("{ms:.3}"),
    }
}

/// A share as a person reads it, in percent: `0.4 %`, `9.9 %`, `12 %`.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent >= 9.95 => format!("{percent:.0} %"),
        percent => format!("{percent:.1} %"),
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
        let whole = if "0.5".parse::<T>().is_ok() {
            ""
        } else {
            "whole "
        };
        value.ok_or_else(|| format!("must be a {whole}number from {low} to {high}"))
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
    fn one_is_no_more_than_one() {
        let all = [0, 1, 2, 11].map(|number| count(number, "run"));
        assert_eq!(all, ["0 runs", "1 run", "2 runs", "11 runs"]);
    }

    #[test]
    fn a_number_has_a_unit_or_none() {
        let right = [
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
        for (text, number) in right {
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
