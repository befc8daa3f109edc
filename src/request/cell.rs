//! A cell of a row: what it holds, and how it stands in text.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::clock::{NANOS, Stamp};

/// What a cell holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Nobody knows.
    Empty,
    /// Words.
    Text(Cow<'a, str>),
    /// Yes or no.
    Bool(bool),
    /// A number of things.
    Count(u64),
    /// A duration, nanoseconds; written as seconds.
    Nanos(i64),
    /// A moment; written as seconds from the file's base.
    Time(Stamp),
}

impl Value<'_> {
    /// The same in JSON: durations in seconds, moments in epoch seconds.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Value::Empty => serde_json::Value::Null,
            Value::Text(text) => text.as_ref().into(),
            Value::Bool(yes) => (*yes).into(),
            Value::Count(count) => (*count).into(),
            Value::Nanos(nanos) => (*nanos as f64 / NANOS as f64).into(),
            Value::Time(at) => at.seconds().into(),
        }
    }
}

/// A type that a column may be of.
pub trait Cell: Sized {
    /// What stands in the cell.
    fn value(&self) -> Value<'_>;
    /// From what stands there; `None` where it is of another kind, or a word that this version does not know.
    fn of(value: Value<'_>) -> Option<Self>;
}

/// Implements [`Cell`] for what is one kind of value.
macro_rules! cells {
    ($($type:ty: $value:pat => $of:expr, |$me:ident| $shown:expr;)+) => {$(
        impl $crate::request::cell::Cell for $type {
            fn value(&self) -> $crate::request::cell::Value<'_> {
                let $me = self;
                $shown
            }
            fn of(value: $crate::request::cell::Value<'_>) -> Option<$type> {
                match value {
                    $value => $of,
                    _ => None,
                }
            }
        }
    )+};
}
pub(crate) use cells;

cells! {
    String: Value::Text(text) => Some(text.into_owned()), |text| Value::Text(Cow::Borrowed(text));
    bool: Value::Bool(yes) => Some(yes), |yes| Value::Bool(*yes);
    u64: Value::Count(count) => Some(count), |count| Value::Count(*count);
    i64: Value::Nanos(nanos) => Some(nanos), |nanos| Value::Nanos(*nanos);
    Stamp: Value::Time(at) => Some(at), |at| Value::Time(*at);
}

/// Decimal seconds, in nanoseconds. Exact, which a float of epoch seconds is not.
pub fn nanos(cell: &str) -> Option<i64> {
    let (sign, digits) = match cell.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, cell),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 10 || part.len() > 9 || !is_plain(whole) || !is_plain(part)
    {
        // As other programs write it: 1e-05, or with more digits.
        let value: f64 = cell.parse().ok()?;
        let nanos = value * NANOS as f64;
        return (nanos.abs() < i64::MAX as f64).then_some(nanos.round() as i64);
    }
    let number = |text: &str| {
        text.bytes()
            .fold(0, |n: i64, byte| n * 10 + i64::from(byte - b'0'))
    };
    let scale = 10_i64.pow(9 - part.len() as u32);
    Some(sign * (number(whole) * NANOS + number(part) * scale))
}

/// Text as a cell. Control characters are spelt out, so that any reader takes the file and a row is one line of it;
/// a `'` stands before what a spreadsheet would run.
pub fn shown_text(text: Cow<'_, str>) -> Cow<'_, str> {
    // Nearly all text is; to ask all its bytes at once costs a fraction.
    let is_odd = |odd, byte: u8| odd | !matches!(byte, b' '..=b'~');
    let is_formula = is_formula(&text);
    if !is_formula && (!text.bytes().fold(false, is_odd) || !text.contains(is_control)) {
        return text;
    }
    let mut shown = String::with_capacity(text.len() + 8);
    if is_formula {
        shown.push('\'');
    }
    for c in text.chars() {
        if is_control(c) {
            // Writing to a String cannot fail.
            let _ = write!(shown, "\\x{:02x}", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// Also what some readers take for the end of a line.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Whether a spreadsheet would take it for a formula. An id may begin with `-`, and is to be found as it was sent.
fn is_formula(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match text.chars().next() {
        Some('=' | '+' | '@' | '＝' | '＋' | '－' | '＠') => true,
        Some('-') => !text.chars().all(is_plain),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_read_to_the_nanosecond() {
        for (cell, expected) in [
            ("1795168579.844124001", Some(1_795_168_579_844_124_001)),
            ("-0.000000001", Some(-1)),
            ("2", Some(2_000_000_000)),
            ("1.5", Some(1_500_000_000)),
            ("1e-05", Some(10_000)),
            ("0.1234567891", Some(123_456_789)),
            ("nan", None),
            ("inf", None),
            ("", None),
            ("-", None),
            ("1.2.3", None),
            ("99999999999999", None),
        ] {
            assert_eq!(nanos(cell), expected, "{cell:?}");
        }
    }
}
