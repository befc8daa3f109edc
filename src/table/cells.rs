//! Lines of CSV: their cells read, and rows written.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::clock::NANOS;
use crate::request::cell::Value;
use crate::request::columns::COLUMNS;

/// Writes rows of all columns: of each row what stands in the column of a place in [`COLUMNS`], and how many nanoseconds before
/// its times those of the file count from.
///
/// # Errors
/// What `out` answers.
pub fn write<R>(
    out: impl Write,
    rows: impl IntoIterator<Item = R>,
    cell: impl for<'r> Fn(&'r R, usize) -> (Value<'r>, i64),
) -> io::Result<()> {
    let mut out = csv::Writer::from_writer(out);
    out.write_record(COLUMNS.iter().map(|column| column.name))?;
    for row in rows {
        let cells = (0..COLUMNS.len()).map(|place| {
            let (value, zero) = cell(&row, place);
            match value {
                Value::Empty => Cow::default(),
                Value::Text(text) => text,
                Value::Bool(true) => "True".into(),
                Value::Bool(false) => "False".into(),
                Value::Count(count) => count.to_string().into(),
                Value::Nanos(nanos) => seconds(nanos).into(),
                Value::Time(at) => seconds(at.nanos().saturating_add(zero)).into(),
            }
        });
        for cell in cells {
            out.write_field(cell.as_bytes())?;
        }
        out.write_record(None::<&[u8]>)?;
    }
    out.flush()
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
