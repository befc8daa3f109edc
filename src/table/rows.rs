//! Reads files of rows: `requests.csv` or a proxy's records, also compressed by gzip. Rows that cannot be read are counted, and the
//! first of them reported; the others are read.

use std::collections::{HashSet, VecDeque};
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use flate2::read::MultiGzDecoder;
use memchr::memchr_iter;

use crate::clock::{NANOS, Stamp};
use crate::disk;
use crate::error::Error;
use crate::request::cell::{Value, nanos};
use crate::request::csv::Base;
use crate::request::{Column, ColumnId, Outcome, Unit};
use crate::threads::joined;

use super::Table;
use super::cells::Cells;
use super::store::IDS;

/// What was read from files of rows, and what could not be.
#[derive(Clone, Debug, Default)]
pub struct ReadStats {
    /// The number of rows that were read.
    pub rows: u64,
    /// The number of rows that could not be read.
    pub broken: u64,
    /// The first of those: file, line (from 1) and message.
    pub examples: Vec<String>,
    /// The compressed files that were cut off, with the line before the cut.
    pub cut: Vec<String>,
    /// Columns that this version does not know.
    pub unknown_columns: Vec<String>,
    /// The origin of the table's times in the base of its files, nanoseconds: 0 if they count from the run's start.
    pub origin: Option<i64>,
    /// When time 0 of the table was, if known.
    pub zero: Option<Stamp>,
}

/// Columns that no report uses. They would take a third of the memory.
pub const SKIPPED_COLUMNS: &[ColumnId] = IDS.split_at(1).1;
/// The most broken rows that are reported.
const MAX_EXAMPLES: usize = 3;
/// Bytes that a thread parses at a time; few in tests, so that their files have several.
const CHUNK_BYTES: usize = if cfg!(test) { 1 << 12 } else { 4 << 20 };
/// Longer lines are none of a file of rows, bytes.
const MAX_LINE_BYTES: u64 = disk::MAX_LINE_BYTES as u64;
/// Times from this second on count from the Unix epoch, as no run takes three years; smaller ones from a run's start, as none
/// is of 1973.
const MIN_EPOCH_S: i64 = 100_000_000;

