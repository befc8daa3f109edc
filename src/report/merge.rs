//! `--merge`: makes one run of the folders of its shards.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::clock::{Stamp, seconds};
use crate::disk::NewFile;
use crate::request::cell::Value as Cell;
use crate::request::columns::{COLUMNS, Column, ColumnId};
use crate::table::Error;
use crate::table::cells::RowWriter;
use crate::table::rows::{self, SKIPPED_COLUMNS};

use super::figures::figures;
use super::files::{ROWS, SUMMARY};
use super::reader::Run;
use super::sanitize::sanitize;
use super::verdict::{Grade, Verdict};

mod shard;

use shard::{Shard, WORKLOAD};

/// Shards that began further apart than this did not send one schedule; seconds.
const MAX_APART_S: f64 = 0.1;

/// Merges the folders of shards into a folder of one run.
///
/// # Errors
/// They are not different shards of one schedule, or a file cannot be read or written.
pub fn merge(dirs: &[PathBuf], out: &Path) -> Result<(), Error> {
    let shards = dirs.iter().map(|dir| Shard::open(dir));
    let mut shards = shards.collect::<Result<Vec<Shard>, Error>>()?;
    shards.sort_by_key(|shard| shard.number);
    check(&shards)?;
    std::fs::create_dir_all(out).map_err(|cause| Error::write(out, cause))?;
    let began = shards.iter().map(|shard| shard.began).min().unwrap_or(0);
    let [rows, summary_path] = [ROWS, SUMMARY].map(|name| out.join(name));
    let merged = merge_rows(&shards, began, &rows).map_err(|cause| Error::write(&rows, cause))?;
    let summary = format!("{:#}\n", summary(&shards, began, merged.draft())?);
    let written = NewFile::create_new(&summary_path).and_then(|mut new| {
        new.write_all(summary.as_bytes())?;
        new.commit()
    });
    written.map_err(|cause| Error::write(&summary_path, cause))?;
    // The rows last, as a folder with rows counts as a run.
    merged.commit().map_err(|cause| {
        let _ = std::fs::remove_file(&summary_path);
        Error::write(&rows, cause)
    })
}

/// Writes all rows in the order of arrival, with times since the beginning of the run.
fn merge_rows(shards: &[Shard], began: i64, path: &Path) -> io::Result<NewFile> {
    let mut rows = Vec::new();
    for shard in shards {
        let zero = shard.zero.unwrap_or(shard.began) - began;
        let table = &shard.run.table;
        let arrival = |row| {
            // A request that was never sent is placed at its scheduled time.
            let arrival = table.integer(ColumnId::arrival_time, row);
            arrival
                .or_else(|| table.integer(ColumnId::scheduled_time, row))
                .unwrap_or(0)
        };
        let all = 0..table.len();
        rows.extend(all.map(|row| (arrival(row).saturating_add(zero), table, zero, row)));
    }
    // A stable sort, so that the rows of a request stay together.
    rows.sort_by_key(|(arrival, ..)| *arrival);
    let mut out = RowWriter::new(NewFile::create_new(path)?, Stamp::EPOCH)?;
    for (_, table, zero, row) in rows {
        let cell = |column: &Column| match table.value(column.id, row) {
            Cell::Time(at) => Cell::Time(at.plus_nanos(zero)),
            other => other,
        };
        out.write_cells(COLUMNS.iter().map(cell))?;
    }
    out.finish()
}

/// Checks that these are different shards of one schedule.
fn check(shards: &[Shard]) -> Result<(), Error> {
    // Only finished shards know the hash of what was sent.
    let is_known = |shard: &&Shard| shard.run.workload_sha256().is_some();
    let first = shards.iter().find(is_known);
    let Some(first) = first.or(shards.first()) else {
        return Ok(());
    };
    let config = first.config();
    for (at, shard) in shards.iter().enumerate() {
        let error = |message: String| Err(Error::read(&shard.run.dir, message));
        let before = at.checked_sub(1).and_then(|at| shards.get(at));
        let is_given =
            |before: &&Shard| before.number == shard.number || before.count != shard.count;
        if let Some(before) = before.filter(is_given) {
            return error(format!(
                "{} does not go with {} of {}: each of one run's shards is given once",
                shard.name(),
                before.name(),
                before.run.dir.display()
            ));
        }
        let own = shard.config();
        let is_other = |key: &&String| {
            let is_known = *key != WORKLOAD || shard.run.workload_sha256().is_some();
            is_known && config.get(*key) != own.get(*key)
        };
        if let Some(key) = config.keys().chain(own.keys()).find(is_other) {
            let [own, firsts] = [&own, &config].map(|of| of.get(key).cloned().unwrap_or_default());
            return error(format!(
                "config.{key} is {own}, in {} it is {firsts}: shards of one run have the same settings and requests",
                first.run.dir.display(),
            ));
        }
    }
    Ok(())
}

