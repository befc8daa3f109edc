//! A cell of a row: its value, and how that is written as text.

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
}

/// A type that a column may have.
pub trait Cell: Sized {
    /// Returns the cell's value.
    fn value(&self) -> Value<'_>;
    /// Reads a cell's value; `None` if it is of another kind, or a name that this version does not know.
    fn of(value: Value<'_>) -> Option<Self>;
}

/// Implements [`Cell`] for types that are one kind of [`Value`].
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
    bool: Value::Bool(flag) => Some(flag), |flag| Value::Bool(*flag);
    u64: Value::Count(count) => Some(count), |count| Value::Count(*count);
    i64: Value::Nanos(nanos) => Some(nanos), |nanos| Value::Nanos(*nanos);
    Stamp: Value::Time(at) => Some(at), |at| Value::Time(*at);
}

/// Parses decimal seconds into nanoseconds: exactly up to nine digits behind the point, which a float of epoch seconds is not.
pub fn nanos(cell: &[u8]) -> Option<i64> {
    let cell = str::from_utf8(cell).ok()?;
    parse_exact(cell).or_else(|| {
        // Other programs write more digits, and exponents: 1e-05.
        let nanos = cell.parse::<f64>().ok()? * NANOS as f64;
        (nanos.abs() < i64::MAX as f64).then_some(nanos.round() as i64)
    })
}

fn parse_exact(cell: &str) -> Option<i64> {
    let (whole, part) = cell.split_once('.').unwrap_or((cell, "0"));
    let missing = 9_u32.checked_sub(part.len() as u32)?;
    // `parse` would accept a leading `+`.
    part.as_bytes()
        .first()
        .filter(|digit| digit.is_ascii_digit())?;
    let part = i64::from(part.parse::<u32>().ok()?) * 10_i64.pow(missing);
    let part = if whole.starts_with('-') { -part } else { part };
    let whole = whole.parse::<i64>().ok()?;
    whole.checked_mul(NANOS)?.checked_add(part)
}

/// Whether text stands in a CSV file unchanged. Nearly all does; checking all bytes without a branch costs a fraction.
pub fn is_plain(text: &str) -> bool {
    let is_odd = |odd, byte| odd | !matches!(byte, b' '..=b'~') | matches!(byte, b',' | b'"');
    !is_formula(text) && !text.bytes().fold(false, is_odd)
}

/// Escapes text for a cell. Control characters are spelled out, so that every reader accepts the file and a row is one line of
/// it; a `'` precedes what a spreadsheet would run as a formula.
pub fn shown_text(text: Cow<'_, str>) -> Cow<'_, str> {
    let is_formula = is_formula(&text);
    if is_plain(&text) || !is_formula && !text.contains(is_control) {
        return text;
    }
    let mut shown = String::from(if is_formula { "'" } else { "" });
    for c in text.chars() {
        match is_control(c) {
            true => shown += &format!("\\x{:02x}", u32::from(c)),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Control characters, and what some readers take for the end of a line.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Whether a spreadsheet would take text for a formula. Ids that begin with `-` are no formulas: they must be found as they
/// were sent.
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
