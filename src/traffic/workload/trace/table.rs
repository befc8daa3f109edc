//! Traces that are CSV: Azure's and BurstGPT's.

use std::io::Read;

use csv::StringRecord;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::traffic::error::Error;

use super::{Line, nanos_of};

/// Which columns a trace has, and how its times are written.
pub(super) struct Columns {
    time: &'static str,
    input: &'static str,
    output: &'static str,
    nanos: fn(&str) -> Option<i64>,
    time_is: &'static str,
}

/// Azure's of 2023 (`2023-11-16 18:15:46.6805900`) and of 2024 (`2024-05-10 00:00:00.009930+00:00`).
pub(super) const AZURE: Columns = Columns {
    time: "TIMESTAMP",
    input: "ContextTokens",
    output: "GeneratedTokens",
    nanos: date_nanos,
    time_is: "a time such as 2023-11-16 18:15:46.6805900",
};

/// BurstGPT's, with or without sessions.
pub(super) const BURST_GPT: Columns = Columns {
    time: "Timestamp",
    input: "Request tokens",
    output: "Response tokens",
    nanos: second_nanos,
    time_is: "seconds",
};

/// Where a trace's columns are in this file.
struct Places {
    time: usize,
    input: usize,
    output: usize,
}

/// The lines of a file.
///
/// # Errors
/// [`Error::Usage`]: the head lacks a column.
pub(super) fn table<R: Read>(
    columns: &'static Columns,
    file: R,
    path: &str,
) -> Result<impl Iterator<Item = Result<Line, Error>>, Error> {
    let mut rows = csv::Reader::from_reader(file);
    let unread = |cause: csv::Error| Error::Usage(format!("--dataset-path {path}: {cause}"));
    let head = rows.headers().map_err(unread)?;
    let place = |name: &str| {
        let at = head.iter().position(|column| column.trim() == name);
        at.ok_or_else(|| {
            let Columns { time, input, output, .. } = columns;
            Error::Usage(format!(
                "--dataset-path {path}, line 1: has no column {name}; must be CSV with a head that names {time}, \
                 {input} and {output}"
            ))
        })
    };
    let places = Places {
        time: place(columns.time)?,
        input: place(columns.input)?,
        output: place(columns.output)?,
    };
    let mut row = StringRecord::new();
    Ok(std::iter::from_fn(move || match rows.read_record(&mut row) {
        Ok(false) => None,
        Ok(true) => {
            let line = row.position().map_or(0, csv::Position::line);
            let read = columns.line(&places, &row);
            Some(read.map_err(|wrong| {
                Error::Usage(format!("--dataset-path {path}, line {line}, {wrong}"))
            }))
        }
        Err(cause) => {
            let line = cause.position().map_or(0, csv::Position::line);
            Some(Err(Error::Usage(format!(
                "--dataset-path {path}, line {line}: {cause}; must have as many columns as the head"
            ))))
        }
    }))
}

impl Columns {
    fn line(&self, places: &Places, row: &StringRecord) -> Result<Line, String> {
        let cell = |at: usize| row.get(at).unwrap_or_default().trim();
        let wrong = |name: &str, at: usize, right: &str| {
            format!("column {} ({name}): `{}` must be {right}", at + 1, cell(at))
        };
        let tokens = |name: &str, at: usize| {
            let count = cell(at).parse();
            count.map_err(|_| wrong(name, at, "a whole number of tokens"))
        };
        let at_nanos = (self.nanos)(cell(places.time));
        Ok(Line {
            at_nanos: at_nanos.ok_or_else(|| wrong(self.time, places.time, self.time_is))?,
            input: tokens(self.input, places.input)?,
            output: tokens(self.output, places.output)?,
            blocks: Vec::new(),
        })
    }
}

fn second_nanos(text: &str) -> Option<i64> {
    nanos_of(text.parse().ok()?)
}

/// Since the Unix epoch; a time without an offset is taken for UTC.
fn date_nanos(text: &str) -> Option<i64> {
    let time = text.parse::<Timestamp>().ok().or_else(|| {
        let date = text.parse::<DateTime>().ok()?;
        Some(TimeZone::UTC.to_timestamp(date).ok()?)
    })?;
    i64::try_from(time.as_nanosecond()).ok()
}
