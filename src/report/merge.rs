//! `--merge`: makes one run of the folders of its shards.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::clock::Stamp;
use crate::disk::{self, NewFile};
use crate::error::Error;
use crate::request::cell::Value as Cell;
use crate::request::{COLUMNS, ColumnId};
use crate::table::cells::RowWriter;
use crate::table::rows;

use super::files::{Grade, ROWS, SUMMARY, Verdict};
use super::load::{RunFacts, Summary};
use super::reader::{Run, run_of};

/// A shard of a schedule.
#[derive(Debug)]
struct Shard {
    /// Its run, with all columns of its rows; times count from when it began.
    run: Run,
    /// Its number, from 0.
    number: u64,
    /// The number of shards.
    count: u64,
    /// When it began.
    began: Stamp,
    /// Of rows that cannot be read.
    left_out: Option<String>,
}

/// The settings in which shards of one run may differ.
const MAY_DIFFER: [&str; 2] = ["shard", "start_at"];
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
    let began = shards.iter().map(|shard| shard.began).min();
    let began = began.unwrap_or(Stamp::EPOCH);
    let [rows, summary_path] = [ROWS, SUMMARY].map(|name| out.join(name));
    let merged = merge_rows(&shards, began, &rows).map_err(|cause| Error::write(&rows, cause))?;
    let summary = format!("{:#}\n", summary(&shards, began, merged.draft())?);
    let written = disk::replace(&summary_path, summary.as_bytes());
    written.map_err(|cause| Error::write(&summary_path, cause))?;
    // The rows last, as a folder with rows counts as a run.
    merged.commit().map_err(|cause| {
        let _ = std::fs::remove_file(&summary_path);
        Error::write(&rows, cause)
    })
}

/// Writes all rows in the order of arrival, with times since the beginning of the run.
fn merge_rows(shards: &[Shard], began: Stamp, path: &Path) -> io::Result<NewFile> {
    let mut rows = Vec::new();
    for shard in shards {
        let zero = shard.began.nanos_since(began);
        let table = &shard.run.table;
        // A request that was never sent is placed at its scheduled time.
        let times = [ColumnId::arrival_time, ColumnId::scheduled_time];
        let time = |row| times.iter().find_map(|of| table.integer(*of, row));
        let arrival = |row| time(row).unwrap_or(0);
        let all = table.first_rows();
        rows.extend(all.map(|row| (arrival(row).saturating_add(zero), table, zero, row)));
    }
    rows.sort_by_key(|(arrival, ..)| *arrival);
    let mut out = RowWriter::new(NewFile::create_new(path)?, Stamp::EPOCH)?;
    for (_, table, zero, first) in rows {
        for mut row in table.request(first) {
            for column in &COLUMNS {
                if let Cell::Time(at) = (column.get)(&row) {
                    (column.put)(&mut row, Cell::Time(at.plus_nanos(zero)));
                }
            }
            out.write(&row)?;
        }
    }
    out.finish()
}

/// Checks that these are different shards of one schedule; they are in order.
fn check(shards: &[Shard]) -> Result<(), Error> {
    for (before, shard) in shards.iter().zip(shards.iter().skip(1)) {
        let error = |message: String| Err(Error::read(&shard.run.dir, message));
        let other = before.run.dir.display();
        if before.number == shard.number || before.count != shard.count {
            let (name, before) = (shard.name(), before.name());
            return error(format!(
                "{name} does not go with {before} of {other}: each of one run's shards is given once"
            ));
        }
        let [config, own] = [before, shard].map(Shard::config);
        let is_other = |key: &&String| config.get(*key) != own.get(*key);
        if let Some(key) = config.keys().chain(own.keys()).find(is_other) {
            let [own, others] = [&own, &config].map(|of| of.get(key).cloned().unwrap_or_default());
            return error(format!(
                "config.{key} is {own}, in {other} it is {others}: shards of one run have the same settings and requests"
            ));
        }
    }
    Ok(())
}

/// The reasons why these are not the whole load that one generator would have sent.
fn missing_parts(shards: &[Shard]) -> Vec<String> {
    let mut notes = Vec::new();
    let count = shards.first().map_or(0, |shard| shard.count);
    let missing = count.saturating_sub(shards.len() as u64);
    if missing > 0 {
        notes.push(format!(
            "missing: {missing} of {count} shards: their requests are in no figure"
        ));
    }
    let began = || shards.iter().map(|shard| shard.began);
    let ends = began().min().zip(began().max());
    let apart = ends.map_or(0.0, |(first, last)| last.since(first));
    if apart > MAX_APART_S {
        notes.push(format!(
            "the shards began {apart:.3} s apart by their own clocks: together they did not send the schedule of one \
             (--start-at lets them begin at one moment)"
        ));
    }
    notes.extend(shards.iter().filter_map(|shard| {
        let rows = shard.run.table.first_rows().count() as u64;
        // The figures of a shard with a window are of fewer.
        let left_out = shard.run.window().map_or(0, |window| window.left_out());
        let counted = shard.run.summary_as::<u64>("/requests");
        let all = counted.map_or(rows.max(1), |counted| counted + left_out);
        let name = shard.name();
        (rows < all).then(|| {
            format!("{name} has rows of {rows} of its {all} requests: the others are in no figure")
        })
    }));
    notes
}

