//! Rows as CSV: the columns of [`COLUMNS`], one line per row; how text is escaped there.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::clock::{NANOS, Stamp};

use super::cell::Value;
use super::columns::{COLUMNS, Row};

/// The user's choice of what times count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Base {
    /// The start of the run
    Run,
    /// The Unix epoch
    Epoch,
}

impl Base {
    /// Returns what the times of a run that began at `started` count from.
    pub fn of_run(self, started: Stamp) -> Stamp {
        match self {
            Base::Run => started,
            Base::Epoch => Stamp::EPOCH,
        }
    }
}

/// Appends the header line to `block`.
pub fn header(block: &mut Vec<u8>) {
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    block.extend_from_slice(names.join(",").as_bytes());
    block.push(b'\n');
}

/// Appends a row's line to `block`; its times count from `base`.
pub fn row(row: &Row, base: Stamp, block: &mut Vec<u8>) {
    row.cells(|value| {
        // Most cells are empty.
        if !matches!(value, Value::Empty) {
            cell(value, base, block);
        }
        block.push(b',');
    });
    block.pop();
    block.push(b'\n');
}

/// Not inlined: the closure that every cell goes through stays small.
#[inline(never)]
fn cell(value: Value<'_>, base: Stamp, block: &mut Vec<u8>) {
    match value {
        Value::Empty => {}
        Value::Text(text) if is_plain(&text) => block.extend_from_slice(text.as_bytes()),
        Value::Text(text) => quoted(&shown_text(text), block),
        Value::Bool(true) => block.extend_from_slice(b"True"),
        Value::Bool(false) => block.extend_from_slice(b"False"),
        Value::Count(count) => {
            block.extend_from_slice(itoa::Buffer::new().format(count).as_bytes())
        }
        Value::Nanos(nanos) => seconds(nanos, block),
        Value::Time(at) => seconds(at.nanos_since(base), block),
    }
}

/// Whether text stands in a CSV file unchanged. Nearly all does; checking all bytes without a branch costs a fraction.
fn is_plain(text: &str) -> bool {
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

/// Appends text, quoted if it needs to be: RFC 4180. Its control characters are escaped already.
fn quoted(text: &str, block: &mut Vec<u8>) {
    if memchr::memchr2(b',', b'"', text.as_bytes()).is_none() {
        return block.extend_from_slice(text.as_bytes());
    }
    block.push(b'"');
    block.extend_from_slice(text.replace('"', "\"\"").as_bytes());
    block.push(b'"');
}

/// Appends decimal seconds with nine digits, exact: a float of epoch seconds would lose 0.24 µs.
fn seconds(nanos: i64, block: &mut Vec<u8>) {
    if nanos < 0 {
        block.push(b'-');
    }
    let (nanos, second) = (nanos.unsigned_abs(), NANOS.unsigned_abs());
    let mut digits = itoa::Buffer::new();
    match nanos / second {
        // Nearly all durations: to format their only digit would cost as much as the other nine.
        whole @ ..10 => block.push(b'0' + whole as u8),
        whole => block.extend_from_slice(digits.format(whole).as_bytes()),
    }
    // Leading zeros belong to the part: a whole second is added, whose digit the point replaces. So there are always ten, and to
    // copy a known number of bytes is no call.
    let part = digits.format((second + nanos % second) as u32);
    let mut part = *part.as_bytes().first_chunk().unwrap_or(b".000000000");
    part[0] = b'.';
    block.extend_from_slice(&part);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact_to_the_nanosecond() {
        for (nanos, text) in [
            (1_795_168_579_844_124_001, "1795168579.844124001"),
            (0, "0.000000000"),
            (-1, "-0.000000001"),
            (-1_500_000_000, "-1.500000000"),
            (i64::MIN, "-9223372036.854775808"),
        ] {
            let mut block = Vec::new();
            seconds(nanos, &mut block);
            assert_eq!(block, text.as_bytes());
        }
    }

    #[test]
    fn text_from_outside_is_escaped_and_never_run() {
        for (text, shown) in [
            ("plain, \"quoted\" é 🦀 ' =", "plain, \"quoted\" é 🦀 ' ="),
            ("nul\0tab\tdel\x7f", "nul\\x00tab\\x09del\\x7f"),
            ("next\u{85}line", "next\\x85line"),
            ("\r=1", "\\x0d=1"),
            ("=1+1", "'=1+1"),
            ("=", "'="),
            ("+1", "'+1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("-1+cmd|' /C calc'!A0", "'-1+cmd|' /C calc'!A0"),
            // Generated ids look like this, and must be found as they were sent.
            ("-Xa9_b-4.z", "-Xa9_b-4.z"),
            ("-", "-"),
        ] {
            assert_eq!(shown_text(text.into()), shown, "{text:?}");
        }
    }
}
