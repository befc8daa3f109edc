//! The folders of the shards of a run, made into the folder of one.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::clock::NANOS;
use crate::disk::{self, Draft};

use crate::request::columns::COLUMNS;

use super::cells::written;
use super::figures::figures;
use super::files::{ROWS, SCHEDULE, SUMMARY};
use super::reader::{Run, load};
use super::rows::Base;
use super::verdict::{Grade, Verdict};
use super::window::Window;

mod shard;

pub use shard::Error;
use shard::{Shard, WORKLOAD, file};

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    /// The run's folder.
    pub dir: PathBuf,
    /// What is to be known of it.
    pub notes: Vec<String>,
}

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
    let making = Draft::folder(out).map_err(|cause| file(out, cause))?;
    let notes = make(&shards, making.path())?;
    put(making.path(), out)?;
    Ok(Merged {
        dir: out.to_owned(),
        notes,
    })
}

/// Makes the files of the run in `dir`. What is to be known of them beside their verdict.
fn make(shards: &[Shard], dir: &Path) -> Result<Vec<String>, Error> {
    let began = shards.iter().map(|shard| shard.began).min().unwrap_or(0);
    let mut notes = Vec::new();
    let broken = shards.iter().map(|shard| shard.broken).sum::<u64>();
    merge_rows(shards, began, &dir.join(ROWS))?;
    if broken > 0 {
        notes.push(format!("{broken} rows cannot be read and are left out"));
    }
    notes.extend(merge_schedules(shards, &dir.join(SCHEDULE))?);
    let summary = summary(shards, began, &notes, dir)?;
    let path = dir.join(SUMMARY);
    std::fs::write(&path, format!("{summary:#}\n")).map_err(|cause| file(&path, cause))?;
    Ok(notes)
}

/// Writes all rows, by their arrival.
fn merge_rows(shards: &[Shard], began: i64, path: &Path) -> Result<(), Error> {
    let mut rows = Vec::new();
    for (at, shard) in shards.iter().enumerate() {
        // Times of the epoch are every shard's already.
        let zero = match shard.base {
            Some(Base::Epoch) => shard.zero,
            _ => shard.began - began,
        };
        let table = &shard.table;
        let came = |row| {
            // A request that was never sent has no arrival: it stands where it was to be.
            let came = table.whole("arrival_time", row);
            came.or_else(|| table.whole("scheduled_time", row))
                .unwrap_or(0)
        };
        let all = 0..table.len();
        rows.extend(all.map(|row| (came(row).saturating_add(zero), at, zero, row)));
    }
    // Those of a request stay as they stood.
    rows.sort_by_key(|(came, at, ..)| (*came, *at));
    let write = || -> io::Result<()> {
        let mut out = BufWriter::new(File::create_new(path)?);
        let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
        writeln!(out, "{}", names.join(","))?;
        for (_, at, zero, row) in &rows {
            let cell = |place| shards.get(*at).map(|of| of.table.value_at(place, *row));
            let cells = (0..COLUMNS.len()).filter_map(cell);
            let cells: Vec<String> = cells.map(|value| written(value, *zero)).collect();
            writeln!(out, "{}", cells.join(","))?;
        }
        out.flush()
    };
    write().map_err(|cause| file(path, cause))
}

/// Moves the files to where they belong: all, or none.
fn put(made: &Path, out: &Path) -> Result<(), Error> {
    let mut moved = Vec::new();
    // The rows last: with them the folder is a run's.
    for name in [SCHEDULE, SUMMARY, ROWS] {
        let path = out.join(name);
        match std::fs::rename(made.join(name), &path) {
            Ok(()) => moved.push(path),
            Err(cause) if name == SCHEDULE && cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => {
                moved
                    .iter()
                    .for_each(|path| drop(std::fs::remove_file(path)));
                return Err(file(&path, cause));
            }
        }
    }
    Ok(())
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
    // The same settings may have read other files.
    let mut sent = shards
        .iter()
        .filter_map(|shard| Some((shard, shard.workload()?)));
    let Some((first, sum)) = sent.next() else {
        return Ok(());
    };
    match sent.find(|(_, other)| *other != sum) {
        None => Ok(()),
        Some((shard, _)) => {
            let what = format!(
                "config.{WORKLOAD} is not that of {}: they sent parts of different requests",
                first.dir.display()
            );
            Err(wrong(shard, what))
        }
    }
}

/// Why these are not the whole load that one generator would have sent.
fn lacks(shards: &[Shard]) -> Vec<String> {
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
    notes.extend(partial.map(|shard| {
        format!(
            "{} was cut short: its requests that were under way then, and those to come, are in no figure",
            shard.name()
        )
    }));
    notes
}

/// The rows of all schedules, by their place; a note of the folders that have none. No file where none has.
fn merge_schedules(shards: &[Shard], path: &Path) -> Result<Vec<String>, Error> {
    let (mut header, mut rows, mut notes) = (String::new(), Vec::new(), Vec::new());
    for shard in shards {
        let own = shard.dir.join(SCHEDULE);
        let text = match disk::open(&own).and_then(std::io::read_to_string) {
            Ok(text) => text,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                notes.push(format!(
                    "{} has no {SCHEDULE}: its part is missing in it",
                    shard.name()
                ));
                continue;
            }
            Err(cause) => return Err(file(&own, cause)),
        };
        let mut lines = text.lines();
        header = lines.next().unwrap_or_default().to_owned();
        let place = |line: &str| {
            line.split(',')
                .next()
                .and_then(|index| index.parse::<u64>().ok())
        };
        rows.extend(lines.filter_map(|line| Some((place(line)?, line.to_owned()))));
    }
    if notes.len() == shards.len() {
        return Ok(notes);
    }
    rows.sort();
    let rows: String = rows.into_iter().map(|(_, line)| line + "\n").collect();
    std::fs::write(path, format!("{header}\n{rows}")).map_err(|cause| file(path, cause))?;
    Ok(notes)
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
    let workload = shards.iter().find_map(Shard::workload);
    config.insert(WORKLOAD.to_owned(), workload.cloned().unwrap_or_default());
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
    summary["verdict"] = json!(verdict(shards));
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

/// A run is as good as the worst of its shards, at most `DEGRADED` where one was not judged, and `INVALID` where it is not
/// the whole load at its times.
fn verdict(shards: &[Shard]) -> Verdict {
    let mut reasons = lacks(shards);
    let mut grade = match reasons.is_empty() {
        true => Grade::Valid,
        false => Grade::Invalid,
    };
    for shard in shards {
        let own = Verdict::of(&shard.summary);
        if own.is_none() && !shard.is_partial {
            reasons.push(format!(
                "{} has no verdict: nobody knows whether its generator kept its schedule",
                shard.name()
            ));
        }
        grade = grade.max(own.as_ref().map_or(Grade::Degraded, |own| own.grade));
        let own = own.iter().flat_map(|own| &own.reasons);
        reasons.extend(own.map(|reason| format!("{}: {reason}", shard.name())));
    }
    Verdict { grade, reasons }
}

#[cfg(test)]
mod tests;
