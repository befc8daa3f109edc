//! A file of rows, read: `requests.csv`, or a proxy's records. What a row cannot be read for is counted and named, and
//! the others are read.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use crate::clock::NANOS;
use crate::disk;
use crate::request::cell::nanos;
use crate::request::column::Unit;
use crate::request::columns::COLUMNS;
use crate::request::columns::Column;

use super::cells::{Cells, Value};
use super::table::Table;

/// What is known of files of rows beside the rows that could be read.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// How many rows could not be read.
    pub broken: u64,
    /// The first of them.
    pub examples: Vec<Broken>,
    /// Columns that this version does not know.
    pub unknown: Vec<String>,
    /// What the files' own times count from.
    pub base: Option<Base>,
    /// What times count from as they are read, Unix seconds, where that is known.
    pub began: Option<f64>,
}

/// A row that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its file.
    pub file: PathBuf,
    /// Its line, from 1.
    pub line: u64,
    /// What is wrong with it, with the column.
    pub what: String,
}

/// What the times of a file count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The Unix epoch.
    Epoch,
    /// The beginning of its run.
    Run,
}

/// Why a file cannot be read as rows.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the system says.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// It holds nothing.
    #[error(
        "{}: the file is empty: a file of rows begins with the names of its columns (req_id,success,…)", .0.display()
    )]
    Empty(PathBuf),
    /// Its first line is not that of rows.
    #[error("{}: no file of rows: its first line {what}; it must name the columns req_id, arrival_time and outcome (or success)", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with its first line.
        what: String,
    },
    /// Files whose times cannot be put together.
    #[error(
        "{}: its times count from {}, those of {} from {}: make both with the same --time-base, or report on them one by one",
        path.display(), base.words(), other.display(), other_base.words()
    )]
    Bases {
        /// The file.
        path: PathBuf,
        /// What its times count from.
        base: Base,
        /// One read before it.
        other: PathBuf,
        /// What that one's times count from.
        other_base: Base,
    },
}

/// Takes the cells of a row that are not empty, by the place of their columns in [`COLUMNS`].
pub type Sink<'s> = &'s mut dyn FnMut(&[(usize, Value<'_>)]);

/// What is known of a column of a file.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Count,
    Seconds,
    Time,
    Word,
    Id,
    /// Not read.
    Skipped,
}

/// Where the times of a table count from: nanoseconds since the file's own base.
#[derive(Clone, Copy, Debug)]
struct Zero {
    base: Base,
    nanos: i64,
}

/// Columns whose words are different in every row.
const IDS: [&str; 5] = [
    "req_id",
    "trace_id",
    "engine_id",
    "span_id",
    "parent_span_id",
];
/// What no report says: read, they would take a third of the memory.
const UNSAID: [&str; 4] = ["trace_id", "engine_id", "span_id", "parent_span_id"];
/// Broken rows that are named.
const NAMED: usize = 3;
/// A row is shorter, bytes.
const LONGEST_LINE: u64 = 1 << 20;
/// Seconds: what is larger counts from the epoch (it would be a run of three years), what is not from a run's
/// beginning (it would be of 1973).
pub(super) const EPOCH_FROM: i64 = 100_000_000;

impl Table {
    /// Reads a file of rows, leaving out those that cannot be read.
    ///
    /// # Errors
    /// As [`read`].
    pub fn read(path: &Path) -> Result<Table, Error> {
        read(&[path.to_owned()], None).map(|(table, _)| table)
    }
}

impl Base {
    fn words(self) -> &'static str {
        match self {
            Base::Epoch => "the Unix epoch",
            Base::Run => "the beginning of its run",
        }
    }
}

/// Reads files of rows as one. `began`: when their run began, Unix seconds, if that is known; else times of the epoch
/// count from the second of the first.
///
/// # Errors
/// As [`each`].
pub fn read(paths: &[PathBuf], began: Option<f64>) -> Result<(Table, Told), Error> {
    read_columns(paths, began, &UNSAID)
}

/// The same without some columns.
///
/// # Errors
/// As [`each`].
pub fn read_columns(
    paths: &[PathBuf],
    began: Option<f64>,
    left_out: &[&str],
) -> Result<(Table, Told), Error> {
    let mut table = Table::default();
    let told = each(paths, began, left_out, &mut |values| {
        table.push_at(values.iter().map(|(place, value)| (*place, value.cell())));
    })?;
    table.finish(told.began);
    Ok((table, told))
}

/// Hands on the cells of each row of some files, those that are not empty and in no column `left_out`: by the place of their
/// columns in [`COLUMNS`]. `began` as for [`read`].
///
/// # Errors
/// A file cannot be read, is no file of rows, or counts its times from another base than the first.
pub fn each(
    paths: &[PathBuf],
    began: Option<f64>,
    left_out: &[&str],
    sink: Sink<'_>,
) -> Result<Told, Error> {
    let mut told = Told::default();
    let mut zero: Option<(Zero, &Path)> = None;
    for path in paths {
        let mut file = Reading::open(path, left_out)?;
        told.unknown.append(&mut file.unknown);
        file.zero = zero.map(|(zero, _)| zero);
        file.began = began;
        let own = file.all(&mut told, sink)?;
        match (zero, own) {
            (Some((known, other)), Some(base)) if known.base != base => {
                return Err(Error::Bases {
                    path: path.clone(),
                    base,
                    other: other.to_owned(),
                    other_base: known.base,
                });
            }
            (None, _) => zero = file.zero.map(|zero| (zero, path.as_path())),
            _ => {}
        }
    }
    told.unknown.sort();
    told.unknown.dedup();
    told.base = zero.map(|(zero, _)| zero.base);
    told.began = match zero {
        Some((zero, _)) if zero.base == Base::Epoch => Some(zero.nanos as f64 / NANOS as f64),
        _ => began,
    };
    Ok(told)
}

/// Where the times of a file count from as it is read, Unix seconds: the second of its first time, if that counts from the
/// epoch.
///
/// # Errors
/// As [`each`].
pub fn began(path: &Path) -> Result<Option<f64>, Error> {
    let mut file = Reading::open(path, &[])?;
    while file.zero.is_none() && file.next_line()? {
        let line = std::mem::take(&mut file.line);
        // What is wrong with a row is told when it is read for its cells.
        let _ = file.row(&line, &mut None);
        file.line = line;
    }
    let zero = file.zero.filter(|zero| zero.base == Base::Epoch);
    Ok(zero.map(|zero| zero.nanos as f64 / NANOS as f64))
}

/// A file under way.
struct Reading<'a> {
    path: &'a Path,
    lines: BufReader<File>,
    line: Vec<u8>,
    number: u64,
    /// The place of each of its columns in [`COLUMNS`], and what it holds.
    columns: Vec<(usize, Kind)>,
    unknown: Vec<String>,
    zero: Option<Zero>,
    began: Option<f64>,
}

