//! A file of rows, read: `requests.csv`, or a proxy's records. What a row cannot be read for is counted and named, and
//! the others are read.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use memchr::memchr_iter;

use crate::clock::{NANOS, Stamp};
use crate::disk;
use crate::request::cell::{Value, nanos};
use crate::request::column::Unit;
use crate::request::columns::COLUMNS;

use super::cells::Cells;
use super::table::{Table, place_of};

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
    /// The same since the files' own base, nanoseconds.
    pub zero: i64,
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

/// Where the times of a table count from: nanoseconds since the file's own base.
#[derive(Clone, Copy, Debug)]
struct Zero {
    base: Base,
    nanos: i64,
}

/// What no report says: read, they would take a third of the memory.
const UNSAID: [&str; 4] = ["trace_id", "engine_id", "span_id", "parent_span_id"];
/// Broken rows that are named.
const NAMED: usize = 3;
/// Bytes that a thread reads at a time.
const CHUNK: usize = 4 << 20;

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
/// A file cannot be read, is no file of rows, or counts its times from another base than the first.
pub fn read(paths: &[PathBuf], began: Option<f64>) -> Result<(Table, Told), Error> {
    read_columns(paths, began, &UNSAID)
}

/// The same without some columns.
///
/// # Errors
/// As [`read`].
pub fn read_columns(
    paths: &[PathBuf],
    began: Option<f64>,
    left_out: &[&str],
) -> Result<(Table, Told), Error> {
    let mut table = Table::default();
    let told = each(paths, began, left_out, &mut |more, _| table.append(more))?;
    table.finish(told.began);
    Ok((table, told))
}

/// Hands on the rows of some files as they are read, a part at a time, with where their times count from (Unix seconds, if
/// that is known). `began` and errors as for [`read_columns`].
///
/// # Errors
/// As [`read`].
pub fn each(
    paths: &[PathBuf],
    began: Option<f64>,
    left_out: &[&str],
    sink: &mut dyn FnMut(Table, Option<f64>),
) -> Result<Told, Error> {
    let mut told = Told::default();
    let mut zero: Option<(Zero, &Path)> = None;
    for path in paths {
        let mut file = Reading::open(path, left_out)?;
        told.unknown.append(&mut file.unknown);
        let own = file.all(&mut told, zero.map(|(zero, _)| zero), began, sink)?;
        match (zero, own) {
            (Some((known, other)), Some(own)) if known.base != own.base => {
                return Err(Error::Bases {
                    path: path.clone(),
                    base: own.base,
                    other: other.to_owned(),
                    other_base: known.base,
                });
            }
            (None, own) => zero = own.map(|own| (own, path.as_path())),
            _ => {}
        }
    }
    told.unknown.sort();
    told.unknown.dedup();
    told.base = zero.map(|(zero, _)| zero.base);
    told.zero = zero.map_or(0, |(zero, _)| zero.nanos);
    told.began = zero.map_or(began, |(zero, _)| zero.began(began));
    Ok(told)
}

/// A file under way.
struct Reading<'a> {
    path: &'a Path,
    lines: BufReader<File>,
    header: Header,
    unknown: Vec<String>,
}

/// The place of each column of a file in [`COLUMNS`], and what it holds; `None` of those that are not read.
type Header = Vec<Option<(usize, Unit)>>;

/// Some lines of a file, the first of which has this number.
struct Chunk {
    text: Vec<u8>,
    first: u64,
}

/// What was read of a chunk.
struct Part {
    table: Table,
    broken: u64,
    /// Lines of the first broken rows, and what is wrong with them.
    examples: Vec<(u64, String)>,
}

impl<'a> Reading<'a> {
    fn open(path: &'a Path, left_out: &[&str]) -> Result<Reading<'a>, Error> {
        let file = disk::open(path).map_err(|cause| error(path, cause))?;
        let mut reading = Reading {
            path,
            lines: BufReader::with_capacity(1 << 18, file),
            header: Vec::new(),
            unknown: Vec::new(),
        };
        let mut line = Vec::new();
        let read = (&mut reading.lines)
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line);
        if read.map_err(|cause| error(path, cause))? == 0 {
            return Err(Error::Empty(path.to_owned()));
        }
        reading
            .header(&line, left_out)
            .map_err(|what| Error::Header {
                path: path.to_owned(),
                what,
            })?;
        Ok(reading)
    }

