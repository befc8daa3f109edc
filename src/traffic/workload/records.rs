//! Reads files of records: objects of JSON, in an array or one a line (JSON lines), or rows of CSV.

use std::fmt;
use std::io::BufRead;

use csv::{ErrorKind, Position, ReaderBuilder, StringRecord, Terminator, Trim};
use serde::de::{
    Deserialize as _, DeserializeOwned, Deserializer as _, Error as _, SeqAccess, Visitor,
};
use serde_path_to_error::{Path, Track};

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

/// Reads a data set.
///
/// # Errors
/// The number of the line and what is wrong there; to be appended to the file's name.
pub fn read<F: Format>(file: impl BufRead, mut format: F) -> Result<Dataset, String> {
    let read = match format.columns() {
        Some(columns) => read_csv(file, columns, &mut format),
        None => read_json(file, &mut format),
    };
    read.map_err(|(line, problem)| format!(", line {line}: {problem}; {}", format.expected()))?;
    format.finish().map_err(|problem| format!(": {problem}"))
}

/// The number of a line, and what is wrong there.
type LineError = (u64, String);

fn read_json<F: Format>(mut file: impl BufRead, format: &mut F) -> Result<(), LineError> {
    let start = file.fill_buf().map_err(|error| (1, error.to_string()))?;
    if start.trim_ascii_start().starts_with(b"[") {
        let mut json = serde_json::Deserializer::from_reader(file);
        let mut track = Track::new();
        let list = serde_path_to_error::Deserializer::new(&mut json, &mut track);
        let read = list.deserialize_seq(Records(format));
        let read = read.and_then(|()| json.end());
        return read.map_err(|error| (error.line() as u64, problem(&track.path(), &error)));
    }
    for (line, text) in (1..).zip(file.lines()) {
        let text = text.map_err(|error| (line, error.to_string()))?;
        if text.trim().is_empty() {
            continue;
        }
        let mut json = serde_json::Deserializer::from_str(&text);
        let mut track = Track::new();
        let record = serde_path_to_error::Deserializer::new(&mut json, &mut track);
        let record = F::Record::deserialize(record).and_then(|record| json.end().map(|()| record));
        let record = record.map_err(|error| (line, problem(&track.path(), &error)))?;
        if !format.add(record).map_err(|problem| (line, problem))? {
            break;
        }
    }
    Ok(())
}

/// Adds the records of a JSON array to a format as they are read.
struct Records<'f, F>(&'f mut F);

impl<'de, F: Format> Visitor<'de> for Records<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut records: A) -> Result<(), A::Error> {
        let mut is_enough = false;
        while let Some(record) = records.next_element()? {
            is_enough = is_enough || !self.0.add(record).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

/// Describes what is wrong with JSON, with the path of the wrong value. The line that serde names is left out.
fn problem(path: &Path, error: &serde_json::Error) -> String {
    let (path, text) = (path.to_string(), error.to_string());
    let message = text.rsplit_once(" at line ");
    let message = message.map_or(&*text, |(message, _)| message);
    match &*path {
        "." | "?" => message.to_owned(),
        path => format!("`{path}`: {message}"),
    }
}

fn read_csv<F: Format>(
    file: impl BufRead,
    columns: &[[&str; 2]],
    format: &mut F,
) -> Result<(), LineError> {
    let mut rows = ReaderBuilder::new();
    // With the terminator `\r\n` its count of lines would lag behind.
    rows.terminator(Terminator::Any(b'\n')).trim(Trim::All);
    let mut rows = rows.flexible(true).from_reader(file);
    let names = rows.headers().map_err(|error| (1, error.to_string()))?;
    let names = names.clone();
    let is_missing = |column: &&[&str; 2]| !names.iter().any(|name| column.contains(&name));
    if let Some(column) = columns.iter().find(is_missing) {
        return Err((1, format!("has no column {}", column.join(" or "))));
    }
    let (mut row, mut line) = (StringRecord::new(), 1);
    while rows
        .read_record(&mut row)
        .map_err(|error| (line, error.to_string()))?
    {
        line = row.position().map_or(line, Position::line);
        if row.iter().all(str::is_empty) {
            continue;
        }
        let record = row.deserialize(Some(&names));
        let record = record.map_err(|error| (line, wrong_cell(&error, &names, &row)))?;
        if !format.add(record).map_err(|problem| (line, problem))? {
            break;
        }
    }
    Ok(())
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
