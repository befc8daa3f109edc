//! The rows of shards, in the order of their arrival.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::clock::NANOS;
use crate::disk;
use crate::report::cells::Cells;
use crate::report::rows::EPOCH_FROM;
use crate::request::cell::nanos;
use crate::request::column::Unit;
use crate::request::columns::COLUMNS;

use super::shard::{Error, Shard, file};

type Lines = Box<dyn Iterator<Item = io::Result<String>>>;

/// The rows of a shard, one at a time.
struct Rows {
    lines: Lines,
    path: PathBuf,
    /// What is to be added to its times, nanoseconds.
    shift: i64,
    /// Which of its columns are times, and which is the arrival.
    times: Vec<bool>,
    arrival: usize,
    /// The next row and when it arrived.
    next: Option<(i64, String)>,
    /// Rows that cannot be read.
    broken: u64,
}

/// All rows, by their arrival; how many could not be read.
pub fn merge_rows(shards: &[Shard], began: i64, path: &Path) -> Result<u64, Error> {
    let mut all = Vec::new();
    for shard in shards {
        all.push(Rows::open(shard, shard.began - began)?);
    }
    let out = File::create_new(path).map_err(|cause| file(path, cause))?;
    let mut out = BufWriter::new(out);
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    let written = |result: io::Result<()>| result.map_err(|cause| file(path, cause));
    written(writeln!(out, "{}", names.join(",")))?;
    loop {
        let waiting = all.iter_mut().filter(|rows| rows.next.is_some());
        let first = waiting.min_by_key(|rows| rows.next.as_ref().map(|(at, _)| *at));
        let Some(rows) = first else { break };
        if let Some((_, line)) = rows.next.take() {
            written(writeln!(out, "{line}"))?;
        }
        rows.advance()?;
    }
    written(out.flush())?;
    Ok(all.iter().map(|rows| rows.broken).sum())
}

impl Rows {
    fn open(shard: &Shard, shift: i64) -> Result<Rows, Error> {
        let path = shard.rows.clone();
        let times: Vec<bool> = COLUMNS
            .iter()
            .map(|column| column.unit == Unit::Time)
            .collect();
        let arrival = COLUMNS
            .iter()
            .position(|column| column.name == "arrival_time");
        let arrival = arrival.unwrap_or(0);
        let (mut lines, broken) = match shard.is_partial {
            true => by_arrival(&path, &times, arrival),
            false => in_order(&path),
        }
        .map_err(|cause| file(&path, cause))?;
        let header = lines
            .next()
            .transpose()
            .map_err(|cause| file(&path, cause))?;
        let mut known = COLUMNS.iter().map(|column| column.name);
        // One that was killed before its first rows reached the disk has not even the header.
        let is_empty = shard.is_partial && header.is_none();
        if !is_empty && !known.by_ref().eq(header.unwrap_or_default().split(',')) {
            return Err(Error::NoShard {
                dir: shard.dir.clone(),
                what: "its rows have other columns than this version writes: merge with the version that wrote them"
                    .to_owned(),
            });
        }
        let mut rows = Rows {
            lines,
            path,
            shift,
            times,
            arrival,
            next: None,
            broken,
        };
        rows.advance()?;
        Ok(rows)
    }

    /// Takes the next row that can be read.
    fn advance(&mut self) -> Result<(), Error> {
        self.next = None;
        for line in self.lines.by_ref() {
            let line = match line {
                Ok(line) => line,
                Err(cause) if cause.kind() == io::ErrorKind::InvalidData => {
                    self.broken += 1;
                    continue;
                }
                Err(cause) => return Err(file(&self.path, cause)),
            };
            match shifted(&line, &self.times, self.arrival, self.shift) {
                Some(next) => {
                    self.next = Some(next);
                    break;
                }
                None => self.broken += 1,
            }
        }
        Ok(())
    }
}

/// The lines of a file whose rows are in order.
fn in_order(path: &Path) -> io::Result<(Lines, u64)> {
    Ok((Box::new(BufReader::new(disk::open(path)?).lines()), 0))
}

/// The lines of a file of rows in the order in which they ended, the header first; how many of them, the last at most, were
/// cut short.
fn by_arrival(path: &Path, times: &[bool], arrival: usize) -> io::Result<(Lines, u64)> {
    let text = disk::read(path)?;
    let text = String::from_utf8_lossy(&text);
    let (whole, cut) = match text.rfind('\n') {
        Some(end) => text.split_at(end + 1),
        None => ("", &*text),
    };
    let mut lines: Vec<String> = whole.lines().map(str::to_owned).collect();
    if let Some(rows) = lines.get_mut(1..) {
        rows.sort_by_cached_key(|line| shifted(line, times, arrival, 0).map(|(at, _)| at));
    }
    Ok((
        Box::new(lines.into_iter().map(Ok)),
        u64::from(!cut.is_empty()),
    ))
}

/// A row with its times moved, and when it arrived; `None` of one that cannot be read.
fn shifted(line: &str, times: &[bool], arrival: usize, shift: i64) -> Option<(i64, String)> {
    let cells: Vec<_> = Cells::of(line).collect();
    if cells.len() != times.len() {
        return None;
    }
    // A request that was never sent has no arrival: it stands where it was to be.
    let arrived = nanos(cells.get(arrival)?);
    let scheduled = times.iter().zip(&cells).filter(|(is_time, _)| **is_time);
    let arrived = arrived.or_else(|| scheduled.filter_map(|(_, cell)| nanos(cell)).next());
    let arrived = arrived.unwrap_or(0).saturating_add(shift);
    // Times of the epoch are every shard's already.
    if shift == 0 || arrived > EPOCH_FROM * NANOS {
        return Some((arrived, line.to_owned()));
    }
    let moved = cells
        .iter()
        .zip(times)
        .map(|(cell, is_time)| match nanos(cell) {
            Some(at) if *is_time => seconds(at.saturating_add(shift)),
            _ if cell.contains([',', '"']) => format!("\"{}\"", cell.replace('"', "\"\"")),
            _ => cell.to_string(),
        });
    Some((arrived, moved.collect::<Vec<_>>().join(",")))
}

/// As rows have it: nine digits.
pub fn seconds(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let (whole, part) = (nanos.abs() / NANOS, nanos.abs() % NANOS);
    format!("{sign}{whole}.{part:09}")
}
