//! A cell of a row: its value, as JSON, and of seconds as text.

use std::borrow::Cow;

use crate::clock::{NANOS, Stamp};

/// The value of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Unknown.
    Empty,
    /// Text.
    Text(Cow<'a, str>),
    /// `True` or `False`.
    Bool(bool),
    /// A count.
    Count(u64),
    /// A duration, nanoseconds; written as seconds.
    Nanos(i64),
    /// A moment; written as seconds from the file's time base.
    Time(Stamp),
}

impl Value<'_> {
    /// Converts the value to JSON: durations in seconds, moments in epoch seconds.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Value::Empty => serde_json::Value::Null,
            Value::Text(text) => text.as_ref().into(),
            Value::Bool(flag) => (*flag).into(),
            Value::Count(count) => (*count).into(),
            Value::Nanos(nanos) => (*nanos as f64 / NANOS as f64).into(),
            Value::Time(at) => at.seconds().into(),
        }
    }

    /// A count, or the nanoseconds of a duration or a moment; of anything else `None`.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Value::Count(count) => Some(i64::try_from(*count).unwrap_or(i64::MAX)),
            Value::Nanos(nanos) => Some(*nanos),
            Value::Time(at) => Some(at.nanos()),
            Value::Empty | Value::Text(_) | Value::Bool(_) => None,
        }
    }

    /// A text, or the word of a flag; of anything else empty.
    pub fn text(&self) -> &str {
        match self {
            Value::Text(text) => text,
            Value::Bool(true) => "True",
            Value::Bool(false) => "False",
            _ => "",
        }
    }
}

/// A type that a column may have.
pub trait Cell: Sized {
    /// Returns the cell's value.
    fn value(&self) -> Value<'_>;
    /// Reads a cell's value; `None` if it is of another kind, or a name that this version does not know.
    fn of(value: Value<'_>) -> Option<Self>;
}

/// Implements [`Cell`] for types that are one kind of [`Value`], or that have names.
macro_rules! cells {
    ($($type:ident),+) => { $crate::request::cell::cells! {
        $($type: Value::Text(name) => $type::named(&name), |one| Value::Text(one.name().into());)+
    } };
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
    bool: Value::Bool(flag) => Some(flag), |flag| Value::Bool(*flag);
    u64: Value::Count(count) => Some(count), |count| Value::Count(*count);
    i64: Value::Nanos(nanos) => Some(nanos), |nanos| Value::Nanos(*nanos);
    Stamp: Value::Time(at) => Some(at), |at| Value::Time(*at);
}

/// Parses decimal seconds into nanoseconds: exactly, which a float of epoch seconds is not, and rounded from the tenth digit on.
pub fn nanos(cell: &[u8]) -> Option<i64> {
    parse_exact(cell).or_else(|| {
        // Other programs write exponents: 1e-05.
        let value: f64 = str::from_utf8(cell).ok()?.parse().ok()?;
        let nanos = value * NANOS as f64;
        (nanos.abs() < i64::MAX as f64).then_some(nanos.round() as i64)
    })
}

fn parse_exact(cell: &[u8]) -> Option<i64> {
    let (sign, digits) = match cell {
        [b'-', digits @ ..] => (-1, digits),
        digits => (1, digits),
    };
    let (whole, part) = leading_number(digits, 10);
    let is_whole = part.len() < digits.len();
    let part = match part {
        [] => part,
        [b'.', part @ ..] => part,
        _ => return None,
    };
    let (number, rest) = leading_number(part, 9);
    if !is_whole || !rest.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let up = i64::from(rest.first().is_some_and(|digit| *digit >= b'5'));
    let places = (part.len() - rest.len()) as u32;
    let part = number * 10_i64.pow(9 - places) + up;
    Some(sign * whole.checked_mul(NANOS)?.checked_add(part)?)
}

/// Parses up to `max_digits` leading digits; returns the number and the rest.
fn leading_number(mut text: &[u8], max_digits: usize) -> (i64, &[u8]) {
    let mut number = 0;
    for _ in 0..max_digits {
        let [digit @ b'0'..=b'9', rest @ ..] = text else {
            break;
        };
        number = number * 10 + i64::from(digit - b'0');
        text = rest;
    }
    (number, text)
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
            ("-0.00034999847412109375", Some(-349_998)),
            ("0.9999999995", Some(1_000_000_000)),
            ("0.123456789x", None),
            ("0.12345678901e1", Some(1_234_567_890)),
            ("nan", None),
            ("inf", None),
            ("", None),
            ("-", None),
            ("1.2.3", None),
            ("99999999999999", None),
            ("9999999999.5", None),
        ] {
            assert_eq!(nanos(cell.as_bytes()), expected, "{cell:?}");
        }
    }
}
