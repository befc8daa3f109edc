//! Types of values that are checked when they are deserialized, from the file or from a flag.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use toml::Value;
use toml::de::Error;

use crate::units;

/// A whole number within a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Whole<const MIN: u64, const MAX: u64>(u64);

/// A duration in seconds, of at most a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "f64")]
pub struct Seconds<const MIN_MS: u64 = 1>(Duration);

/// A day. No time limit needs more.
const MAX_SECONDS: u64 = 86_400;

/// The longest name of a worker or header, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// The maximum number of headers that label a request.
const MAX_LABEL_HEADERS: usize = 4;
/// Parts of the names of headers with secrets.
const SECRET_HEADERS: [&str; 5] = ["authorization", "cookie", "token", "secret", "api-key"];
/// The longest name of a host, in bytes.
const MAX_HOST_BYTES: usize = 128;

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    /// Makes a number, whose range is checked at compile time.
    pub const fn of<const N: u64>() -> Self {
        const { assert!(MIN <= N && N <= MAX) };
        Whole(N)
    }

    /// No limit. It may be outside the range.
    pub const UNLIMITED: Self = Whole(u64::MAX);

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Parses a number; `in_unit` parses one that has a unit.
    fn parse(text: &str, in_unit: fn(&str) -> Option<f64>, hint: &str) -> Result<Self, String> {
        let is_whole = |number: &f64| *number >= 0.0 && number.fract() == 0.0;
        let in_unit = || Some(in_unit(text).filter(is_whole)? as u64);
        let number = text.parse().ok().or_else(in_unit);
        let number = number.filter(|number| (MIN..=MAX).contains(number));
        number.map(Whole).ok_or_else(|| match MAX {
            u64::MAX => format!("must be a whole number, {MIN} or more{hint}"),
            _ => format!("must be a whole number from {MIN} to {MAX}{hint}"),
        })
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        number(value, |text| Whole::parse(text, |_| None, ""))
    }
}

impl<const MIN_MS: u64> Seconds<MIN_MS> {
    /// Makes a duration of `N` seconds, whose range is checked at compile time.
    pub const fn of<const N: u64>() -> Self {
        const { assert!(MIN_MS <= N * 1000 && N <= MAX_SECONDS) };
        Seconds(Duration::from_secs(N))
    }

    /// No limit. It may be outside the range.
    pub const UNLIMITED: Self = Seconds(Duration::MAX);

    /// The duration.
    pub const fn get(self) -> Duration {
        self.0
    }

    fn parse(text: &str) -> Result<Self, String> {
        let min = Duration::from_millis(MIN_MS).as_secs_f64();
        let seconds = units::time(1.0, min, MAX_SECONDS as f64)(text)?;
        Ok(Seconds(Duration::from_secs_f64(seconds)))
    }
}

impl<const MIN_MS: u64> From<Seconds<MIN_MS>> for f64 {
    fn from(seconds: Seconds<MIN_MS>) -> f64 {
        seconds.0.as_secs_f64()
    }
}

impl<'de, const MIN_MS: u64> Deserialize<'de> for Seconds<MIN_MS> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        number(value, Seconds::parse)
    }
}

/// Deserializes a number, or a text with a unit, by a parser of texts. A number without a unit is not in quotes.
fn number<'de, D: Deserializer<'de>, T>(
    value: D,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    let text = match Value::deserialize(value)? {
        Value::String(text) if text.parse::<f64>().is_ok() => String::new(),
        Value::String(text) => text,
        number => number.to_string(),
    };
    parse(&text).map_err(D::Error::custom)
}

/// Deserializes a value and checks it.
fn checked<T: DeserializeOwned>(
    value: Value,
    is_valid: impl FnOnce(&T) -> bool,
    problem: &str,
) -> Result<T, Error> {
    let value = T::deserialize(value)?;
    let valid = is_valid(&value).then_some(value);
    valid.ok_or_else(|| Error::custom(problem))
}

/// Deserializes a whole number of bytes.
pub fn bytes<'de, D: Deserializer<'de>, const MIN: u64, const MAX: u64>(
    value: D,
) -> Result<Whole<MIN, MAX>, D::Error> {
    let hint = ", or one with its unit, such as 64KiB";
    number(value, |text| Whole::parse(text, units::bytes, hint))
}