    fn header(&mut self, line: &[u8], left_out: &[&str]) -> Result<(), String> {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let line = std::str::from_utf8(line).map_err(|_| "is not text".to_owned())?;
        let line = line.trim_end_matches(['\n', '\r']);
        let names: Vec<&str> = line.split(',').map(|name| name.trim_matches('"')).collect();
        for name in &names {
            let known = place_of(name);
            if known.is_none() {
                self.unknown.push((*name).to_owned());
            }
            let known = known.filter(|_| !left_out.contains(name));
            let unit = |place: usize| Some((place, COLUMNS.get(place)?.unit));
            self.header.push(known.and_then(unit));
        }
        let has = |name: &str| names.contains(&name);
        let missing = ["req_id", "arrival_time"]
            .into_iter()
            .find(|name| !has(name));
        let missing = missing.or((!has("outcome") && !has("success")).then_some("outcome"));
        match missing {
            None => Ok(()),
            Some(_) if self.unknown.len() == names.len() => {
                let begin: String = line.chars().take(40).collect();
                Err(format!("is {begin:?}"))
            }
            Some(name) => Err(format!("has no column {name}")),
        }
    }

    /// Hands on all rows; where its times count from. Chunks of lines are read by as many threads as there are processors, a
    /// few at a time.
    fn all(
        &mut self,
        told: &mut Told,
        known: Option<Zero>,
        began: Option<f64>,
        sink: &mut dyn FnMut(Table, Option<f64>),
    ) -> Result<Option<Zero>, Error> {
        let threads = available_parallelism().map_or(1, usize::from).min(8);
        let (mut zero, mut line) = (None, 2);
        loop {
            let mut chunks = Vec::new();
            while chunks.len() < threads {
                let text = self.chunk().map_err(|cause| error(self.path, cause))?;
                if text.is_empty() {
                    break;
                }
                let first = line;
                line += memchr_iter(b'\n', &text).count() as u64;
                chunks.push(Chunk { text, first });
            }
            if chunks.is_empty() {
                return Ok(zero);
            }
            if zero.is_none() {
                let own = chunks
                    .iter()
                    .find_map(|chunk| chunk.zero(&self.header, began));
                zero = own;
                // What does not go with the files before is not read.
                if own.is_some_and(|own| known.is_some_and(|known| known.base != own.base)) {
                    return Ok(zero);
                }
            }
            let (from, header) = (known.or(zero), &self.header);
            let parts: Vec<Part> = std::thread::scope(|scope| {
                let read = |chunk| scope.spawn(move || Part::read(chunk, header, from));
                let reading: Vec<_> = chunks.into_iter().map(read).collect();
                let parts = reading.into_iter().map(|part| {
                    part.join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                });
                parts.collect()
            });
            for part in parts {
                told.broken += part.broken;
                let examples = part.examples.into_iter().map(|(line, what)| Broken {
                    file: self.path.to_owned(),
                    line,
                    what,
                });
                told.examples.extend(examples);
                told.examples.truncate(NAMED);
                sink(part.table, from.and_then(|zero| zero.began(began)));
            }
        }
    }

    /// The next lines, whole but for one that is too long or the file's last; none at its end.
    fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let mut text = Vec::with_capacity(CHUNK + (1 << 16));
        (&mut self.lines)
            .take(CHUNK as u64)
            .read_to_end(&mut text)?;
        if !text.is_empty() && !text.ends_with(b"\n") {
            let read = (&mut self.lines)
                .take(LONGEST_LINE)
                .read_until(b'\n', &mut text)?;
            if read as u64 == LONGEST_LINE && !text.ends_with(b"\n") {
                // The rest of it is no row, and what is there is too long for one.
                self.lines.skip_until(b'\n')?;
                text.push(b'\n');
            }
        }
        Ok(text)
    }
}

