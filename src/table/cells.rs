//! Lines of CSV: their cells read, and rows written.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::request::cell::Value;
use crate::request::csv::{self, TimeBase};
use crate::request::row::Row;

/// Writes rows to `W`. Whatever reaches `W` in one `write_all` is a number of whole lines.
#[derive(Debug)]
pub struct RowWriter<W: Write> {
    out: W,
    base: TimeBase,
    block: Vec<u8>,
}

/// Bytes gathered before they are handed on.
const BLOCK: usize = 64 * 1024;

impl<W: Write> RowWriter<W> {
    /// A writer that has written the header line.
    ///
    /// # Errors
    /// What `out` answers.
    pub fn new(out: W, base: TimeBase) -> io::Result<RowWriter<W>> {
        let mut writer = RowWriter {
            out,
            base,
            block: Vec::new(),
        };
        csv::header(&mut writer.block);
        writer.flush()?;
        Ok(writer)
    }

    /// Adds a row; it reaches `out` with the next [`RowWriter::flush`], or when enough have gathered.
    ///
    /// # Errors
    /// What `out` answers; the rows gathered so far are then lost.
    pub fn write(&mut self, row: &Row) -> io::Result<()> {
        csv::row(row, self.base, &mut self.block);
        self.hand_on(BLOCK)
    }

    /// The same of its cells, in the order of the columns.
    ///
    /// # Errors
    /// As [`RowWriter::write`].
    pub fn write_cells<'a>(&mut self, cells: impl Iterator<Item = Value<'a>>) -> io::Result<()> {
        csv::line(cells, self.base, &mut self.block);
        self.hand_on(BLOCK)
    }

    /// Hands all rows to `out` and flushes it.
    ///
    /// # Errors
    /// What `out` answers; the rows gathered so far are then lost.
    pub fn flush(&mut self) -> io::Result<()> {
        self.hand_on(0)?;
        self.out.flush()
    }

    /// Where the rows go.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    /// Hands all rows on; gives where they went.
    ///
    /// # Errors
    /// What `out` answers.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.out)
    }

    /// Where as much as this has gathered.
    fn hand_on(&mut self, least: usize) -> io::Result<()> {
        if self.block.len() < least {
            return Ok(());
        }
        let written = self.out.write_all(&self.block);
        self.block.clear();
        written
    }
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

    #[test]
    fn what_reaches_the_file_is_whole_lines() {
        struct Lines(usize);
        impl Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                assert!(bytes.ends_with(b"\n"));
                self.0 += 1;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writer = RowWriter::new(Lines(0), TimeBase::Epoch).unwrap();
        let record = Row::default();
        for _ in 0..2000 {
            writer.write(&record).unwrap();
        }
        writer.flush().unwrap();
        assert!((3..100).contains(&writer.out.0), "{} writes", writer.out.0);
    }
}
