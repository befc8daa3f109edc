//! The folders of the shards of a run, made into the folder of one.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Lines, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::clock::NANOS;
use crate::request::column::Unit;
use crate::request::columns::COLUMNS;

use super::cells::{Cells, nanos};
use super::figures::figures;
use super::reader::{self, Run, load};
use super::window::Window;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    /// The run's folder.
    pub dir: PathBuf,
    /// What is to be known of it.
    pub notes: Vec<String>,
}

/// Why there is no run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A shard cannot be read.
    #[error(transparent)]
    Read(#[from] reader::Error),
    /// A folder is not a shard's.
    #[error("{}: {what}", dir.display())]
    NoShard {
        /// The folder.
        dir: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// What the system says.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
}

/// A shard of a schedule.
#[derive(Debug)]
struct Shard {
    dir: PathBuf,
    number: u64,
    of: u64,
    /// When it began, nanoseconds since the epoch.
    began: i64,
    summary: Value,
    rows: PathBuf,
    is_partial: bool,
}

/// The rows of a shard, one at a time.
struct Rows {
    lines: Lines<BufReader<File>>,
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

const ROWS: &str = "requests.csv";
const PARTIAL: &str = "requests.partial.csv";
const SUMMARY: &str = "summary.json";
const SCHEDULE: &str = "schedule.csv";
/// What shards of one run may differ in.
const OWN: [&str; 3] = ["shard", "start_at", "workload_sha256"];
/// Shards that began further apart than this did not send one schedule: seconds.
const APART: f64 = 0.1;

/// Makes one run's folder of the folders of its shards.
///
/// # Errors
/// They are not shards of one schedule, one is given twice, `out` holds a run already, or a file cannot be read or written.
pub fn merge(dirs: &[PathBuf], out: &Path) -> Result<Merged, Error> {
    let mut shards: Vec<Shard> = Vec::new();
    for dir in dirs {
        shards.push(Shard::open(dir)?);
    }
    shards.sort_by_key(|shard| shard.number);
    check(&shards)?;
    std::fs::create_dir_all(out).map_err(|cause| file(out, cause))?;
    for name in [ROWS, SUMMARY, SCHEDULE] {
        let path = out.join(name);
        if path.exists() {
            return Err(file(&path, io::ErrorKind::AlreadyExists.into()));
        }
    }
    let mut notes = notes(&shards);
    let began = shards.iter().map(|shard| shard.began).min().unwrap_or(0);
    let broken = merge_rows(&shards, began, &out.join(ROWS))?;
    if broken > 0 {
        notes.push(format!("{broken} rows cannot be read and are left out"));
    }
    merge_schedules(&shards, &out.join(SCHEDULE))?;
    let summary = summary(&shards, began, &notes, out)?;
    let path = out.join(SUMMARY);
    std::fs::write(&path, format!("{summary:#}\n")).map_err(|cause| file(&path, cause))?;
    Ok(Merged {
        dir: out.to_owned(),
        notes,
    })
}

impl Shard {
    fn open(dir: &Path) -> Result<Shard, Error> {
        let no_shard = |what: &str| Error::NoShard {
            dir: dir.to_owned(),
            what: what.to_owned(),
        };
        let path = dir.join(SUMMARY);
        let text = std::fs::read(&path).map_err(|cause| file(&path, cause))?;
        let summary: Value = serde_json::from_slice(&text)
            .map_err(|error| no_shard(&format!("{SUMMARY}: {error}")))?;
        let shard = summary.pointer("/config/shard").and_then(Value::as_str);
        let (number, of) = shard
            .and_then(|shard| shard.split_once('/'))
            .and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)))
            .ok_or_else(|| no_shard("no shard: the run was made without --shard i/n"))?;
        let began = summary.get("started_at_ns").and_then(Value::as_i64);
        let began = began.ok_or_else(|| no_shard("summary.json has no started_at_ns"))?;
        let whole = dir.join(ROWS);
        let is_partial = !whole.is_file();
        Ok(Shard {
            dir: dir.to_owned(),
            number,
            of,
            began,
            rows: if is_partial { dir.join(PARTIAL) } else { whole },
            is_partial,
            summary,
        })
    }

    fn name(&self) -> String {
        format!("shard {}/{}", self.number, self.of)
    }

    /// The settings that all shards of a run share.
    fn config(&self) -> Map<String, Value> {
        let config = self.summary.get("config").and_then(Value::as_object);
        let mut config = config.cloned().unwrap_or_default();
        config.retain(|key, _| !OWN.contains(&key.as_str()));
        config
    }
}