impl ReadStats {
    /// Returns which rows are left out and why, `None` if none are.
    pub fn left_out(&self) -> Option<String> {
        let is_all = self.broken == self.examples.len() as u64;
        let broken = (self.broken > 0).then(|| {
            format!(
                "{} of {} rows cannot be read and are left out: {}{}",
                self.broken,
                self.rows + self.broken,
                self.examples.join("; "),
                if is_all { "" } else { ", …" }
            )
        });
        let all: Vec<String> = self.cut.iter().cloned().chain(broken).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Sets the origin of times, unless an earlier file did, given the first time of a file.
    fn set_origin(&mut self, path: &Path, time: i64) -> Result<(), Error> {
        let origin = *self.origin.get_or_insert(origin_of(time, self.zero));
        let base = Base::of(time);
        if base != Base::of(origin) {
            return Err(other_base(path, base));
        }
        if base == Base::Epoch {
            self.zero = Some(Stamp::from_nanos(origin));
        }
        Ok(())
    }

    /// Counts what was parsed of a file, and returns its rows.
    fn add(&mut self, name: &str, (table, examples, broken): ParsedChunk) -> Table {
        self.rows += table.len() as u64;
        self.broken += broken;
        let examples = examples.iter().map(|example| format!("{name} {example}"));
        self.examples.extend(examples);
        self.examples.truncate(MAX_EXAMPLES);
        table
    }
}

impl Base {
    /// The base of a time in a file, or of its origin.
    pub(super) fn of(nanos: i64) -> Base {
        match nanos / NANOS {
            ..MIN_EPOCH_S => Base::Run,
            _ => Base::Epoch,
        }
    }
}

/// The origin of the times of a file whose first time is `first`, of a run that began at `began`.
fn origin_of(first: i64, began: Option<Stamp>) -> i64 {
    match Base::of(first) {
        Base::Run => 0,
        base => {
            let began = began.map(Stamp::nanos);
            let began = began.filter(|began| Base::of(*began) == base);
            began.unwrap_or(first - first % NANOS)
        }
    }
}

/// Returns a file of records after its rotated files, the oldest first. Empty rotated files, whose name was only reserved, are left out.
///
/// # Errors
/// If the folder cannot be read.
pub fn with_rotated(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for (_, _, older) in disk::rotated(path)? {
        if std::fs::metadata(&older)?.len() > 0 {
            files.push(older);
        }
    }
    files.push(path.to_owned());
    Ok(files)
}

/// The same path whichever way it was written, if it is there.
pub fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Removes the paths whose rows would be read twice: repeated ones, and rotated files of another given file.
pub fn without_duplicates(given: &[PathBuf]) -> Vec<PathBuf> {
    let mut seen: HashSet<PathBuf> = HashSet::new();
    for path in given.iter().filter(|path| path.is_file()) {
        let files = with_rotated(path).unwrap_or_default();
        seen.extend(files.iter().rev().skip(1).map(|file| canonical(file)));
    }
    let mut given = given.to_vec();
    given.retain(|path| seen.insert(canonical(path)));
    given
}

/// Reads files of rows into one table, without the columns `skipped`. `began`: the start of their run, if known; else
/// times of the epoch count from the second of the first one.
///
/// # Errors
/// If a file cannot be read, is no file of rows, or has another time base than the first.
pub fn read(
    paths: &[PathBuf],
    began: Option<Stamp>,
    skipped: &[ColumnId],
) -> Result<(Table, ReadStats), Error> {
    let mut table = Table::default();
    let stats = read_parts(paths, began, skipped, &mut |more, _| table.append(more))?;
    Ok((table, stats))
}

/// Reads files of rows in parts of bounded size, each passed to `sink` with when its time 0 was, if known.
/// Otherwise as [`read`].
///
/// # Errors
/// As [`read`].
pub fn read_parts(
    paths: &[PathBuf],
    began: Option<Stamp>,
    skipped: &[ColumnId],
    sink: &mut dyn FnMut(Table, Option<Stamp>),
) -> Result<ReadStats, Error> {
    let mut stats = ReadStats {
        zero: began,
        ..ReadStats::default()
    };
    for path in paths {
        read_file(path, skipped, &mut stats, sink)?;
    }
    stats.unknown_columns.sort();
    stats.unknown_columns.dedup();
    Ok(stats)
}

/// The first bytes of a gzip file.
const GZIP_MAGIC: &[u8] = b"\x1f\x8b";

/// The columns of a file in their order; `None` for a column that is not read.
type Header = Vec<Option<&'static Column>>;

/// The lines of a file, which may be compressed.
type Lines = BufReader<Box<dyn Read>>;

/// Passes all rows of a file to `sink`. Chunks of lines are parsed by a thread per processor, while the next are read.
fn read_file(
    path: &Path,
    skipped: &[ColumnId],
    stats: &mut ReadStats,
    sink: &mut dyn FnMut(Table, Option<Stamp>),
) -> Result<(), Error> {
    let error = |cause| Error::read(path, cause);
    let mut lines = open(path).map_err(error)?;
    let mut line = Vec::new();
    let mut head = (&mut lines).take(MAX_LINE_BYTES);
    head.read_until(b'\n', &mut line).map_err(error)?;
    let header = &parse_header(&line, skipped, &mut stats.unknown_columns).map_err(|reason| {
        let hint = "it must name the columns req_id, arrival_time and outcome (or success)";
        Error::read(path, format!("no file of rows: {reason}; {hint}"))
    })?;
    let threads = available_parallelism().map_or(1, usize::from).min(8);
    let name = path.file_name().unwrap_or_default().display().to_string();
    let mut has_times = false;
    let mut chunks = Chunks {
        lines,
        next_line: 2,
        is_cut: false,
    };
    std::thread::scope(|scope| {
        let mut parsing = VecDeque::new();
        while let Some((first, text)) = chunks.next().map_err(error)? {
            if !has_times && let Some(time) = first_time(&text, header) {
                has_times = true;
                stats.set_origin(path, time)?;
            }
            if parsing.len() >= threads
                && let Some(oldest) = parsing.pop_front()
            {
                sink(stats.add(&name, joined(oldest)), stats.zero);
            }
            let origin = stats.origin;
            parsing.push_back(scope.spawn(move || parse_lines(first, text, header, origin)));
        }
        for rest in parsing {
            sink(stats.add(&name, joined(rest)), stats.zero);
        }
        Ok::<(), Error>(())
    })?;
    if chunks.is_cut {
        let last = chunks.next_line - 1;
        stats.cut.push(format!(
            "{name} is cut off: whatever followed line {last} is missing"
        ));
    }
    Ok(())
}

/// Returns the error of a file whose times count from elsewhere than those of the file before it.
fn other_base(path: &Path, base: Base) -> Error {
    let since = match base {
        Base::Epoch => "the Unix epoch",
        Base::Run => "the beginning of its run",
    };
    let message = format!(
        "its times count from {since}, those of the file before it do not: make both with the same --time-base, or report on them \
         one by one"
    );
    Error::read(path, message)
}

/// Opens a file, which may be compressed by gzip.
fn open(path: &Path) -> io::Result<Lines> {
    let mut file = BufReader::new(disk::open(path)?);
    let contents: Box<dyn Read> = match file.fill_buf()?.starts_with(GZIP_MAGIC) {
        true => Box::new(MultiGzDecoder::new(file)),
        false => Box::new(file),
    };
    Ok(BufReader::with_capacity(1 << 18, contents))
}

/// The lines of a file after its first, in chunks.
struct Chunks {
    lines: Lines,
    next_line: u64,
    /// Whether the file is compressed and cut off.
    is_cut: bool,
}

impl Chunks {
    /// The next lines, and the number of the first; `None` at the end of the file.
    fn next(&mut self) -> io::Result<Option<(u64, Vec<u8>)>> {
        let (first, mut text) = (self.next_line, Vec::with_capacity(CHUNK_BYTES + (1 << 16)));
        if self.is_cut {
            return Ok(None);
        }
        match self.read(&mut text) {
            // What it unpacks to before the cut is as it was written.
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => self.is_cut = true,
            read => read?,
        }
        self.next_line += memchr_iter(b'\n', &text).count() as u64;
        // A line without its end counts too, but for the one in which the file was cut off.
        let is_incomplete = !text.is_empty() && !text.ends_with(b"\n");
        self.next_line += u64::from(is_incomplete && !self.is_cut);
        Ok((!text.is_empty()).then_some((first, text)))
    }

