//! Traces that are CSV: Azure's and BurstGPT's. No cell of theirs holds a comma or a quote.

use std::io::Read;

use crate::traffic::error::Error;

use super::Line;
use super::lines::{MOST_TOKENS, numbered, wrong};
use super::time::{of_date, of_seconds};

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
    nanos: of_date,
    time_is: "a time such as 2023-11-16 18:15:46.6805900",
};

/// BurstGPT's, with or without sessions.
pub(super) const BURST_GPT: Columns = Columns {
    time: "Timestamp",
    input: "Request tokens",
    output: "Response tokens",
    nanos: of_seconds,
    time_is: "seconds",
};

/// Where a trace's columns are in this file.
struct Places {
    time: usize,
    input: usize,
    output: usize,
    all: usize,
}

/// The lines of a file.
///
/// # Errors
/// [`Error::Usage`]: there is no head, or it lacks a column.
pub(super) fn table<R: Read>(
    columns: &'static Columns,
    file: R,
    path: &str,
) -> Result<impl Iterator<Item = Result<Line, Error>>, Error> {
    let mut lines = numbered(file, path);
    let head = lines.next().transpose()?;
    let (number, head) = head.map_or((1, String::new()), |head| (head.number, head.text));
    let places = columns.places(&head);
    let places = places.map_err(|what| wrong(path, number, &what))?;
    Ok(lines.map(move |line| {
        let line = line?;
        let read = columns.line(&places, &line.text);
        read.map_err(|what| wrong(path, line.number, &what))
    }))
}

impl Columns {
    fn places(&self, head: &str) -> Result<Places, String> {
        let Columns {
            time,
            input,
            output,
            ..
        } = self;
        let place = |name: &str| {
            let at = head.split(',').position(|column| column.trim() == name);
            at.ok_or_else(|| {
                format!(
                    ": has no column {name}; must be CSV with a head that names {time}, {input} and {output}"
                )
            })
        };
        Ok(Places {
            time: place(time)?,
            input: place(input)?,
            output: place(output)?,
            all: head.split(',').count(),
        })
    }

    fn line(&self, places: &Places, row: &str) -> Result<Line, String> {
        let cells = row.split(',').count();
        if cells != places.all {
            let all = places.all;
            return Err(format!(
                ": has {cells} columns; must have {all}, as the head has"
            ));
        }
        let cell = |at: usize| row.split(',').nth(at).unwrap_or_default().trim();
        let wrong = |name: &str, at: usize, right: &str| {
            let text = cell(at);
            format!(", column {} ({name}): `{text}` must be {right}", at + 1)
        };
        let tokens = |name: &str, at: usize| {
            let count = cell(at).parse().ok();
            let count = count.filter(|count| *count <= MOST_TOKENS);
            count.ok_or_else(|| wrong(name, at, "a whole number of tokens up to 10000000"))
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