/// Whether these are different shards of one schedule.
fn check(shards: &[Shard]) -> Result<(), Error> {
    let Some((first, others)) = shards.split_first() else {
        return Ok(());
    };
    let wrong = |shard: &Shard, what: String| Error::NoShard {
        dir: shard.dir.clone(),
        what,
    };
    let config = first.config();
    for (shard, before) in others.iter().zip(shards) {
        if shard.of != first.of || shard.number == before.number {
            let what = format!(
                "{} does not go with {} of {}: each of one run's shards is given once",
                shard.name(),
                before.name(),
                before.dir.display()
            );
            return Err(wrong(shard, what));
        }
        let own = shard.config();
        let keys = config.keys().chain(own.keys());
        let mut differing = keys.filter(|key| config.get(*key) != own.get(*key));
        if let Some(key) = differing.next() {
            let shown = |config: &Map<String, Value>| config.get(key).cloned().unwrap_or_default();
            let what = format!(
                "config.{key} is {}, in {} it is {}: shards of one run have the same settings",
                shown(&own),
                first.dir.display(),
                shown(&config)
            );
            return Err(wrong(shard, what));
        }
    }
    Ok(())
}

fn notes(shards: &[Shard]) -> Vec<String> {
    let mut notes = Vec::new();
    let of = shards.first().map_or(0, |shard| shard.of);
    let is_there = |number: &u64| shards.iter().any(|shard| shard.number == *number);
    let missing = (0..of).filter(|number| !is_there(number));
    let missing: Vec<String> = missing.map(|number| format!("{number}/{of}")).collect();
    if !missing.is_empty() {
        notes.push(format!(
            "shards {} are missing: their requests, {} of {of} parts of the load, are in no figure",
            missing.join(", "),
            missing.len()
        ));
    }
    let began = || shards.iter().map(|shard| shard.began);
    let apart = began().max().unwrap_or(0) - began().min().unwrap_or(0);
    let apart = apart as f64 / NANOS as f64;
    if apart > APART {
        notes.push(format!(
            "the shards began {apart:.3} s apart by their own clocks: together they did not send the schedule of one \
             (--start-at lets them begin at one moment)"
        ));
    }
    let partial = shards.iter().filter(|shard| shard.is_partial);
    notes.extend(partial.map(|shard| format!("{} is unfinished", shard.name())));
    notes
}

