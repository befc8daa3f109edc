//! Files of rows, read: `requests.csv`, or a proxy's records; also packed by gzip. What a row cannot
//! be read for is counted and named, and the others are read.

use std::io::{self, BufRead as _, BufReader, Read};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use flate2::read::MultiGzDecoder;
use memchr::memchr_iter;

use crate::clock::{NANOS, Stamp};
use crate::disk;
use crate::request::cell::{Value, nanos};
use crate::request::column::Unit;
use crate::request::columns::{Column, ColumnId};
use crate::request::csv::Base;
use crate::request::outcome::Outcome;

use super::cells::Cells;
use super::{Error, Table};

/// What is known of files of rows beside the rows that could be read.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// How many rows could be read.
    pub rows: u64,
    /// How many could not.
    pub broken: u64,
    /// The first of those: file, line (from 1), and what is wrong.
    pub examples: Vec<String>,
    /// Packed files of which the end is missing, and the last line that is there.
    pub cut: Vec<String>,
    /// Columns that this version does not know.
    pub unknown: Vec<String>,
    /// What times count from.
    pub zero: Option<Zero>,
    /// The same, Unix seconds, where that is known.
    pub began: Option<f64>,
}

/// Where the times of a table count from.
#[derive(Clone, Copy, Debug)]
pub struct Zero {
    /// What those of its file count from.
    pub base: Base,
    /// Nanoseconds since then.
    pub nanos: i64,
}

/// Columns that no report says: read, they would take a third of the memory.
pub const UNSAID: [ColumnId; 4] = [
    ColumnId::trace_id,
    ColumnId::engine_id,
    ColumnId::span_id,
    ColumnId::parent_span_id,
];
/// Broken rows that are named.
const NAMED: usize = 3;
/// Bytes that a thread reads at a time.
const CHUNK: usize = 4 << 20;
/// A row is shorter, bytes.
const LONGEST_LINE: u64 = disk::LONGEST_LINE as u64;
/// Seconds: what is larger counts from the epoch (it would be a run of three years), what is not from a run's
/// beginning (it would be of 1973).
const EPOCH_FROM: i64 = 100_000_000;

impl Table {
    /// Reads a file of rows, leaving out those that cannot be read.
    ///
    /// # Errors
    /// As [`read`].
    pub fn read(path: &Path) -> Result<Table, Error> {
        read(&[path.to_owned()], None, &UNSAID).map(|(table, _)| table)
    }
}

impl Told {
    /// Which rows are left out, and why.
    pub fn left_out(&self) -> Option<String> {
        let mut said = self.cut.clone();
        if self.broken > 0 {
            let is_all = self.broken == self.examples.len() as u64;
            said.push(format!(
                "{} of {} rows cannot be read and are left out: {}{}",
                self.broken,
                self.rows + self.broken,
                self.examples.join("; "),
                if is_all { "" } else { ", …" }
            ));
        }
        (!said.is_empty()).then(|| said.join("; "))
    }
}

impl Base {
    fn words(self) -> &'static str {
        match self {
            Base::Epoch => "the Unix epoch",
            Base::Run => "the beginning of its run",
        }
    }

    fn of(nanos: i64) -> Base {
        match nanos / NANOS {
            ..EPOCH_FROM => Base::Run,
            _ => Base::Epoch,
        }
    }
}

impl Zero {
    /// Of a file whose first time is this, of a run that began then (Unix seconds).
    fn new(first: i64, began: Option<f64>) -> Zero {
        let base = Base::of(first);
        let began = began.map(|began| (began * NANOS as f64).round() as i64);
        let nanos = match base {
            Base::Run => 0,
            Base::Epoch => began.unwrap_or(first - first % NANOS),
        };
        Zero { base, nanos }
    }
}

/// Reads files of rows as one, without some columns. `began`: when their run began, Unix seconds, if that is known; else times of
/// the epoch count from the second of the first.
///
/// # Errors
/// A file cannot be read, is no file of rows, or counts its times from another base than the first.
pub fn read(
    paths: &[PathBuf],
    began: Option<f64>,
    left_out: &[ColumnId],
) -> Result<(Table, Told), Error> {
    let mut table = Table::default();
    let told = each(paths, began, left_out, &mut |more, _| table.append(more))?;
    Ok((table, told))
}

/// Hands on the rows of some files as they are read, a part at a time, with where their times count from (Unix seconds, if
/// that is known). Otherwise as [`read`].
///
/// # Errors
/// As [`read`].
pub fn each(
    paths: &[PathBuf],
    began: Option<f64>,
    left_out: &[ColumnId],
    sink: &mut dyn FnMut(Table, Option<f64>),
) -> Result<Told, Error> {
    let mut told = Told {
        began,
        ..Told::default()
    };
    let mut first: Option<&Path> = None;
    for path in paths {
        let mut file = Reading::open(path, left_out, &mut told.unknown)?;
        file.all(first.unwrap_or(path), &mut told, began, sink)?;
        first = first.or(told.zero.map(|_| path.as_path()));
    }
    told.unknown.sort();
    told.unknown.dedup();
    Ok(told)
}