impl<'a> Reading<'a> {
    fn open(path: &'a Path, left_out: &[&str]) -> Result<Reading<'a>, Error> {
        let file = disk::open(path).map_err(|cause| error(path, cause))?;
        let mut reading = Reading {
            path,
            lines: BufReader::with_capacity(1 << 18, file),
            line: Vec::new(),
            number: 0,
            columns: Vec::new(),
            unknown: Vec::new(),
            zero: None,
            began: None,
        };
        if !reading.next_line()? {
            return Err(Error::Empty(path.to_owned()));
        }
        reading.header(left_out).map_err(|what| Error::Header {
            path: path.to_owned(),
            what,
        })?;
        Ok(reading)
    }

    /// Takes the next line; `false` at the end.
    fn next_line(&mut self) -> Result<bool, Error> {
        use io::Read as _;
        self.line.clear();
        let mut limited = (&mut self.lines).take(LONGEST_LINE);
        let read = limited.read_until(b'\n', &mut self.line);
        let read = read.map_err(|cause| error(self.path, cause))?;
        self.number += 1;
        if read as u64 == LONGEST_LINE && !self.line.ends_with(b"\n") {
            // The rest of it is no row.
            let skipped = self.lines.skip_until(b'\n');
            skipped.map_err(|cause| error(self.path, cause))?;
        }
        Ok(read > 0)
    }

    fn header(&mut self, left_out: &[&str]) -> Result<(), String> {
        let line = self
            .line
            .strip_prefix(b"\xef\xbb\xbf")
            .unwrap_or(&self.line);
        let line = std::str::from_utf8(line).map_err(|_| "is not text".to_owned())?;
        let line = line.trim_end_matches(['\n', '\r']);
        for name in line.split(',') {
            let name = name.trim_matches('"');
            let mut known = COLUMNS.iter().zip(0..);
            let known = known.find(|(column, _)| column.name == name);
            if known.is_none() {
                self.unknown.push(name.to_owned());
            }
            self.columns.push(match known {
                Some((column, place)) if !left_out.contains(&name) => (place, Kind::of(column)),
                _ => (usize::MAX, Kind::Skipped),
            });
        }
        let has = |name: &str| line.split(',').any(|known| known.trim_matches('"') == name);
        let missing = ["req_id", "arrival_time"]
            .into_iter()
            .find(|name| !has(name));
        let missing = missing.or((!has("outcome") && !has("success")).then_some("outcome"));
        match missing {
            None => Ok(()),
            Some(_) if self.unknown.len() == self.columns.len() => {
                let begin: String = line.chars().take(40).collect();
                Err(format!("is {begin:?}"))
            }
            Some(name) => Err(format!("has no column {name}")),
        }
    }

    /// Adds all rows; what the file's times count from. Stops where that is not what those before it count from.
    fn all(&mut self, told: &mut Told, sink: Sink<'_>) -> Result<Option<Base>, Error> {
        let mut own = None;
        while self.next_line()? {
            let line = std::mem::take(&mut self.line);
            match self.row(&line, &mut own) {
                Ok(values) => sink(&values),
                Err(what) => {
                    told.broken += 1;
                    if told.examples.len() < NAMED {
                        told.examples.push(Broken {
                            file: self.path.to_owned(),
                            line: self.number,
                            what,
                        });
                    }
                }
            }
            self.line = line;
            if own.is_some() && self.zero.is_some_and(|zero| Some(zero.base) != own) {
                break;
            }
        }
        Ok(own)
    }

    /// The cells of a row that are not empty, or what is wrong with it.
    fn row<'l>(
        &mut self,
        line: &'l [u8],
        own: &mut Option<Base>,
    ) -> Result<Vec<(usize, Value<'l>)>, String> {
        let Some(line) = line.strip_suffix(b"\n") else {
            return Err(match line.len() as u64 {
                LONGEST_LINE => "the row is longer than 1 MiB".to_owned(),
                _ => "the row is cut off: no end of line".to_owned(),
            });
        };
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = std::str::from_utf8(line)
            .map_err(|error| format!("byte {} is no UTF-8", error.valid_up_to() + 1))?;
        let mut cells = Cells::of(line);
        let mut values = Vec::with_capacity(self.columns.len());
        for (read, (place, kind)) in self.columns.iter().enumerate() {
            let cell = cells.next().ok_or_else(|| {
                let columns = self.columns.len();
                format!("the row is cut off: {read} of {columns} cells")
            })?;
            if cell.is_empty() || matches!(kind, Kind::Skipped) {
                continue;
            }
            let name = || COLUMNS.get(*place).map_or("", |column| column.name);
            let value = match kind {
                Kind::Time => {
                    let nanos = nanos(&cell).ok_or_else(|| no_number(name(), &cell))?;
                    let base = base_of(nanos);
                    if *own.get_or_insert(base) != base {
                        return Err(format!(
                            "{} {cell} counts from {}, those of rows before it do not",
                            name(),
                            base.words()
                        ));
                    }
                    let zero = *self
                        .zero
                        .get_or_insert_with(|| Zero::new(nanos, self.began));
                    seconds(nanos.saturating_sub(zero.nanos))
                }
                Kind::Seconds => seconds(nanos(&cell).ok_or_else(|| no_number(name(), &cell))?),
                Kind::Count => {
                    let count: Result<u64, _> = cell.parse();
                    Value::Number(count.map_err(|_| no_number(name(), &cell))? as f64)
                }
                Kind::Word => Value::Word(cell),
                Kind::Id => Value::Id(cell),
                Kind::Skipped => continue,
            };
            values.push((*place, value));
        }
        match cells.count() {
            0 => Ok(values),
            more => Err(format!("{more} cells more than columns")),
        }
    }
}

