//! Values that check themselves when they are read, from the file or from a flag.

use std::net::SocketAddr;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// A whole number within a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "i64")]
pub struct Whole<const LEAST: u64, const MOST: u64>(u64);

/// A duration of at most a day, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Seconds<const LEAST_MS: u64 = 1>(Duration);

/// More than any of the time limits can mean.
const LONGEST_S: u64 = 86_400;

/// The longest name of a worker.
const NAME_MOST: usize = 64;
/// Headers that label a request.
const LABELS_MOST: usize = 4;
/// What the names of headers that hold secrets have in them.
const SECRETS: [&str; 5] = ["authorization", "cookie", "token", "secret", "api-key"];
/// Bytes of what records call a server.
const HOST_MOST: usize = 128;

impl<const LEAST: u64, const MOST: u64> Whole<LEAST, MOST> {
    /// This number, which the compiler holds to the range.
    pub const fn of<const N: u64>() -> Self {
        const { assert!(LEAST <= N && N <= MOST) };
        Whole(N)
    }

    /// No limit, whatever the range.
    pub const UNLIMITED: Self = Whole(u64::MAX);

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl<const LEAST: u64, const MOST: u64> TryFrom<i64> for Whole<LEAST, MOST> {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        match (u64::try_from(number), MOST) {
            (Ok(number), _) if (LEAST..=MOST).contains(&number) => Ok(Whole(number)),
            (_, u64::MAX) => Err(format!("must be at least {LEAST}")),
            _ => Err(format!("must be from {LEAST} to {MOST}")),
        }
    }
}

impl<const LEAST_MS: u64> Seconds<LEAST_MS> {
    /// So many seconds, which the compiler holds to the range.
    pub const fn of<const N: u64>() -> Self {
        const { assert!(LEAST_MS <= N * 1000 && N <= LONGEST_S) };
        Seconds(Duration::from_secs(N))
    }

    /// No limit, whatever the range.
    pub const UNLIMITED: Self = Seconds(Duration::MAX);

    /// The duration.
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl<const LEAST_MS: u64> From<Seconds<LEAST_MS>> for f64 {
    fn from(seconds: Seconds<LEAST_MS>) -> f64 {
        seconds.0.as_secs_f64()
    }
}

impl<const LEAST_MS: u64> TryFrom<f64> for Seconds<LEAST_MS> {
    type Error = String;

    fn try_from(seconds: f64) -> Result<Self, String> {
        let least = Duration::from_millis(LEAST_MS).as_secs_f64();
        if (least..=LONGEST_S as f64).contains(&seconds) {
            return Ok(Seconds(Duration::from_secs_f64(seconds)));
        }
        Err(format!("must be from {least} to {LONGEST_S} seconds"))
    }
}

/// A value that is right, or the problem with it.
fn checked<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    value: D,
    is_right: impl FnOnce(&T) -> bool,
    problem: &str,
) -> Result<T, D::Error> {
    let value = T::deserialize(value)?;
    match is_right(&value) {
        true => Ok(value),
        false => Err(D::Error::custom(problem)),
    }
}

/// A share of all.
pub fn share<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    let is_right = |value: &f64| (0.0..=1.0).contains(value);
    checked(value, is_right, "must be from 0 to 1")
}

/// How many times as much: at least once.
pub fn ratio<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    let is_right = |value: &f64| (1.0..=1e6).contains(value);
    checked(value, is_right, "must be from 1 to 1000000")
}

/// Megabytes, or 0 for no limit.
pub fn megabytes<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    let is_right = |value: &f64| *value == 0.0 || (0.001..=1e6).contains(value);
    let problem = "must be 0 (no limit), or from 0.001 to 1000000 MB";
    checked(value, is_right, problem)
}

/// Hours, or 0 for no limit.
pub fn hours<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    let is_right = |value: &f64| *value == 0.0 || (0.001..=87_600.0).contains(value);
    let problem = "must be 0 (no limit), or from 0.001 to 87600 hours";
    checked(value, is_right, problem)
}

/// An address to listen on, `IP:PORT`, or `localhost:PORT` for 127.0.0.1.
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

/// The name of a worker, which goes into a header, a metric's label and a path as it is.
pub fn worker_name<'de, D: Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    let is_word = |name: &String| is_word(name, NAME_MOST, b"._:-");
    let problem = "must be 1 to 64 of the characters A-Z a-z 0-9 . _ : -, as in w0";
    let name = checked(value, is_word, problem)?;
    if name == "log" {
        let problem = "is taken: /faults/log is the log of faults; give another name, as in w0";
        return Err(D::Error::custom(problem));
    }
    Ok(name)
}

/// What records call a server. It goes into a header, as a word among others.
pub fn host<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    let is_word = |host: &String| is_word(host, HOST_MOST, b"._:-[]");
    let problem = "must be 1 to 128 of A-Z a-z 0-9 . _ : - [ ], as in gpu1:30000";
    checked(value, is_word, problem).map(Some)
}

/// Names of hosts, as in a URL.
pub fn names<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    let are_words = |all: &Vec<String>| all.iter().all(|name| is_word(name, HOST_MOST, b"._-"));
    let problem = "must be names of hosts without scheme and port, as in [\"gpu1.example\"]";
    checked(value, are_words, problem)
}

/// Names of request headers whose values are no secrets.
pub fn header_names<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    let is_open = |name: &String| {
        let name = name.to_ascii_lowercase();
        let has = |part: &&str| name.contains(part);
        is_word(&name, NAME_MOST, b"_-") && !SECRETS.iter().any(has)
    };
    let are_open = |all: &Vec<String>| all.len() <= LABELS_MOST && all.iter().all(is_open);
    let problem = "must be at most 4 names of headers, as in [\"x-tenant\"], none of a secret (its name has authorization, cookie, \
                   token, secret or api-key in it)";
    let mut names = checked(value, are_open, problem)?;
    names
        .iter_mut()
        .for_each(|name| name.make_ascii_lowercase());
    names.dedup();
    Ok(names)
}

/// Whether a text is of letters, digits and these marks, and not too long.
fn is_word(text: &str, most: usize, marks: &[u8]) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || marks.contains(&byte);
    (1..=most).contains(&text.len()) && text.bytes().all(is_fit)
}
