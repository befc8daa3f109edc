//! The cells of a line of CSV, and what they hold.

use std::borrow::Cow;

use crate::clock::NANOS;
use crate::request::cell::Value;

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
}
