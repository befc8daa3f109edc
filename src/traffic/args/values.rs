//! Value parsers of the command line, and the names of values. An error says what is expected; clap puts flag and value in front.

use std::time::Duration;

use clap::ValueEnum;
use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::clock::Stamp;
use crate::traffic::client::OWN_HEADERS;
use crate::units::{self, between};

/// Returns the name of a value on the command line.
pub fn value_name(value: impl ValueEnum) -> String {
    let possible = value.to_possible_value();
    possible.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A higher rate that is not infinite is taken for a typing error.
pub const MAX_RATE: f64 = 1e6;

/// Parses a rate: requests per second, or per another unit of time.
pub fn rate(text: &str) -> Result<f64, &'static str> {
    const EXPECTED: &str = "must be a positive number of requests a second, such as 5 or 300/min, up to a million, or inf";
    let rate = units::per_second(text).filter(|rate| *rate > 0.0);
    let rate = rate.filter(|rate| *rate <= MAX_RATE || rate.is_infinite());
    rate.ok_or(EXPECTED)
}

/// Parses a length of a prompt or response. More than ten million is taken for a typing error.
pub fn length(text: &str) -> Result<u64, String> {
    between(1, 10_000_000)(text)
}

/// About a year. Longer times make no sense, and their sums could overflow.
pub const MAX_SECONDS: f64 = 3.2e7;

/// Parses a duration above 0, in seconds or with its unit.
///
/// # Errors
/// Says what is expected.
pub fn seconds(text: &str) -> Result<Duration, &'static str> {
    let positive = seconds_or_zero(text).ok().filter(|time| !time.is_zero());
    positive.ok_or("must be a positive number of seconds, a year at most")
}

/// Parses a duration that may be 0.
pub fn seconds_or_zero(text: &str) -> Result<Duration, &'static str> {
    match units::seconds(text) {
        Some(seconds @ 0.0..=MAX_SECONDS) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("must be a number of seconds, 0 or more, a year at most"),
    }
}

/// Parses a point in time: Unix seconds, or a date with its time zone.
pub fn timestamp(text: &str) -> Result<Stamp, &'static str> {
    const FORMAT: &str =
        "must be Unix seconds, or date and time with their zone such as 2026-11-22T10:00:00Z";
    let seconds = text.parse().ok().and_then(Stamp::from_seconds);
    let date = || {
        let nanos = text.parse::<jiff::Timestamp>().ok()?.as_nanosecond();
        Some(Stamp::from_nanos(i64::try_from(nanos).ok()?))
    };
    seconds.or_else(date).ok_or(FORMAT)
}

/// Parses a JSON object.
pub fn object(text: &str) -> Result<Map<String, Value>, String> {
    const FORMAT: &str = "must be a JSON object such as {\"top_p\": 0.9}";
    serde_json::from_str(text).map_err(|error| format!("{FORMAT}: {error}"))
}

/// Parses a header of the user's, or reads it from a file. Refuses headers that the client sets itself.
pub fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    const FORMAT: &str =
        "must be NAME:VALUE, such as x-team:search, or @FILE, a file that holds such a line";
    let line = match text.strip_prefix('@') {
        Some(path) => {
            std::fs::read_to_string(path).map_err(|error| format!("{error}; {FORMAT}"))?
        }
        None => text.to_owned(),
    };
    let (name, value) = line.split_once(':').ok_or(FORMAT)?;
    let name: HeaderName = name.trim().parse().map_err(|_| FORMAT)?;
    if OWN_HEADERS.contains(&name.as_str()) {
        return Err(format!("{name} is set by queuescope itself"));
    }
    let mut value: HeaderValue = value.trim().parse().map_err(|_| FORMAT)?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// Parses the prefix of request ids.
pub fn id_prefix(text: &str) -> Result<String, &'static str> {
    let fits = (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    fits.then(|| text.to_owned())
        .ok_or("must be 1 to 64 letters, digits, `-`, `_` or `.`")
}
