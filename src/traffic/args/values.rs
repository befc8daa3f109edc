//! Reads single values of the command line. Errors say what would be right; clap puts flag and value in
//! front.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

pub(super) fn rate(text: &str) -> Result<f64, String> {
    // Rust reads "nan" as a number.
    let rate = text.parse().ok().filter(|rate: &f64| *rate > 0.0);
    rate.ok_or_else(|| "must be a positive number of requests a second, or inf".to_owned())
}

pub(super) fn shape(text: &str) -> Result<f64, String> {
    let shape = text.parse().ok();
    shape
        .filter(|shape: &f64| *shape > 0.0 && shape.is_finite())
        .ok_or_else(|| "must be a positive number; 1 is Poisson".to_owned())
}

pub(super) fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok();
    ratio
        .filter(|ratio: &f64| (0.0..=1.0).contains(ratio))
        .ok_or_else(|| {
            "must be a number from 0 (any length from 1) to 1 (always the same)".to_owned()
        })
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| "must be a whole number, 0 or more".to_owned())
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "must be a whole number, 1 or more".to_owned())
}

/// A prompt or answer longer than this is taken for a slip.
const LONGEST: u64 = 10_000_000;

pub(super) fn length(text: &str) -> Result<u64, String> {
    let length = text.parse().ok().filter(|n| (1..=LONGEST).contains(n));
    length.ok_or_else(|| format!("must be a whole number from 1 to {LONGEST}"))
}

pub(super) fn vocabulary(text: &str) -> Result<u32, String> {
    let size = text.parse().ok().filter(|size| *size >= 2);
    size.ok_or_else(|| "must be a whole number of token ids, 2 or more".to_owned())
}

pub(super) fn seed(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("must be a whole number from 0 to {}", u64::MAX))
}

pub(super) fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| "must be a port from 1 to 65535".to_owned())
}

/// A year: longer makes no sense and keeps sums of times far from their limits.
const LONGEST_SECONDS: f64 = 3.2e7;

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    seconds
        .filter(|seconds: &f64| *seconds > 0.0 && *seconds <= LONGEST_SECONDS)
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "must be a positive number of seconds, a year at most".to_owned())
}

pub(super) fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    seconds
        .filter(|seconds: &f64| (0.0..=LONGEST_SECONDS).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "must be a number of seconds, 0 or more, a year at most".to_owned())
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
    const RIGHT: &str = "must be NAME:VALUE, such as x-team:search";
    let (name, value) = text.split_once(':').ok_or(RIGHT)?;
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