    /// Reads the next lines into `text`, what there is of them if it fails; nothing at the end of the file, whose last line may be
    /// incomplete. So is one that is much longer than any row: its end is left out.
    fn read(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        let lines = &mut self.lines;
        lines.take(CHUNK_BYTES as u64).read_to_end(text)?;
        if !text.is_empty() && !text.ends_with(b"\n") {
            let read = lines.take(MAX_LINE_BYTES).read_until(b'\n', text)?;
            if read as u64 == MAX_LINE_BYTES && !text.ends_with(b"\n") {
                lines.skip_until(b'\n')?;
            }
        }
        Ok(())
    }
}

/// Parses the first line of a file. The error is what is wrong with it.
fn parse_header(
    line: &[u8],
    skipped: &[ColumnId],
    unknown: &mut Vec<String>,
) -> Result<Header, String> {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let line =
        std::str::from_utf8(line).map_err(|_| "its first line is not text in UTF-8".to_owned())?;
    let line = line.trim_end_matches(['\n', '\r']);
    let names: Vec<&str> = line.split(',').map(|name| name.trim_matches('"')).collect();
    let required = [&["req_id"][..], &["arrival_time"], &["outcome", "success"]];
    let is_missing = |any: &&&[&str]| !any.iter().any(|name| names.contains(name));
    if let Some([name, ..]) = required.iter().find(is_missing) {
        return Err(match line {
            "" => "the file is empty".to_owned(),
            _ => format!("its first line has no column {name}"),
        });
    }
    let is_twice = |(at, name): &(usize, &&str)| {
        names[..*at].contains(name) && ColumnId::named(name).is_some()
    };
    if let Some((_, name)) = names.iter().enumerate().find(is_twice) {
        return Err(format!("its first line names {name} twice"));
    }
    let column = |name: &&str| {
        let column = ColumnId::named(name);
        if column.is_none() {
            unknown.push((*name).to_owned());
        }
        let read = column.filter(|column| !skipped.contains(column));
        read.map(ColumnId::column)
    };
    Ok(names.iter().map(column).collect())
}

/// Returns the first time in the rows of a chunk, nanoseconds.
fn first_time(text: &[u8], header: &Header) -> Option<i64> {
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let line = std::str::from_utf8(line).ok()?;
        let cells = Cells::of(line.trim_end()).zip(header);
        let mut times = cells.filter(|(_, column)| column.is_some_and(|c| c.unit == Unit::Time));
        times.find_map(|(cell, _)| nanos(cell.as_bytes()))
    })
}