impl Kind {
    fn of(column: &Column) -> Kind {
        match column.unit {
            Unit::Text if IDS.contains(&column.name) => Kind::Id,
            Unit::Text | Unit::Bool => Kind::Word,
            Unit::Count => Kind::Count,
            Unit::Latency | Unit::Seconds => Kind::Seconds,
            Unit::Time => Kind::Time,
        }
    }
}

impl Zero {
    /// Of a file whose first time is this, of a run that began then (Unix seconds).
    fn new(first: i64, began: Option<f64>) -> Zero {
        let base = base_of(first);
        let began = began.map(|began| (began * NANOS as f64).round() as i64);
        let nanos = match base {
            Base::Run => 0,
            Base::Epoch => began.unwrap_or(first - first % NANOS),
        };
        Zero { base, nanos }
    }
}

fn base_of(nanos: i64) -> Base {
    match nanos / NANOS {
        ..EPOCH_FROM => Base::Run,
        _ => Base::Epoch,
    }
}

fn seconds(nanos: i64) -> Value<'static> {
    Value::Number(nanos as f64 / NANOS as f64)
}

fn no_number(column: &str, cell: &str) -> String {
    let shown: String = cell.chars().take(40).collect();
    format!("{column} {shown:?} is no number")
}

fn error(path: &Path, cause: io::Error) -> Error {
    Error::File {
        path: path.to_owned(),
        cause,
    }
}
