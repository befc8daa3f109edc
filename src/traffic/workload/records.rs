//! Files of records: objects of JSON, in an array or one behind another (JSON lines), or rows of CSV.

use std::io::{self, BufRead, BufReader, Read};

use csv::{ErrorKind, ReaderBuilder, StringRecord, Terminator, Trim};
use serde::de::DeserializeOwned;

use crate::disk::LONGEST_LINE;

use super::dataset::Dataset;

/// A kind of file that a data set is read from.
pub trait Format {
    /// A record as it stands in the file.
    type Record: DeserializeOwned;
    /// The columns that CSV must have, by either name in its first line; `None`: it is JSON.
    fn columns(&self) -> Option<&'static [[&'static str; 2]]> {
        None
    }

    /// What is right.
    fn right(&self) -> &'static str;

    /// Takes the next record in; says whether the one behind it is wanted.
    ///
    /// # Errors
    /// What is wrong with it.
    fn take(&mut self, record: Self::Record) -> Result<bool, String>;

    /// What the records are, and in words how many were taken.
    ///
    /// # Errors
    /// Why they are no data set.
    fn finish(self) -> Result<(Dataset, String), String>;
}

/// An endless record of JSON must not be held whole either; one may hold a prompt of some million tokens.
const LONGEST_RECORD: usize = 1 << 24;

/// A text of JSON that counts its lines.
struct Text<R> {
    file: BufReader<R>,
    line: u64,
    /// Bytes of its record so far.
    record: usize,
}

/// A text whose lines are not endless.
struct Lines<R> {
    file: R,
    /// Bytes of its line so far.
    line: usize,
}

/// Reads a data set.
///
/// # Errors
/// What is wrong with the file, from the line on.
pub fn read<F: Format>(file: impl Read, mut format: F) -> Result<(Dataset, String), String> {
    let read = match format.columns() {
        Some(columns) => read_csv(file, columns, &mut format),
        None => read_json(file, &mut format),
    };
    read.map_err(|(line, what)| format!(", line {line}: {what}; {}", format.right()))?;
    format.finish().map_err(|what| format!(": {what}"))
}

/// The number of a line, and what is wrong there.
type Wrong = (u64, String);

fn read_json<F: Format>(file: impl Read, format: &mut F) -> Result<(), Wrong> {
    let mut text = Text {
        file: BufReader::with_capacity(1 << 16, file),
        line: 1,
        record: 0,
    };
    let has_list = text.next()? == Some(b'[');
    if has_list {
        text.pass();
    }
    // What a list has last: `[`, `,`, `]`, or a record.
    let mut last = has_list.then_some(b'[');
    loop {
        match (last, text.next()?) {
            (None | Some(b'[' | b','), Some(b'{')) => {}
            (Some(b'}'), Some(mark @ (b',' | b']'))) | (Some(b'['), Some(mark @ b']')) => {
                text.pass();
                last = Some(mark);
                continue;
            }
            (None | Some(b']'), None) => return Ok(()),
            (_, None) => return Err(text.wrong("is not JSON: the list does not end")),
            (Some(b'}'), _) => return Err(text.wrong("is not JSON: expected `,` or `]`")),
            _ => return Err(text.wrong("is not JSON: must be an object, `{…}`")),
        }
        last = has_list.then_some(b'}');
        let line = text.line;
        text.record = 0;
        let mut json = serde_json::Deserializer::from_reader(&mut text);
        let record = serde_path_to_error::deserialize(&mut json);
        let record = record.map_err(|error| (line, problem(&error)))?;
        if !format.take(record).map_err(|what| (line, what))? {
            return Ok(());
        }
    }
}

/// What is wrong with a record of JSON, and where in it.
fn problem(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let (path, text) = (error.path().to_string(), error.inner().to_string());
    // Its lines are counted from the record's first.
    let what = text.rsplit_once(" at line ");
    let what = what.map_or(&*text, |(what, _)| what);
    match (error.inner().is_data(), &*path) {
        (false, _) if error.inner().is_io() => text,
        (false, _) => format!("is not JSON: {what}"),
        (true, ".") => what.to_owned(),
        (true, path) => format!("`{path}`: {what}"),
    }
}