impl Chunk {
    /// The lines, each with its number and its end.
    fn lines(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let lines = self.text.split_inclusive(|byte| *byte == b'\n');
        (self.first..).zip(lines)
    }

    /// Where times count from, by the first of a row.
    fn zero(&self, header: &Header, began: Option<f64>) -> Option<Zero> {
        self.lines().find_map(|(_, line)| {
            let line = std::str::from_utf8(line).ok()?;
            let cells = Cells::of(line.trim_end()).zip(header);
            let mut times = cells.filter(|(_, of)| of.is_some_and(|(_, unit)| unit == Unit::Time));
            let first = times.find_map(|(cell, _)| nanos(&cell))?;
            Some(Zero::new(first, began))
        })
    }
}

impl Part {
    fn read(chunk: Chunk, header: &Header, zero: Option<Zero>) -> Part {
        let mut part = Part {
            table: Table::default(),
            broken: 0,
            examples: Vec::new(),
        };
        let mut cells = Vec::with_capacity(header.len());
        for (number, line) in chunk.lines() {
            cells.clear();
            match row(line, header, zero, &mut cells) {
                Ok(()) => part.table.push_at(cells.drain(..)),
                Err(what) => {
                    part.broken += 1;
                    if part.examples.len() < NAMED {
                        part.examples.push((number, what));
                    }
                }
            }
        }
        part
    }
}

/// Puts the cells of a row that are not empty into `cells`; or what is wrong with it.
fn row<'l>(
    line: &'l [u8],
    header: &Header,
    zero: Option<Zero>,
    cells: &mut Vec<(usize, Value<'l>)>,
) -> Result<(), String> {
    if line.len() as u64 >= LONGEST_LINE {
        return Err("the row is longer than 1 MiB".to_owned());
    }
    let whole = line.strip_suffix(b"\n");
    let line = whole.ok_or_else(|| "the row is cut off: no end of line".to_owned())?;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = std::str::from_utf8(line)
        .map_err(|error| format!("byte {} is no UTF-8", error.valid_up_to() + 1))?;
    let mut found = Cells::of(line);
    for (read, column) in header.iter().enumerate() {
        let cell = found
            .next()
            .ok_or_else(|| format!("the row is cut off: {read} of {} cells", header.len()))?;
        let Some((place, unit)) = column.filter(|_| !cell.is_empty()) else {
            continue;
        };
        let value = match unit {
            Unit::Text | Unit::Bool => Some(Value::Text(cell.clone())),
            Unit::Count => cell.parse().ok().map(Value::Count),
            Unit::Latency | Unit::Seconds => nanos(&cell).map(Value::Nanos),
            Unit::Time => nanos(&cell).map(|at| Value::Time(Stamp::from_nanos(at))),
        };
        let name = || COLUMNS.get(place).map_or("", |column| column.name);
        let value = value.ok_or_else(|| {
            let shown: String = cell.chars().take(40).collect();
            format!("{} {shown:?} is no number", name())
        })?;
        cells.push((
            place,
            match (value, zero) {
                (Value::Time(at), Some(zero)) if base_of(at.nanos()) == zero.base => {
                    Value::Time(at.plus_nanos(-zero.nanos))
                }
                (Value::Time(at), Some(_)) => {
                    let base = base_of(at.nanos()).words();
                    let name = name();
                    return Err(format!(
                        "{name} {cell} counts from {base}, those of rows before it do not"
                    ));
                }
                (value, _) => value,
            },
        ));
    }
    match found.count() {
        0 => Ok(()),
        more => Err(format!("{more} cells more than columns")),
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

    /// Where times count from, Unix seconds, where that is known.
    fn began(self, told: Option<f64>) -> Option<f64> {
        match self.base {
            Base::Epoch => Some(self.nanos as f64 / NANOS as f64),
            Base::Run => told,
        }
    }
}

fn base_of(nanos: i64) -> Base {
    match nanos / NANOS {
        ..EPOCH_FROM => Base::Run,
        _ => Base::Epoch,
    }
}

fn error(path: &Path, cause: io::Error) -> Error {
    Error::File {
        path: path.to_owned(),
        cause,
    }
}