/// The rows of a chunk, the first messages about broken rows, and the number of broken rows.
type ParsedChunk = (Table, Vec<String>, u64);

/// Parses the lines of a chunk, of which the first has this number.
fn parse_lines(first: u64, text: Vec<u8>, header: &Header, origin: Option<i64>) -> ParsedChunk {
    let (mut table, mut examples, mut broken) = (Table::default(), Vec::new(), 0);
    let ends = memchr_iter(b'\n', &text).map(|at| at + 1);
    let (mut start, mut cells) = (0, Vec::with_capacity(header.len()));
    for (number, end) in (first..).zip(ends.chain([text.len()])) {
        let line = &text[start..end];
        start = end;
        // Editors leave blank lines at the end, where there is also an empty one.
        if matches!(line, b"" | b"\n" | b"\r\n") {
            continue;
        }
        cells.clear();
        match parse_row(line, header, origin, &mut cells) {
            Ok(()) => table.push_cells(cells.drain(..)),
            Err(message) => {
                broken += 1;
                if examples.len() < MAX_EXAMPLES {
                    examples.push(format!("line {number}: {message}"));
                }
            }
        }
    }
    (table, examples, broken)
}

/// Adds the cells of a row that are not empty to `cells`. The error is what is wrong with the row.
fn parse_row<'l>(
    line: &'l [u8],
    header: &Header,
    origin: Option<i64>,
    cells: &mut Vec<(ColumnId, Value<'l>)>,
) -> Result<(), String> {
    let line = line.strip_suffix(b"\n");
    let line = line.ok_or_else(|| "the row is cut off: no end of line".to_owned())?;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = std::str::from_utf8(line)
        .map_err(|error| format!("byte {} is no UTF-8", error.valid_up_to() + 1))?;
    let mut texts = Cells::of(line);
    for (index, column) in header.iter().enumerate() {
        let cell = texts
            .next()
            .ok_or_else(|| format!("the row is cut off: {index} of {} cells", header.len()))?;
        let Some(column) = column.filter(|_| !cell.is_empty()) else {
            continue;
        };
        let (name, unit) = (column.name, column.unit);
        let value = match unit {
            Unit::Text if column.id == ColumnId::outcome && Outcome::named(&cell).is_none() => None,
            Unit::Text => Some(Value::Text(cell.clone())),
            // Other programs that saved the file anew write `TRUE` or `true`.
            Unit::Bool if cell.eq_ignore_ascii_case("true") => Some(Value::Bool(true)),
            Unit::Bool if cell.eq_ignore_ascii_case("false") => Some(Value::Bool(false)),
            Unit::Bool => None,
            Unit::Count => cell.parse().ok().map(Value::Count),
            Unit::Latency | Unit::Seconds => nanos(cell.as_bytes()).map(Value::Nanos),
            Unit::Time => {
                let at = nanos(cell.as_bytes());
                let origin = origin.unwrap_or(0);
                let at = at.filter(|at| Base::of(*at) == Base::of(origin));
                at.map(|at| Value::Time(Stamp::from_nanos(at).plus_nanos(-origin)))
            }
        };
        let value = value.ok_or_else(|| {
            let start: String = cell.chars().take(40).collect();
            let reason = match unit {
                Unit::Text => "unknown to this version",
                Unit::Bool => "neither True nor False",
                Unit::Time => "no time like those of rows before it",
                _ => "no number",
            };
            format!("{name} {start:?} is {reason}")
        })?;
        cells.push((column.id, value));
    }
    match texts.count() {
        0 => Ok(()),
        more => Err(format!("{more} cells more than columns")),
    }
}