impl<R: Read> Text<R> {
    /// The next byte that is no white space, which it stands before.
    fn next(&mut self) -> Result<Option<u8>, Wrong> {
        loop {
            match self.file.fill_buf().map(|rest| rest.first().copied()) {
                Ok(Some(byte)) if byte.is_ascii_whitespace() => self.pass(),
                Ok(byte) => return Ok(byte),
                Err(cause) => return Err(self.wrong(&cause.to_string())),
            }
        }
    }

    /// Goes on behind the byte that it stands before.
    fn pass(&mut self) {
        self.line += u64::from(self.file.buffer().first() == Some(&b'\n'));
        self.file.consume(1);
    }

    fn wrong(&self, what: &str) -> Wrong {
        (self.line, what.to_owned())
    }
}

impl<R: Read> Read for Text<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(into)?;
        let read = into.get(..count).unwrap_or_default();
        self.line += memchr::memchr_iter(b'\n', read).count() as u64;
        self.record += count;
        not_beyond(self.record, LONGEST_RECORD).map(|()| count)
    }
}

impl<R: Read> Read for Lines<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(into)?;
        let read = into.get(..count).unwrap_or_default();
        self.line = match memchr::memrchr(b'\n', read) {
            Some(end) => count - end,
            None => self.line + count,
        };
        not_beyond(self.line, LONGEST_LINE).map(|()| count)
    }
}

fn not_beyond(length: usize, most: usize) -> io::Result<()> {
    match length > most {
        true => Err(io::Error::other(format!("has more than {most} bytes"))),
        false => Ok(()),
    }
}

fn read_csv<F: Format>(
    file: impl Read,
    columns: &[[&str; 2]],
    format: &mut F,
) -> Result<(), Wrong> {
    let file = Lines { file, line: 0 };
    let mut rows = ReaderBuilder::new();
    // With `\r\n` its count of lines would lag behind.
    rows.terminator(Terminator::Any(b'\n')).trim(Trim::All);
    let mut rows = rows.flexible(true).from_reader(file);
    let names = rows.headers().map_err(|error| (1, error.to_string()))?;
    if let Some(column) = columns
        .iter()
        .find(|column| !names.iter().any(|name| column.contains(&name)))
    {
        return Err((1, format!("has no column {}", column.join(" or "))));
    }
    let (names, mut row) = (names.clone(), StringRecord::new());
    loop {
        let read = rows.read_record(&mut row);
        // The reader is behind the row's line unless that is the last; the row begins with the blank lines before it.
        let behind = rows.position().line() - 1;
        let line = row.position().map_or(behind, |at| at.line().max(behind));
        if !read.map_err(|error| (line, error.to_string()))? {
            return Ok(());
        }
        if row.iter().all(str::is_empty) {
            continue;
        }
        let record = row.deserialize(Some(&names));
        let record = record.map_err(|error| (line, wrong_cell(&error, &names, &row)))?;
        if !format.take(record).map_err(|what| (line, what))? {
            return Ok(());
        }
    }
}

/// What is wrong with a row of CSV, and in which column.
fn wrong_cell(error: &csv::Error, names: &StringRecord, row: &StringRecord) -> String {
    let ErrorKind::Deserialize { err, .. } = error.kind() else {
        return error.to_string();
    };
    let place = err.field().and_then(|place| usize::try_from(place).ok());
    let cell = place.and_then(|place| Some((names.get(place)?, row.get(place)?)));
    match (cell, names.get(row.len())) {
        (Some((name, cell)), _) => format!("`{name}`: `{cell}`: {}", err.kind()),
        (None, Some(name)) => format!("has no cell of the column {name}"),
        (None, None) => err.kind().to_string(),
    }
}
