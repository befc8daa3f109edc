//! Types of values that are checked when they are deserialized, from the file or from a flag.

use std::net::SocketAddr;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// A whole number within a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "i64")]
pub struct Whole<const MIN: u64, const MAX: u64>(u64);

/// A duration in seconds, of at most a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "f64", into = "f64")]
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
}

impl<const MIN: u64, const MAX: u64> TryFrom<i64> for Whole<MIN, MAX> {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        match (u64::try_from(number), MAX) {
            (Ok(number), _) if (MIN..=MAX).contains(&number) => Ok(Whole(number)),
            (_, u64::MAX) => Err(format!("must be at least {MIN}")),
            _ => Err(format!("must be from {MIN} to {MAX}")),
        }
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
}

impl<const MIN_MS: u64> From<Seconds<MIN_MS>> for f64 {
    fn from(seconds: Seconds<MIN_MS>) -> f64 {
        seconds.0.as_secs_f64()
    }
}

impl<const MIN_MS: u64> TryFrom<f64> for Seconds<MIN_MS> {
    type Error = String;

    fn try_from(seconds: f64) -> Result<Self, String> {
        let min = Duration::from_millis(MIN_MS).as_secs_f64();
        if (min..=MAX_SECONDS as f64).contains(&seconds) {
            return Ok(Seconds(Duration::from_secs_f64(seconds)));
        }
        Err(format!("must be from {min} to {MAX_SECONDS} seconds"))
    }
}

/// Deserializes a value and checks it.
fn checked<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    value: D,
    is_valid: impl FnOnce(&T) -> bool,
    problem: &str,
) -> Result<T, D::Error> {
    let value = T::deserialize(value)?;
    match is_valid(&value) {
        true => Ok(value),
        false => Err(D::Error::custom(problem)),
    }
}

/// Deserializes a share.
pub fn share<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    let is_valid = |value: &f64| (0.0..=1.0).contains(value);
    checked(value, is_valid, "must be from 0 to 1")
}

/// Deserializes a factor of at least 1.
pub fn ratio<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    let is_valid = |value: &f64| (1.0..=1e6).contains(value);
    checked(value, is_valid, "must be from 1 to 1000000")
}

/// Deserializes megabytes, or 0 for no limit.
pub fn megabytes<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    let is_valid = |value: &f64| *value == 0.0 || (0.001..=1e6).contains(value);
    let problem = "must be 0 (no limit), or from 0.001 to 1000000 MB";
    checked(value, is_valid, problem)
}

/// Deserializes hours, or 0 for no limit.
pub fn hours<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    let is_valid = |value: &f64| *value == 0.0 || (0.001..=87_600.0).contains(value);
    let problem = "must be 0 (no limit), or from 0.001 to 87600 hours";
    checked(value, is_valid, problem)
}

/// Deserializes an address to listen on, `IP:PORT`, or `localhost:PORT` for 127.0.0.1.
pub fn listen_address<'de, D: Deserializer<'de>>(value: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(value)?;
    let local = text.strip_prefix("localhost:");
    let local = local.map(|port| format!("127.0.0.1:{port}"));
    local.unwrap_or(text).parse().map_err(|_| {
        D::Error::custom(
            "not an address to listen on; give IP:PORT, as in 127.0.0.1:8800, or localhost:PORT",
        )
    })
}

/// Deserializes the name of a worker, which is used unescaped in a header, a metric's label and a path.
pub fn worker_name<'de, D: Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    let is_word = |name: &String| is_word(name, MAX_NAME_BYTES, b"._:-");
    let problem = "must be 1 to 64 of the characters A-Z a-z 0-9 . _ : -, as in w0";
    let name = checked(value, is_word, problem)?;
    if name == "log" {
        let problem = "is taken: /faults/log is the log of faults; give another name, as in w0";
        return Err(D::Error::custom(problem));
    }
    Ok(name)
}

/// Deserializes the name of a server in records, which is used unescaped in a header.
pub fn host<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    let is_word = |host: &String| is_word(host, MAX_HOST_BYTES, b"._:-[]");
    let problem = "must be 1 to 128 of A-Z a-z 0-9 . _ : - [ ], as in gpu1:30000";
    checked(value, is_word, problem).map(Some)
}

/// Deserializes names of hosts, as in a URL.
pub fn names<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    let are_words =
        |all: &Vec<String>| all.iter().all(|name| is_word(name, MAX_HOST_BYTES, b"._-"));
    let problem = "must be names of hosts without scheme and port, as in [\"gpu1.example\"]";
    checked(value, are_words, problem)
}

/// Deserializes names of request headers whose values are not secret.
pub fn header_names<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    let is_public = |name: &String| {
        let name = name.to_ascii_lowercase();
        let has = |part: &&str| name.contains(part);
        is_word(&name, MAX_NAME_BYTES, b"_-") && !SECRET_HEADERS.iter().any(has)
    };
    let are_public =
        |all: &Vec<String>| all.len() <= MAX_LABEL_HEADERS && all.iter().all(is_public);
    let problem = "must be at most 4 names of headers, as in [\"x-tenant\"], none of a secret (its name has authorization, cookie, \
                   token, secret or api-key in it)";
    let mut names = checked(value, are_public, problem)?;
    names
        .iter_mut()
        .for_each(|name| name.make_ascii_lowercase());
    names.dedup();
    Ok(names)
}

/// Whether a text has 1 to `max` bytes, all letters, digits or `marks`.
fn is_word(text: &str, max: usize, marks: &[u8]) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || marks.contains(&byte);
    (1..=max).contains(&text.len()) && text.bytes().all(is_allowed)
}
