//! Writes rows as CSV, and splits lines of CSV into cells.

use std::borrow::Cow;
use std::io::{self, BufWriter, IntoInnerError, Write};

use crate::clock::Stamp;
use crate::request::{Row, csv};

/// Writes rows to `W`, each `write_all` with whole lines only.
#[derive(Debug)]
pub struct RowWriter<W: Write> {
    out: BufWriter<W>,
    base: Stamp,
    line: Vec<u8>,
}

/// Bytes collected before they are written.
const BLOCK_BYTES: usize = 64 * 1024;

impl<W: Write> RowWriter<W> {
    /// Creates a writer and writes the header line.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W, base: Stamp) -> io::Result<RowWriter<W>> {
        let mut line = Vec::new();
        csv::header(&mut line);
        let mut out = BufWriter::with_capacity(BLOCK_BYTES, out);
        out.write_all(&line)?;
        out.flush()?;
        Ok(RowWriter { out, base, line })
    }

    /// Adds a row, which is written at the next [`RowWriter::flush`] or when the block is full.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&mut self, row: &Row) -> io::Result<()> {
        self.line.clear();
        csv::row(row, self.base, &mut self.line);
        // What does not fit beside the lines before it is written after them: no line is cut.
        self.out.write_all(&self.line)
    }

    /// Writes all rows to `out` and flushes it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// The underlying writer.
    pub fn get_ref(&self) -> &W {
        self.out.get_ref()
    }

    /// Writes all rows; returns the underlying writer.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(self) -> io::Result<W> {
        self.out.into_inner().map_err(IntoInnerError::into_error)
    }
}

/// The cells of a line.
pub struct Cells<'l> {
    rest: Option<&'l str>,
}

impl<'l> Cells<'l> {
    /// The cells of a line without its line break.
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
                // No closing quote: the line ends within the cell.
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
    fn a_line_is_split_into_the_cells_it_was_written_of() {
        assert_eq!(cells("a,,c,"), ["a", "", "c", ""]);
        assert_eq!(cells(""), [""]);
        assert_eq!(cells("\"a,b\",c"), ["a,b", "c"]);
        assert_eq!(cells("x,\"say \"\"no\"\"\""), ["x", "say \"no\""]);
        // The line ends within a quoted cell: only the cells before it are returned.
        assert_eq!(cells("x,\"never clo"), ["x"]);
        assert_eq!(cells("x,\""), ["x"]);
    }

    #[test]
    fn only_whole_lines_are_written() {
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
        let mut writer = RowWriter::new(Lines(0), Stamp::EPOCH).unwrap();
        let row = Row::default();
        for _ in 0..2000 {
            writer.write(&row).unwrap();
        }
        writer.flush().unwrap();
        let writes = writer.get_ref().0;
        assert!((3..100).contains(&writes), "{writes} writes");
    }
}
