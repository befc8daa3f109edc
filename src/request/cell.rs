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

/// Decimal seconds, in nanoseconds: exact, which a float of epoch seconds is not, and rounded from the tenth digit on.
pub fn nanos(cell: &[u8]) -> Option<i64> {
    exact(cell).or_else(|| {
        // As other programs write it: 1e-05.
        let value: f64 = str::from_utf8(cell).ok()?.parse().ok()?;
        let nanos = value * NANOS as f64;
        (nanos.abs() < i64::MAX as f64).then_some(nanos.round() as i64)
    })
}

fn exact(cell: &[u8]) -> Option<i64> {
    let (sign, digits) = match cell {
        [b'-', digits @ ..] => (-1, digits),
        digits => (1, digits),
    };
    let (whole, part) = leading(digits, 10);
    let is_whole = part.len() < digits.len();
    let part = match part {
        [] => part,
        [b'.', part @ ..] => part,
        _ => return None,
    };
    let (number, rest) = leading(part, 9);
    if !is_whole || !rest.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let up = i64::from(rest.first().is_some_and(|digit| *digit >= b'5'));
    let places = (part.len() - rest.len()) as u32;
    let part = number * 10_i64.pow(9 - places) + up;
    Some(sign * whole.checked_mul(NANOS)?.checked_add(part)?)
}

/// The number that the first digits are, of at most so many, and what is behind them.
fn leading(mut text: &[u8], most: usize) -> (i64, &[u8]) {
    let mut number = 0;
    for _ in 0..most {
        let [digit @ b'0'..=b'9', rest @ ..] = text else {
            break;
        };
        number = number * 10 + i64::from(digit - b'0');
        text = rest;
    }
    (number, text)
}

/// Whether text stands in a CSV as it is. Nearly all does; to ask all its bytes at once costs a fraction.
pub fn is_plain(text: &str) -> bool {
    let is_odd = |odd, byte| odd | !matches!(byte, b' '..=b'~') | matches!(byte, b',' | b'"');
    !is_formula(text) && !text.bytes().fold(false, is_odd)
}

/// Text as a cell. Control characters are spelt out, so that any reader takes the file and a row is one line of it;
/// a `'` stands before what a spreadsheet would run.
pub fn shown_text(text: Cow<'_, str>) -> Cow<'_, str> {
    let is_formula = is_formula(&text);
    if is_plain(&text) || !is_formula && !text.contains(is_control) {
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
