//! Reads files of records: objects of JSON, in an array or one after the other (JSON lines), or rows of CSV.

use std::io::{self, BufRead, BufReader, Read};

use csv::{ErrorKind, ReaderBuilder, StringRecord, Terminator, Trim};
use serde::de::DeserializeOwned;

use crate::disk::MAX_LINE_BYTES;

use super::dataset::Dataset;

/// A file format of a data set.
pub trait Format {
    /// A record of the file.
    type Record: DeserializeOwned;
    /// The columns that a CSV file must have, each with its two possible names; `None` for JSON.
    fn columns(&self) -> Option<&'static [[&'static str; 2]]> {
        None
    }

    /// Describes the format, for error messages.
    fn expected(&self) -> &'static str;

    /// Adds the next record; returns whether to read on.
    ///
    /// # Errors
    /// What is wrong with the record.
    fn add(&mut self, record: Self::Record) -> Result<bool, String>;

    /// Returns the data set.
    ///
    /// # Errors
    /// Why the records are not a data set.
    fn finish(self) -> Result<Dataset, String>;
}

/// The longest record of JSON, which is held in memory. Enough for a prompt of some million tokens.
const MAX_RECORD_BYTES: usize = 1 << 24;

/// A file of records. Counts lines, and limits the length of a record.
struct RecordFile<R> {
    file: BufReader<R>,
    line: u64,
    /// Bytes of the current record so far.
    bytes: usize,
    max_bytes: usize,
}

/// Reads a data set.
///
/// # Errors
/// The number of the line and what is wrong there; to be appended to the file's name.
pub fn read<F: Format>(file: impl Read, mut format: F) -> Result<Dataset, String> {
    let read = match format.columns() {
        Some(columns) => read_csv(file, columns, &mut format),
        None => read_json(file, &mut format),
    };
    read.map_err(|(line, problem)| format!(", line {line}: {problem}; {}", format.expected()))?;
    format.finish().map_err(|problem| format!(": {problem}"))
}

/// The number of a line, and what is wrong there.
type LineError = (u64, String);

fn read_json<F: Format>(file: impl Read, format: &mut F) -> Result<(), LineError> {
    let mut json = RecordFile::new(file, MAX_RECORD_BYTES);
    let is_array = json.peek()? == Some(b'[');
    if is_array {
        json.skip();
    }
    // The last token of an array: `[`, `,`, `]`, or `}` for a record. `None` in JSON lines.
    let mut last = is_array.then_some(b'[');
    loop {
        match (last, json.peek()?) {
            (None | Some(b'[' | b','), Some(b'{')) => {}
            (Some(b'}'), Some(token @ (b',' | b']'))) | (Some(b'['), Some(token @ b']')) => {
                json.skip();
                last = Some(token);
                continue;
            }
            (None | Some(b']'), None) => return Ok(()),
            (_, None) => return Err(json.error("is not JSON: the list does not end")),
            (Some(b'}'), _) => return Err(json.error("is not JSON: expected `,` or `]`")),
            _ => return Err(json.error("is not JSON: must be an object, `{…}`")),
        }
        last = is_array.then_some(b'}');
        let line = json.line;
        json.bytes = 0;
        let mut deserializer = serde_json::Deserializer::from_reader(&mut json);
        let record = serde_path_to_error::deserialize(&mut deserializer);
        let record = record.map_err(|error| (line, problem(&error)))?;
        if !format.add(record).map_err(|problem| (line, problem))? {
            return Ok(());
        }
    }
}

/// Describes what is wrong with a record of JSON, with the path of the wrong value.
fn problem(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let (path, text) = (error.path().to_string(), error.inner().to_string());
    // serde's line is removed: it counts from the start of the record.
    let message = text.rsplit_once(" at line ");
    let message = message.map_or(&*text, |(message, _)| message);
    match (error.inner().is_data(), &*path) {
        (false, _) if error.inner().is_io() => text,
        (false, _) => format!("is not JSON: {message}"),
        (true, ".") => message.to_owned(),
        (true, path) => format!("`{path}`: {message}"),
    }
}

impl<R: Read> RecordFile<R> {
    fn new(file: R, max_bytes: usize) -> RecordFile<R> {
        RecordFile {
            file: BufReader::with_capacity(1 << 16, file),
            line: 1,
            bytes: 0,
            max_bytes,
        }
    }

    /// Skips white space and returns the byte after it, without consuming that.
    fn peek(&mut self) -> Result<Option<u8>, LineError> {
        loop {
            match self.file.fill_buf().map(|rest| rest.first().copied()) {
                Ok(Some(byte)) if byte.is_ascii_whitespace() => self.skip(),
                Ok(byte) => return Ok(byte),
                Err(cause) => return Err(self.error(&cause.to_string())),
            }
        }
    }

    /// Skips the next byte.
    fn skip(&mut self) {
        self.line += u64::from(self.file.buffer().first() == Some(&b'\n'));
        self.file.consume(1);
    }

    fn error(&self, problem: &str) -> LineError {
        (self.line, problem.to_owned())
    }
}

impl<R: Read> Read for RecordFile<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(into)?;
        let read = into.get(..count).unwrap_or_default();
        self.line += memchr::memchr_iter(b'\n', read).count() as u64;
        self.bytes += count;
        match self.bytes > self.max_bytes {
            true => {
                let max = self.max_bytes;
                Err(io::Error::other(format!("has more than {max} bytes")))
            }
            false => Ok(count),
        }
    }
}

fn read_csv<F: Format>(
    file: impl Read,
    columns: &[[&str; 2]],
    format: &mut F,
) -> Result<(), LineError> {
    let file = RecordFile::new(file, MAX_LINE_BYTES);
    let mut rows = ReaderBuilder::new();
    // With the terminator `\r\n` its count of lines would lag behind.
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
        // A row's position is that of the blank lines before it. The reader has gone past the row's line, unless that is the last.
        let last_read = rows.position().line() - 1;
        let line = row
            .position()
            .map_or(last_read, |at| at.line().max(last_read));
        if !read.map_err(|error| (line, error.to_string()))? {
            return Ok(());
        }
        // What has been read ahead, a few KB, belongs to the next rows.
        rows.get_mut().bytes = 0;
        if row.iter().all(str::is_empty) {
            continue;
        }
        let record = row.deserialize(Some(&names));
        let record = record.map_err(|error| (line, wrong_cell(&error, &names, &row)))?;
        if !format.add(record).map_err(|problem| (line, problem))? {
            return Ok(());
        }
    }
}

/// Describes what is wrong with a row of CSV, with its column.
fn wrong_cell(error: &csv::Error, names: &StringRecord, row: &StringRecord) -> String {
    let ErrorKind::Deserialize { err, .. } = error.kind() else {
        return error.to_string();
    };
    let index = err.field().and_then(|index| usize::try_from(index).ok());
    let cell = index.and_then(|index| Some((names.get(index)?, row.get(index)?)));
    match (cell, names.get(row.len())) {
        (Some((name, cell)), _) => format!("`{name}`: `{cell}`: {}", err.kind()),
        (None, Some(name)) => format!("has no cell of the column {name}"),
        (None, None) => err.kind().to_string(),
    }
}
