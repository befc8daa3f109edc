//! Reads single values of the command line. Errors say what would be right; clap puts flag and value in
//! front.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::clock::Stamp;
use crate::traffic::client::OWN_HEADERS;
use crate::units::{self, between};

/// Requests a second, or in another unit of time.
pub fn rate(text: &str) -> Result<f64, String> {
    let rate = units::per_second(text).filter(|rate| *rate > 0.0);
    rate.ok_or_else(|| {
        "must be a positive number of requests a second, such as 5 or 300/min, or inf".to_owned()
    })
}

/// A prompt or answer longer than ten million is taken for a slip.
pub(in crate::traffic) fn length(text: &str) -> Result<u64, String> {
    between(1, 10_000_000)(text)
}

/// A year: longer makes no sense and keeps sums of times far from their limits.
pub(in crate::traffic) const LONGEST_SECONDS: f64 = 3.2e7;

/// A duration, in seconds or with its unit.
///
/// # Errors
/// What would be right.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let positive = seconds_or_none(text).ok().filter(|time| !time.is_zero());
    positive.ok_or_else(|| "must be a positive number of seconds, a year at most".to_owned())
}

pub(in crate::traffic) fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let right = "must be a number of seconds, 0 or more, a year at most";
    let seconds = units::seconds(text).filter(|s| (0.0..=LONGEST_SECONDS).contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| right.to_owned())
}

pub(in crate::traffic) fn moment(text: &str) -> Result<Stamp, String> {
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

pub(in crate::traffic) fn object(text: &str) -> Result<Map<String, Value>, String> {
    const RIGHT: &str = "must be a JSON object such as {\"top_p\": 0.9}";
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(RIGHT.to_owned()),
        Err(error) => Err(format!("{RIGHT}: {error}")),
    }
}

/// A header of the user's; those that the client sets itself are not his to set.
pub(in crate::traffic) fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    const RIGHT: &str =
        "must be NAME:VALUE, such as x-team:search, or @FILE, a file that holds such a line";
    let read = match text.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).map_err(|error| format!("{error}; {RIGHT}"))?,
        None => text.to_owned(),
    };
    let (name, value) = read.split_once(':').ok_or(RIGHT)?;
    let name: HeaderName = name.trim().parse().map_err(|_| RIGHT)?;
    if OWN_HEADERS.contains(&name.as_str()) {
        return Err(format!("{name} is set by queuescope itself"));
    }
    let mut value: HeaderValue = value.trim().parse().map_err(|_| RIGHT)?;
    value.set_sensitive(true);
    Ok((name, value))
}

pub(in crate::traffic) fn id_prefix(text: &str) -> Result<String, String> {
    let fits = (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    fits.then(|| text.to_owned())
        .ok_or_else(|| "must be 1 to 64 letters, digits, `-`, `_` or `.`".to_owned())
}