/// All rows, by their arrival; how many could not be read.
fn merge_rows(shards: &[Shard], began: i64, path: &Path) -> Result<u64, Error> {
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
        let opened = File::open(&path).map_err(|cause| file(&path, cause))?;
        let mut lines = BufReader::new(opened).lines();
        let header = lines
            .next()
            .transpose()
            .map_err(|cause| file(&path, cause))?;
        let header = header.unwrap_or_default();
        let names: Vec<&str> = header.split(',').collect();
        let known = COLUMNS.iter().map(|column| column.name);
        if !known.eq(names.iter().copied()) {
            return Err(Error::NoShard {
                dir: shard.dir.clone(),
                what: "its rows have other columns than this version writes: merge with the version that wrote them"
                    .to_owned(),
            });
        }
        let arrival = names.iter().position(|name| *name == "arrival_time");
        let mut rows = Rows {
            lines,
            path,
            shift,
            times: COLUMNS
                .iter()
                .map(|column| column.unit == Unit::Time)
                .collect(),
            arrival: arrival.unwrap_or(0),
            next: None,
            broken: 0,
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
    if shift == 0 || arrived > 100_000_000 * NANOS {
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

/// The rows of all schedules, by their place; those of a folder that has none are missing.
fn merge_schedules(shards: &[Shard], path: &Path) -> Result<(), Error> {
    let (mut header, mut rows) = (String::new(), Vec::new());
    for shard in shards {
        let own = shard.dir.join(SCHEDULE);
        let text = std::fs::read_to_string(&own).map_err(|cause| file(&own, cause))?;
        let mut lines = text.lines();
        header = lines.next().unwrap_or_default().to_owned();
        let place = |line: &str| {
            line.split(',')
                .next()
                .and_then(|index| index.parse::<u64>().ok())
        };
        rows.extend(lines.filter_map(|line| Some((place(line)?, line.to_owned()))));
    }
    rows.sort();
    let rows: String = rows.into_iter().map(|(_, line)| line + "\n").collect();
    std::fs::write(path, format!("{header}\n{rows}")).map_err(|cause| file(path, cause))
}

/// The summary of all rows, as one run's.
fn summary(shards: &[Shard], began: i64, notes: &[String], out: &Path) -> Result<Value, Error> {
    let loaded = load(&[out.to_owned()])?;
    let Some(run) = loaded.runs.into_iter().next() else {
        return Ok(Value::Null);
    };
    let told = |shard: &Shard, name: &str| shard.summary.get(name).cloned();
    let number = |shard: &Shard, name: &str| told(shard, name).and_then(|value| value.as_f64());
    let end = |shard: &Shard| {
        let after = (shard.began - began) as f64 / NANOS as f64;
        // Figures of shards together are of all that they sent, and a window's length is not a run's.
        let is_whole = Window::of(&shard.summary).is_none_or(|window| window.is_all());
        let duration = number(shard, "duration").filter(|_| is_whole);
        duration.map(|duration| duration + after)
    };
    let first = shards.first();
    let scheduled: Option<u64> = shards
        .iter()
        .map(|shard| told(shard, "scheduled").and_then(|value| value.as_u64()))
        .sum();
    let mut config = first.map(Shard::config).unwrap_or_default();
    config.insert("shard".to_owned(), Value::Null);
    let facts = json!({
        "duration": shards.iter().filter_map(end).reduce(f64::max),
        // Each offered its part of the load.
        "offered_rate": shards.iter().map(|shard| number(shard, "offered_rate")).sum::<Option<f64>>(),
        "goodput_goals_ms": first.and_then(|shard| told(shard, "goodput_goals_ms")),
        "config": config,
    });
    let run = Run {
        summary: Some(facts),
        scheduled: scheduled.or(run.scheduled),
        ..run
    };
    let mut summary = figures(&run).to_json();
    let machines = shards.iter().map(|shard| told(shard, "machine"));
    summary["machine"] = Value::Null;
    summary["machines"] = machines.collect();
    summary["started_at"] = (began as f64 / NANOS as f64).into();
    summary["started_at_ns"] = began.into();
    summary["merged_from"] = shards
        .iter()
        .map(|shard| json!({ "dir": shard.dir, "shard": format!("{}/{}", shard.number, shard.of), "started_at_ns": shard.began }))
        .collect();
    summary["warnings"] = warnings(shards, notes).into();
    summary["verdict"] = verdict(shards);
    Ok(summary)
}

fn warnings(shards: &[Shard], notes: &[String]) -> Vec<String> {
    let mut warnings = notes.to_vec();
    for shard in shards {
        let own = shard.summary.get("warnings").and_then(Value::as_array);
        let own = own.into_iter().flatten().filter_map(Value::as_str);
        warnings.extend(own.map(|warning| format!("{}: {warning}", shard.name())));
    }
    warnings
}

/// A run is as good as the worst of its shards.
fn verdict(shards: &[Shard]) -> Value {
    const GRADES: [&str; 3] = ["VALID", "DEGRADED", "INVALID"];
    let of = |shard: &Shard| {
        let grade = shard.summary.pointer("/verdict/grade")?.as_str()?;
        GRADES.iter().position(|known| *known == grade)
    };
    let grades: Option<Vec<usize>> = shards.iter().map(of).collect();
    let Some(worst) = grades.and_then(|grades| grades.into_iter().max()) else {
        return Value::Null;
    };
    let reasons = shards.iter().flat_map(|shard| {
        let reasons = shard
            .summary
            .pointer("/verdict/reasons")
            .and_then(Value::as_array);
        let reasons = reasons.into_iter().flatten().filter_map(Value::as_str);
        reasons
            .map(|reason| format!("{}: {reason}", shard.name()))
            .collect::<Vec<_>>()
    });
    json!({ "grade": GRADES.get(worst), "reasons": reasons.collect::<Vec<_>>() })
}

fn file(path: &Path, cause: io::Error) -> Error {
    Error::File {
        path: path.to_owned(),
        cause,
    }
}
