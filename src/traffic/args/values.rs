//! Reads single values of the command line. Errors say what would be right; clap puts flag and value in
//! front.

use std::str::FromStr;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::clock::Stamp;
use crate::traffic::workload::conversation::MOST_TURNS;

/// Reads a number that fits; else says what would be right.
fn number<T: FromStr>(
    text: &str,
    fits: impl Fn(&T) -> bool,
    right: impl Into<String>,
) -> Result<T, String> {
    let number = text.parse().ok().filter(fits);
    number.ok_or_else(|| right.into())
}

/// Requests a second.
pub fn rate(text: &str) -> Result<f64, String> {
    // Rust reads "nan" as a number.
    let right = "must be a positive number of requests a second, or inf";
    number(text, |rate| *rate > 0.0, right)
}

pub(super) fn shape(text: &str) -> Result<f64, String> {
    let fits = |shape: &f64| *shape > 0.0 && shape.is_finite();
    number(text, fits, "must be a positive number; 1 is Poisson")
}

pub(super) fn ratio(text: &str) -> Result<f64, String> {
    let right = "must be a number from 0 (any length from 1) to 1 (always the same)";
    number(text, |ratio| (0.0..=1.0).contains(ratio), right)
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    number(text, |_| true, "must be a whole number, 0 or more")
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    number(
        text,
        |count| *count > 0,
        "must be a whole number, 1 or more",
    )
}

pub(super) fn speed(text: &str) -> Result<f64, String> {
    // From a year in half a minute to a second in a year.
    let fits = |speed: &f64| (1e-6..=1e6).contains(speed);
    number(
        text,
        fits,
        "must be a number from 0.000001 to 1000000; 2 is twice as fast",
    )
}

pub(super) fn groups(text: &str) -> Result<u32, String> {
    number(
        text,
        |count| *count > 0,
        "must be a whole number, 1 or more",
    )
}

pub(super) fn turns(text: &str) -> Result<usize, String> {
    let right = format!("must be a whole number from 1 to {MOST_TURNS}");
    number(text, |turns| (1..=MOST_TURNS).contains(turns), right)
}

pub(super) fn think_time(text: &str) -> Result<f64, String> {
    let fits = |seconds: &f64| (0.0..=LONGEST_SECONDS).contains(seconds);
    let right = "must be a number of seconds, 0 or more, a year at most";
    number(text, fits, right)
}

pub(super) fn moment(text: &str) -> Result<Stamp, String> {
    let seconds = text.parse().ok().and_then(Stamp::from_seconds);
    let date = || {
        let nanos = text.parse::<jiff::Timestamp>().ok()?.as_nanosecond();
        Some(Stamp::from_nanos(i64::try_from(nanos).ok()?))
    };
    seconds.or_else(date).ok_or_else(|| {
        "must be Unix seconds, or date and time with their zone such as 2026-11-22T10:00:00Z"
            .to_owned()
    })
}

/// A prompt or answer longer than this is taken for a slip.
const LONGEST: u64 = 10_000_000;

pub(super) fn length(text: &str) -> Result<u64, String> {
    let right = format!("must be a whole number from 1 to {LONGEST}");
    number(text, |length| (1..=LONGEST).contains(length), right)
}

pub(super) fn vocabulary(text: &str) -> Result<u32, String> {
    let right = "must be a whole number of token ids, 2 or more";
    number(text, |size| *size >= 2, right)
}

pub(super) fn seed(text: &str) -> Result<u64, String> {
    let right = format!("must be a whole number from 0 to {}", u64::MAX);
    number(text, |_| true, right)
}

pub(super) fn port(text: &str) -> Result<u16, String> {
    number(text, |port| *port > 0, "must be a port from 1 to 65535")
}

/// A year: longer makes no sense and keeps sums of times far from their limits.
const LONGEST_SECONDS: f64 = 3.2e7;

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let fits = |seconds: &f64| *seconds > 0.0 && *seconds <= LONGEST_SECONDS;
    let right = "must be a positive number of seconds, a year at most";
    number(text, fits, right).map(Duration::from_secs_f64)
}

pub(super) fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let fits = |seconds: &f64| (0.0..=LONGEST_SECONDS).contains(seconds);
    let right = "must be a number of seconds, 0 or more, a year at most";
    number(text, fits, right).map(Duration::from_secs_f64)
}

pub(super) fn object(text: &str) -> Result<Map<String, Value>, String> {
    const RIGHT: &str = "must be a JSON object such as {\"top_p\": 0.9}";
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(RIGHT.to_owned()),
        Err(error) => Err(format!("{RIGHT}: {error}")),
    }
}

pub(super) fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    const RIGHT: &str =
        "must be NAME:VALUE, such as x-team:search, or @FILE, a file that holds such a line";
    let read = match text.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).map_err(|error| format!("{error}; {RIGHT}"))?,
        None => text.to_owned(),
    };
    let (name, value) = read.split_once(':').ok_or(RIGHT)?;
    let name: HeaderName = name.trim().parse().map_err(|_| RIGHT)?;
    let mut value: HeaderValue = value.trim().parse().map_err(|_| RIGHT)?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// A share: `0.05` or `5%`.
pub(super) fn share(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse().map(|share: f64| share / 100.0),
        None => text.parse(),
    };
    let share = share.ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "must be a share from 0 to 1, such as 0.05 or 5%".to_owned())
}

pub(super) fn id_prefix(text: &str) -> Result<String, String> {
    let fits = (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    fits.then(|| text.to_owned())
        .ok_or_else(|| "must be 1 to 64 letters, digits, `-`, `_` or `.`".to_owned())
}
