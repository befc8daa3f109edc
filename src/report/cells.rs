//! The cells of a line of CSV, and what they hold.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::clock::NANOS;
use crate::request::column::Value;

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

/// A cell as a file of rows has it; times count from as many nanoseconds before.
pub fn written(value: Value<'_>, zero: i64) -> String {
    match value {
        Value::Empty => String::new(),
        Value::Text(text) if text.contains([',', '"']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Value::Text(text) => text.into_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Count(count) => count.to_string(),
        Value::Nanos(nanos) => seconds(nanos),
        Value::Time(at) => seconds(at.nanos().saturating_add(zero)),
    }
}

/// Nine digits.
fn seconds(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let (whole, part) = (nanos.abs() / NANOS, nanos.abs() % NANOS);
    format!("{sign}{whole}.{part:09}")
}

/// The cells of a line.
pub struct Cells<'l> {
    rest: Option<&'l str>,
}

impl<'l> Cells<'l> {
    /// Of a line without its end.
    pub fn of(line: &'l str) -> Cells<'l> {
        Cells { rest: Some(line) }
    }
}

impl<'l> Iterator for Cells<'l> {
    type Item = Cow<'l, str>;

    fn next(&mut self) -> Option<Cow<'l, str>> {
        let rest = self.rest?;
        let Some(quoted) = rest.strip_prefix('"') else {
            let (cell, rest) = match memchr::memchr(b',', rest.as_bytes()) {
                Some(at) => (rest.get(..at).unwrap_or_default(), rest.get(at + 1..)),
                None => (rest, None),
            };
            self.rest = rest;
            return Some(Cow::Borrowed(cell));
        };
        let mut at = 0;
        let end = loop {
            let Some(quote) = memchr::memchr(b'"', &quoted.as_bytes()[at..]) else {
                // Never closed: the line ends in the middle of the cell.
                self.rest = None;
                return None;
            };
            at += quote + 1;
            match quoted.as_bytes().get(at) {
                Some(b'"') => at += 1,
                _ => break at - 1,
            }
        };
        let cell = &quoted[..end];
        self.rest = quoted[end + 1..].strip_prefix(',');
        Some(match cell.contains('"') {
            true => Cow::Owned(cell.replace("\"\"", "\"")),
            false => Cow::Borrowed(cell),
        })
    }
}

/// Text as a cell. Control characters are spelt out, so that any reader takes the file and a row is one line of it;
/// a `'` stands before what a spreadsheet would run.
pub fn shown_text(text: Cow<'_, str>) -> Cow<'_, str> {
    let is_formula = is_formula(&text);
    // Nearly all text is; to ask its bytes costs a fraction.
    let is_printable_ascii = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if !is_formula && (is_printable_ascii || !text.contains(is_control)) {
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

    fn cells(line: &str) -> Vec<String> {
        Cells::of(line).map(Cow::into_owned).collect()
    }

    #[test]
    fn a_line_is_cut_as_it_was_written() {
        assert_eq!(cells("a,,c,"), ["a", "", "c", ""]);
        assert_eq!(cells(""), [""]);
        assert_eq!(cells("\"a,b\",c"), ["a,b", "c"]);
        assert_eq!(cells("x,\"say \"\"no\"\"\""), ["x", "say \"no\""]);
        // Cut in the middle of a cell: what was there before is known.
        assert_eq!(cells("x,\"never clo"), ["x"]);
        assert_eq!(cells("x,\""), ["x"]);
    }

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
