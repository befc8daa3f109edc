//! Reads files of records: objects of JSON, in an array or one a line (JSON lines), or rows of CSV.

use std::fmt;
use std::io::BufRead;

use csv::{ErrorKind, Position, ReaderBuilder, StringRecord, Terminator, Trim};
use serde::de::{DeserializeOwned, Deserializer as _, Error as _, SeqAccess, Visitor};
use serde_path_to_error::{Path, Track};

/// Takes the next record; returns whether to read on, or what is wrong with it.
type Add<'a, R> = &'a mut dyn FnMut(R) -> Result<bool, String>;

/// Gives the records of a file to `add`, one after the other.
///
/// `columns` are those that a file of CSV must have, each with its two possible names; without any, the file is JSON. `expected` describes
/// the format for error messages.
///
/// # Errors
/// The number of the line and what is wrong there; to be appended to the file's name.
pub fn read<R: DeserializeOwned>(
    file: impl BufRead,
    columns: &[[&str; 2]],
    expected: &str,
    mut add: impl FnMut(R) -> Result<bool, String>,
) -> Result<(), String> {
    let read = match columns {
        [] => read_json(file, &mut add),
        columns => read_csv(file, columns, &mut add),
    };
    read.map_err(|(line, problem)| format!(", line {line}: {problem}; {expected}"))
}

/// The number of a line, and what is wrong there.
type LineError = (u64, String);

fn read_json<R: DeserializeOwned>(mut file: impl BufRead, add: Add<R>) -> Result<(), LineError> {
    let start = file.fill_buf().map_err(|error| (1, error.to_string()))?;
    if start.trim_ascii_start().starts_with(b"[") {
        let mut json = serde_json::Deserializer::from_reader(file);
        let mut track = Track::new();
        let list = serde_path_to_error::Deserializer::new(&mut json, &mut track);
        let read = list.deserialize_seq(Records(add));
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
        let record = R::deserialize(record).and_then(|record| json.end().map(|()| record));
        let record = record.map_err(|error| (line, problem(&track.path(), &error)))?;
        if !add(record).map_err(|problem| (line, problem))? {
            break;
        }
    }
    Ok(())
}

/// Takes the records of a JSON array as they are read.
struct Records<'a, R>(Add<'a, R>);

impl<'de, R: DeserializeOwned> Visitor<'de> for Records<'_, R> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut records: A) -> Result<(), A::Error> {
        let (mut is_enough, mut entry) = (false, 0);
        while let Some(record) = records.next_element()? {
            entry += 1;
            // All of them may be on one line.
            let wrong = |problem| A::Error::custom(format!("entry {entry}: {problem}"));
            is_enough = is_enough || !(self.0)(record).map_err(wrong)?;
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

fn read_csv<R: DeserializeOwned>(
    file: impl BufRead,
    columns: &[[&str; 2]],
    add: Add<R>,
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
        if !add(record).map_err(|problem| (line, problem))? {
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