/// The summary of the merged rows, which are in this file.
fn summary(shards: &[Shard], started: Stamp, rows: &Path) -> Result<Value, Error> {
    let [first, ..] = shards else {
        return Ok(Value::Null);
    };
    let runs = || shards.iter().map(|shard| &shard.run);
    // Of a shard with a window, the summary has the window's duration.
    let end = |of: &Shard| RunFacts::of(&of.run).ended.plus_nanos(of.began.nanos());
    let ended = shards.iter().map(end).max();
    let mut config = first.config();
    config.insert("shard".to_owned(), Value::Null);
    let offered = runs().map(|run| run.summary_as::<f64>("/offered_rate"));
    let facts = RunFacts {
        started,
        ended: ended.unwrap_or(started),
        // Each shard offers a part of the load.
        offered_rate: offered.sum(),
        scheduled: runs().filter_map(Run::scheduled).sum::<u64>() as usize,
        config: config.into(),
        machine: Value::Null,
        ..RunFacts::of(&first.run)
    };
    let mut summary = Summary::of_file(rows, &facts, [0.0; 2])?.to_json();
    let of_shard = |of: &Shard| json!({ "dir": of.run.dir, "shard": format!("{}/{}", of.number, of.count), "started_at_ns": of.began.nanos() });
    let machine = |of: &Shard| of.run.summary_value("/machine").cloned();
    let warnings = shards.iter().flat_map(|of| {
        let own = of.left_out.as_deref().into_iter().chain(of.run.warnings());
        own.map(|warning| format!("{}: {warning}", of.name()))
    });
    summary["machines"] = shards.iter().map(machine).collect();
    summary["merged_from"] = shards.iter().map(of_shard).collect();
    summary["warnings"] = warnings.collect();
    summary["verdict"] = json!(verdict(shards));
    Ok(summary)
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
        let own = shard.run.verdict().unwrap_or_else(|| Verdict {
            grade: Grade::Degraded,
            reasons: vec!["it has no verdict on whether its schedule was kept".to_owned()],
        });
        grade = grade.max(own.grade);
        let own = own.reasons.iter();
        reasons.extend(own.map(|reason| format!("{}: {reason}", shard.name())));
    }
    Verdict { grade, reasons }
}

impl Shard {
    /// Reads the folder of a shard.
    ///
    /// # Errors
    /// It is no folder of a finished shard, or a file cannot be read.
    fn open(dir: &Path) -> Result<Shard, Error> {
        let error = |message: &str| Error::read(dir, message);
        if !dir.is_dir() && dir.exists() {
            return Err(error("is a file; --merge takes the folders of the shards"));
        }
        let mut run = run_of(dir)?;
        if run.is_partial || run.summary.is_null() {
            return Err(error(
                "the shard did not come to its end (no requests.csv and summary.json). Leave this folder out; the merged run then says \
                 that its shard is missing",
            ));
        }
        let shard = run.summary_value("/config/shard").and_then(Value::as_str);
        let (number, count) = shard
            .and_then(|shard| shard.split_once('/'))
            .and_then(|(number, count)| Some((number.parse().ok()?, count.parse().ok()?)))
            .ok_or_else(|| error("no shard: the run was made without --shard i/n"))?;
        let began: Option<Stamp> = run.summary_as("/started_at_ns");
        let began = began.ok_or_else(|| error("its summary has no started_at_ns"))?;
        let (table, read) = rows::read(&run.files, Some(began), &[])?;
        if !read.unknown_columns.is_empty() {
            return Err(error(
                "its rows have other columns than this version writes: merge with the version that wrote them",
            ));
        }
        run.table = table;
        Ok(Shard {
            run,
            number,
            count,
            began,
            left_out: read.left_out(),
        })
    }

    /// Its label: `shard 0/2`.
    fn name(&self) -> String {
        format!("shard {}/{}", self.number, self.count)
    }

    /// The settings that all shards of a run share.
    fn config(&self) -> Map<String, Value> {
        let config = self.run.summary_value("/config").and_then(Value::as_object);
        let mut config = config.cloned().unwrap_or_default();
        config.retain(|key, _| !MAY_DIFFER.contains(&key.as_str()));
        config
    }
}

#[cfg(test)]
mod tests;