/// The reasons why these are not the whole load that one generator would have sent.
fn missing_parts(shards: &[Shard]) -> Vec<String> {
    let mut notes = Vec::new();
    let count = shards.first().map_or(0, |shard| shard.count);
    let is_there = |number: &u64| shards.iter().any(|shard| shard.number == *number);
    let missing = (0..count).filter(|number| !is_there(number));
    let missing: Vec<String> = missing.map(|number| format!("{number}/{count}")).collect();
    if !missing.is_empty() {
        notes.push(format!(
            "missing: shard {}: the requests of {} of {count} parts of the load are in no figure",
            missing.join(", "),
            missing.len()
        ));
    }
    let began = || shards.iter().map(|shard| shard.began);
    let apart = seconds(began().max().unwrap_or(0) - began().min().unwrap_or(0));
    if apart > MAX_APART_S {
        notes.push(format!(
            "the shards began {apart:.3} s apart by their own clocks: together they did not send the schedule of one \
             (--start-at lets them begin at one moment)"
        ));
    }
    notes.extend(shards.iter().filter_map(|Shard { run, number, count, .. }| {
        if run.is_partial {
            return Some(format!(
                "shard {number}/{count} was cut short: its requests that were under way then, and those to come, are in no figure"
            ));
        }
        let rows = run.table.first_rows().count() as u64;
        let all = run.summary_as("/requests").unwrap_or(rows.max(1));
        (rows < all).then(|| {
            format!(
                "shard {number}/{count} has rows of {rows} of its {all} requests: the others are in no figure"
            )
        })
    }));
    notes
}

/// The summary of the merged rows, which are in this file.
fn summary(shards: &[Shard], began: i64, rows: &Path) -> Result<Value, Error> {
    let (table, _) = rows::read(&[rows.to_owned()], Some(seconds(began)), &SKIPPED_COLUMNS)?;
    let end = |shard: &Shard| Some(shard.run.duration()? + seconds(shard.began - began));
    let scheduled = shards.iter().map(|shard| shard.run.scheduled());
    let first = shards.first();
    let mut config = first.map(Shard::config).unwrap_or_default();
    config.insert("shard".to_owned(), Value::Null);
    let workload = shards.iter().find_map(|shard| shard.run.workload_sha256());
    config.insert(WORKLOAD.to_owned(), workload.into());
    let facts = json!({
        "started_at_ns": began,
        "duration": shards.iter().filter_map(end).reduce(f64::max),
        // Each shard offers a part of the load.
        "offered_rate": shards.iter().map(|shard| shard.run.summary_as::<f64>("/offered_rate")).sum::<Option<f64>>(),
        "goodput_goals_ms": first.and_then(|shard| shard.run.summary_value("/goodput_goals_ms")),
        "scheduled": scheduled.sum::<Option<u64>>(),
        "config": config,
    });
    let run = Run {
        table: sanitize(table),
        summary: facts,
        ..Run::default()
    };
    let mut summary = figures(&run).to_json();
    let of_shard = |of: &Shard| json!({ "dir": of.run.dir, "shard": format!("{}/{}", of.number, of.count), "started_at_ns": of.began });
    let machine = |of: &Shard| of.run.summary_value("/machine").cloned();
    summary["machines"] = shards.iter().map(machine).collect();
    summary["merged_from"] = shards.iter().map(of_shard).collect();
    summary["warnings"] = warnings(shards).into();
    summary["verdict"] = json!(verdict(shards));
    Ok(summary)
}

fn warnings(shards: &[Shard]) -> Vec<String> {
    let broken: u64 = shards.iter().map(|of| of.broken).sum();
    let rows = |of: &Shard| of.broken + of.run.table.len() as u64;
    let all: u64 = shards.iter().map(rows).sum();
    let left_out = format!("{broken} of {all} rows cannot be read and are left out");
    let mut warnings: Vec<String> = (broken > 0).then_some(left_out).into_iter().collect();
    for shard in shards {
        let own = shard.run.warnings();
        warnings.extend(own.map(|warning| format!("{}: {warning}", shard.name())));
    }
    warnings
}

/// The verdict is the worst of all shards, at best `DEGRADED` if one has none, and `INVALID` if the merged run is not the whole load
/// at its scheduled times.
fn verdict(shards: &[Shard]) -> Verdict {
    let mut reasons = missing_parts(shards);
    let mut grade = match reasons.is_empty() {
        true => Grade::Valid,
        false => Grade::Invalid,
    };
    for shard in shards {
        let own = shard.run.verdict();
        if own.is_none() && !shard.run.is_partial {
            reasons.push(format!(
                "{} has no verdict: whether its generator kept its schedule is not known",
                shard.name()
            ));
        }
        grade = grade.max(own.as_ref().map_or(Grade::Degraded, |own| own.grade));
        let own_reasons = own.into_iter().flat_map(|own| own.reasons);
        reasons.extend(own_reasons.map(|reason| format!("{}: {reason}", shard.name())));
    }
    Verdict { grade, reasons }
}

#[cfg(test)]
mod tests;