/// What a file begins with that gzip packed.
const GZIP: &[u8] = b"\x1f\x8b";

/// A file under way.
struct Reading<'a> {
    path: &'a Path,
    lines: BufReader<Bytes>,
    header: Header,
}

/// What is in a file.
struct Bytes {
    file: Box<dyn Read>,
    /// Whether the end of a packed one is missing, as that of a process that was killed is: what there is of it can be unpacked.
    is_cut: bool,
}

impl Read for Bytes {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.file.read(into) {
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => {
                self.is_cut = true;
                Ok(0)
            }
            read => read,
        }
    }
}

/// Each column of a file; `None` of those that are not read.
type Header = Vec<Option<&'static Column>>;

impl<'a> Reading<'a> {
    fn open(
        path: &'a Path,
        left_out: &[ColumnId],
        unknown: &mut Vec<String>,
    ) -> Result<Reading<'a>, Error> {
        let wrong = |cause| Error::read(path, cause);
        let file = disk::open(path).map_err(wrong)?;
        let mut file = BufReader::new(file);
        let begin = file.fill_buf().map_err(wrong)?;
        let is_named = || path.extension().is_some_and(|end| end == "gz");
        // Its content says, not its name; of one that is cut off at once only the name does.
        let is_packed = begin.starts_with(GZIP) || begin.len() < GZIP.len() && is_named();
        let file: Box<dyn Read> = match is_packed {
            true => Box::new(MultiGzDecoder::new(file)),
            false => Box::new(file),
        };
        let is_cut = false;
        let mut lines = BufReader::with_capacity(1 << 18, Bytes { file, is_cut });
        let mut line = Vec::new();
        let read = (&mut lines).take(LONGEST_LINE).read_until(b'\n', &mut line);
        let read = read.map_err(wrong)?;
        if lines.get_ref().is_cut && !line.ends_with(b"\n") {
            let what = "the file is cut off within its first line: no row of it is left";
            return Err(Error::read(path, what));
        }
        if read == 0 {
            let what = "the file is empty: a file of rows begins with the names of its columns (req_id,success,…)";
            return Err(Error::read(path, what));
        }
        let header = header(&line, left_out, unknown).map_err(|what| {
            let must = "it must name the columns req_id, arrival_time and outcome (or success)";
            let what = format!("no file of rows: its first line {what}; {must}");
            Error::read(path, what)
        })?;
        Ok(Reading {
            path,
            lines,
            header,
        })
    }

    /// Hands on all rows; `first`: the file that told what times count from. Chunks of lines are read by as many threads as there
    /// are processors, a few at a time.
    fn all(
        &mut self,
        first: &Path,
        told: &mut Told,
        began: Option<f64>,
        sink: &mut dyn FnMut(Table, Option<f64>),
    ) -> Result<(), Error> {
        let threads = available_parallelism().map_or(1, usize::from).min(8);
        let name = self.path.file_name().unwrap_or_default().display();
        let (mut base, mut line) = (None, 2);
        loop {
            let mut chunks = Vec::new();
            while chunks.len() < threads {
                let text = self
                    .chunk()
                    .map_err(|cause| Error::read(self.path, cause))?;
                if text.is_empty() {
                    break;
                }
                let first = line;
                line += memchr_iter(b'\n', &text).count() as u64;
                chunks.push((first, text));
            }
            if chunks.is_empty() {
                let cut = format!(
                    "{name} is cut off behind line {}: the rows that followed are missing",
                    line - 1
                );
                told.cut.extend(self.lines.get_ref().is_cut.then_some(cut));
                return Ok(());
            }
            let mut times = chunks
                .iter()
                .filter_map(|(_, text)| first_time(text, &self.header));
            if base.is_none()
                && let Some(time) = times.next()
            {
                let zero = *told.zero.get_or_insert(Zero::new(time, began));
                let own = *base.insert(Base::of(time));
                // What does not go with the files before is not read.
                if own != zero.base {
                    let what = format!(
                        "its times count from {}, those of {} from {}: make both with the same --time-base, or report on them \
                         one by one",
                        own.words(),
                        first.display(),
                        zero.base.words()
                    );
                    return Err(Error::read(self.path, what));
                }
                if zero.base == Base::Epoch {
                    told.began = Some(zero.nanos as f64 / NANOS as f64);
                }
            }
            for (table, examples, broken) in read_chunks(chunks, &self.header, told.zero) {
                told.rows += table.len() as u64;
                told.broken += broken;
                told.examples
                    .extend(examples.iter().map(|what| format!("{name} {what}")));
                told.examples.truncate(NAMED);
                sink(table, told.began);
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

/// What the columns of a file are, by its first line; or what is wrong with that.
fn header(line: &[u8], left_out: &[ColumnId], unknown: &mut Vec<String>) -> Result<Header, String> {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let line = std::str::from_utf8(line).map_err(|_| "is not text in UTF-8".to_owned())?;
    let line = line.trim_end_matches(['\n', '\r']);
    let names: Vec<&str> = line.split(',').map(|name| name.trim_matches('"')).collect();
    let missing = [&["req_id"][..], &["arrival_time"], &["outcome", "success"]];
    let lacks = |any: &&&[&str]| !any.iter().any(|name| names.contains(name));
    if let Some([name, ..]) = missing.iter().find(lacks) {
        if names.iter().any(|name| ColumnId::named(name).is_some()) {
            return Err(format!("has no column {name}"));
        }
        let begin: String = line.chars().take(40).collect();
        return Err(format!("is {begin:?}"));
    }
    let is_twice = |(at, name): &(usize, &&str)| {
        ColumnId::named(name).is_some() && names[..*at].contains(name)
    };
    if let Some((_, name)) = names.iter().enumerate().find(is_twice) {
        return Err(format!("names {name} twice"));
    }
    let column = |name: &&str| {
        let column = ColumnId::named(name);
        if column.is_none() {
            unknown.push((*name).to_owned());
        }
        let read = column.filter(|column| !left_out.contains(column));
        read.map(ColumnId::column)
    };
    Ok(names.iter().map(column).collect())
}

/// The first time of a row.
fn first_time(text: &[u8], header: &Header) -> Option<i64> {
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let line = std::str::from_utf8(line).ok()?;
        let cells = Cells::of(line.trim_end()).zip(header);
        let mut times = cells.filter(|(_, of)| of.is_some_and(|of| of.unit == Unit::Time));
        times.find_map(|(cell, _)| nanos(cell.as_bytes()))
    })
}

/// Reads chunks, each with the number of its first line, by a thread each.
fn read_chunks(
    chunks: Vec<(u64, Vec<u8>)>,
    header: &Header,
    zero: Option<Zero>,
) -> Vec<(Table, Vec<String>, u64)> {
    std::thread::scope(|scope| {
        let read = |(first, text)| scope.spawn(move || read_lines(first, text, header, zero));
        let reading: Vec<_> = chunks.into_iter().map(read).collect();
        let parts = reading.into_iter();
        parts
            .map(|part| part.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

/// The rows of lines, of which the first has this number; the first broken ones, and how many there are.
fn read_lines(
    first: u64,
    text: Vec<u8>,
    header: &Header,
    zero: Option<Zero>,
) -> (Table, Vec<String>, u64) {
    let (mut table, mut examples, mut broken) = (Table::default(), Vec::new(), 0);
    let mut cells = Vec::with_capacity(header.len());
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    for (number, line) in (first..).zip(lines) {
        cells.clear();
        match row(line, header, zero, &mut cells) {
            Ok(()) => table.push_cells(cells.drain(..)),
            Err(what) => {
                broken += 1;
                if examples.len() < NAMED {
                    examples.push(format!("line {number}: {what}"));
                }
            }
        }
    }
    (table, examples, broken)
}

/// Puts the cells of a row that are not empty into `cells`; or what is wrong with it.
fn row<'l>(
    line: &'l [u8],
    header: &Header,
    zero: Option<Zero>,
    cells: &mut Vec<(ColumnId, Value<'l>)>,
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
        let Some(column) = column.filter(|_| !cell.is_empty()) else {
            continue;
        };
        let (name, unit) = (column.name, column.unit);
        let value = match unit {
            Unit::Text if column.id == ColumnId::outcome && Outcome::named(&cell).is_none() => None,
            Unit::Text | Unit::Bool => Some(Value::Text(cell.clone())),
            Unit::Count => cell.parse().ok().map(Value::Count),
            Unit::Latency | Unit::Seconds => nanos(cell.as_bytes()).map(Value::Nanos),
            Unit::Time => match (nanos(cell.as_bytes()), zero) {
                (Some(at), Some(zero)) if Base::of(at) != zero.base => {
                    return Err(format!(
                        "{name} {cell} counts from {}, those of rows before it do not",
                        Base::of(at).words()
                    ));
                }
                (at, zero) => {
                    let since =
                        |at| Stamp::from_nanos(at).plus_nanos(-zero.map_or(0, |zero| zero.nanos));
                    at.map(|at| Value::Time(since(at)))
                }
            },
        };
        let value = value.ok_or_else(|| {
            let shown: String = cell.chars().take(40).collect();
            let what = match unit {
                Unit::Text => "none that this version knows",
                _ => "no number",
            };
            format!("{name} {shown:?} is {what}")
        })?;
        cells.push((column.id, value));
    }
    match found.count() {
        0 => Ok(()),
        more => Err(format!("{more} cells more than columns")),
    }
}