/// Deserializes a whole number of milliseconds.
pub fn milliseconds<'de, D: Deserializer<'de>, const MIN: u64, const MAX: u64>(
    value: D,
) -> Result<Whole<MIN, MAX>, D::Error> {
    let in_ms = |text: &str| units::in_unit(text, units::seconds, units::MS);
    let hint = ", or one with its unit, such as 250ms";
    number(value, |text| Whole::parse(text, in_ms, hint))
}

/// Deserializes a whole number of seconds.
pub fn whole_seconds<const MIN: u64, const MAX: u64>(
    value: Value,
) -> Result<Whole<MIN, MAX>, Error> {
    let hint = ", or one with its unit, such as 2min";
    number(value, |text| Whole::parse(text, units::seconds, hint))
}

/// Deserializes a share.
pub fn share(value: Value) -> Result<f64, Error> {
    number(value, units::share(0.0, 1.0))
}

/// Deserializes a factor of at least 1.
pub fn ratio(value: Value) -> Result<f64, Error> {
    number(value, units::between(1.0, 1e6))
}

/// Deserializes megabytes, or 0 for no limit.
pub fn megabytes(value: Value) -> Result<f64, Error> {
    number(value, units::size(1e6, 0.0, 1e6))
}

/// Deserializes hours, or 0 for no limit.
pub fn hours(value: Value) -> Result<f64, Error> {
    number(value, units::time(3600.0, 0.0, 87_600.0))
}

/// Deserializes an address to listen on, `IP:PORT`, or `localhost:PORT` for 127.0.0.1.
pub fn listen_address<T: From<SocketAddr>>(value: Value) -> Result<T, Error> {
    let text = String::deserialize(value)?;
    let local = text.strip_prefix("localhost:");
    let local = local.map(|port| format!("127.0.0.1:{port}"));
    let problem =
        "not an address to listen on; give IP:PORT, as in 127.0.0.1:8800, or localhost:PORT";
    let parsed = local.unwrap_or(text).parse().map(SocketAddr::into);
    parsed.map_err(|_| Error::custom(problem))
}

/// Deserializes the name of a worker, which is used unescaped in a header, a metric's label and a path.
pub fn worker_name(value: Value) -> Result<String, Error> {
    let is_word = |name: &String| is_word(name, MAX_NAME_BYTES, b"._:-");
    let problem = "must be 1 to 64 of the characters A-Z a-z 0-9 . _ : -, as in w0";
    checked(value, is_word, problem)
}

/// Deserializes the name of a server in records, which is used unescaped in a header.
pub fn host(value: Value) -> Result<Option<String>, Error> {
    let is_word = |host: &String| is_word(host, MAX_HOST_BYTES, b"._:-[]");
    let problem = "must be 1 to 128 of A-Z a-z 0-9 . _ : - [ ], as in gpu1:30000";
    checked(value, is_word, problem).map(Some)
}

/// Deserializes names of hosts, as in a URL.
pub fn names(value: Value) -> Result<Vec<String>, Error> {
    let are_words =
        |all: &Vec<String>| all.iter().all(|name| is_word(name, MAX_HOST_BYTES, b"._-"));
    let problem = "must be names of hosts without scheme and port, as in [\"gpu1.example\"]";
    checked(value, are_words, problem)
}

/// Deserializes names of request headers whose values are not secret.
pub fn header_names(value: Value) -> Result<Vec<String>, Error> {
    let is_public = |name: &String| {
        let name = name.to_ascii_lowercase();
        let has = |part: &&str| name.contains(part);
        is_word(&name, MAX_NAME_BYTES, b"_-") && !SECRET_HEADERS.iter().any(has)
    };
    let are_public =
        |all: &Vec<String>| all.len() <= MAX_LABEL_HEADERS && all.iter().all(is_public);
    let problem = "must be at most 4 names of headers, as in [\"x-tenant\"] (--label-headers has one, and is repeated), none of a secret \
                   (its name has authorization, cookie, token, secret or api-key in it)";
    let mut names = checked(value, are_public, problem)?;
    names
        .iter_mut()
        .for_each(|name| name.make_ascii_lowercase());
    let mut earlier = BTreeSet::new();
    names.retain(|name| earlier.insert(name.clone()));
    Ok(names)
}

/// Whether a text has 1 to `max` bytes, all letters, digits or `marks`.
fn is_word(text: &str, max: usize, marks: &[u8]) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || marks.contains(&byte);
    (1..=max).contains(&text.len()) && text.bytes().all(is_allowed)
}
