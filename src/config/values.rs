//! Values that check themselves when they are read, from the file or from a flag.

use std::net::SocketAddr;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::units;

/// A whole number within a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "u64")]
pub struct Whole<const LEAST: u64, const MOST: u64>(u64);

/// A size in bytes, or one with its unit: `64KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Written")]
pub struct Bytes<const LEAST: u64, const MOST: u64>(Whole<LEAST, MOST>);

/// A duration of at most a day: a number of seconds, or one with its unit: `250ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Written", into = "f64")]
pub struct Seconds<const LEAST_MS: u64 = 1>(Duration);

/// A share of all: from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "f64")]
pub struct Share(f64);

/// A number as it may stand in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Whole(u64),
    Number(f64),
    Text(String),
}

/// More than any of the time limits can mean.
const LONGEST_S: u64 = 86_400;

/// The longest name of a worker.
const NAME_MOST: usize = 64;
/// Bytes of what records call a server.
const HOST_MOST: usize = 128;

impl<const LEAST: u64, const MOST: u64> Whole<LEAST, MOST> {
    /// This number, which the compiler holds to the range.
    pub const fn of<const N: u64>() -> Self {
        const { assert!(LEAST <= N && N <= MOST) };
        Whole(N)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl<const LEAST: u64, const MOST: u64> Bytes<LEAST, MOST> {
    /// So many, which the compiler holds to the range.
    pub const fn of<const N: u64>() -> Self {
        Bytes(Whole::of::<N>())
    }

    /// How many.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl Written {
    /// In the unit of plain numbers, where a text with its own unit is so many of `base`.
    fn number(&self, read: fn(&str) -> Option<f64>, base: f64) -> Option<f64> {
        match self {
            Written::Whole(number) => Some(*number as f64),
            Written::Number(number) => Some(*number),
            // A number in quotes has no unit.
            Written::Text(text) if text.parse::<f64>().is_ok() => None,
            Written::Text(text) => Some(read(text)? / base),
        }
    }
}

impl<const LEAST: u64, const MOST: u64> TryFrom<u64> for Bytes<LEAST, MOST> {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        Whole::try_from(number).map(Bytes)
    }
}

impl<const LEAST: u64, const MOST: u64> TryFrom<Written> for Bytes<LEAST, MOST> {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let number = match written {
            Written::Whole(number) => number,
            Written::Number(_) => return Err(NO_NUMBER.to_owned()),
            // A cast saturates.
            text => text.number(units::bytes, 1.0).ok_or(NO_NUMBER)? as u64,
        };
        number.try_into()
    }
}

impl<const LEAST_MS: u64> TryFrom<Written> for Seconds<LEAST_MS> {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let seconds = written.number(units::seconds, 1.0);
        seconds.ok_or(NO_NUMBER)?.try_into()
    }
}

/// What stands in the place of a number.
const NO_NUMBER: &str = "is no number";

impl Share {
    /// So many hundredths, which the compiler holds to the range.
    pub const fn of<const PERCENT: u8>() -> Share {
        const { assert!(PERCENT <= 100) };
        Share(PERCENT as f64 / 100.0)
    }

    /// The share.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Share {
    type Error = &'static str;

    fn try_from(share: f64) -> Result<Self, &'static str> {
        match (0.0..=1.0).contains(&share) {
            true => Ok(Share(share)),
            false => Err("must be from 0 to 1"),
        }
    }
}

impl<const LEAST: u64, const MOST: u64> TryFrom<u64> for Whole<LEAST, MOST> {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        if (LEAST..=MOST).contains(&number) {
            return Ok(Whole(number));
        }
        Err(match MOST {
            u64::MAX => format!("must be at least {LEAST}"),
            _ => format!("must be from {LEAST} to {MOST}"),
        })
    }
}

impl<const LEAST_MS: u64> Seconds<LEAST_MS> {
    /// So many seconds, which the compiler holds to the range.
    pub const fn of<const N: u64>() -> Self {
        const { assert!(LEAST_MS <= N * 1000 && N <= LONGEST_S) };
        Seconds(Duration::from_secs(N))
    }

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

/// Megabytes, or 0 for no limit.
pub(super) fn megabytes<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    limit_or_zero(value, 1e6, "MB", units::bytes, 1e6)
}

/// How many times as much: at least once.
pub(super) fn ratio<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(value)?;
    if (1.0..=1e6).contains(&value) {
        return Ok(value);
    }
    Err(D::Error::custom("must be from 1 to 1000000"))
}

/// Hours, or 0 for no limit.
pub(super) fn hours<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    limit_or_zero(value, 87_600.0, "hours", units::seconds, 3600.0)
}

fn limit_or_zero<'de, D: Deserializer<'de>>(
    value: D,
    most: f64,
    unit: &str,
    read: fn(&str) -> Option<f64>,
    base: f64,
) -> Result<f64, D::Error> {
    let value = Written::deserialize(value)?.number(read, base);
    let value = value.ok_or_else(|| D::Error::custom(NO_NUMBER))?;
    if value == 0.0 || (0.001..=most).contains(&value) {
        return Ok(value);
    }
    let problem = format!("must be 0 (no limit), or from 0.001 to {most} {unit}");
    Err(D::Error::custom(problem))
}

/// An address to listen on, `IP:PORT`, or `localhost:PORT` for 127.0.0.1.
pub(super) fn listen_address<'de, D: Deserializer<'de>>(value: D) -> Result<SocketAddr, D::Error> {
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
pub(super) fn worker_name<'de, D: Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    let name = String::deserialize(value)?;
    if !is_word(&name, NAME_MOST, b"._:-") {
        let problem = "must be 1 to 64 of the characters A-Z a-z 0-9 . _ : -, as in w0";
        return Err(D::Error::custom(problem));
    }
    if name == "log" {
        let problem = "is taken: /faults/log is the log of faults; give another name, as in w0";
        return Err(D::Error::custom(problem));
    }
    Ok(name)
}

/// What records call a server. It goes into a header, as a word among others.
pub(super) fn host<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    let host = String::deserialize(value)?;
    if is_word(&host, HOST_MOST, b"._:-[]") {
        return Ok(Some(host));
    }
    let problem = "must be 1 to 128 of A-Z a-z 0-9 . _ : - [ ], as in gpu1:30000";
    Err(D::Error::custom(problem))
}

/// Names of hosts, as in a URL.
pub(super) fn names<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::<String>::deserialize(value)?;
    if names.iter().all(|name| is_word(name, HOST_MOST, b"._-")) {
        return Ok(names);
    }
    let problem = "must be names of hosts without scheme and port, as in [\"gpu1.example\"]";
    Err(D::Error::custom(problem))
}

/// Whether a text is of letters, digits and these marks, and not too long.
fn is_word(text: &str, most: usize, marks: &[u8]) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || marks.contains(&byte);
    (1..=most).contains(&text.len()) && text.bytes().all(is_fit)
}
