//! The folder of a shard.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::report::reader::{Run, run_of};
use crate::request::csv::Base;
use crate::table::rows;
use crate::table::{Error, Table};

/// A shard of a schedule.
#[derive(Debug)]
pub struct Shard {
    /// Its folder.
    pub dir: PathBuf,
    /// Which it is.
    pub number: u64,
    /// Of how many.
    pub of: u64,
    /// When it began, nanoseconds since the epoch.
    pub began: i64,
    /// Its `summary.json`; of one that was killed, what it wrote when it began.
    pub summary: Value,
    /// Its rows.
    pub table: Table,
    /// What their times count from: nanoseconds since the epoch where its file's times do, else since it began.
    pub zero: Option<i64>,
    /// Rows that cannot be read.
    pub broken: u64,
    /// Whether it did not come to its end.
    pub is_partial: bool,
}

/// What shards of one run may differ in.
const OWN: [&str; 2] = ["shard", "start_at"];
/// The member of `config` that tells what all shards together sent.
pub const WORKLOAD: &str = "workload_sha256";

impl Shard {
    /// Reads what is in its folder.
    ///
    /// # Errors
    /// It is no shard's, or a file cannot be read.
    pub fn open(dir: &Path) -> Result<Shard, Error> {
        let wrong = |what: &str| Error::read(dir, what);
        let Run {
            files,
            summary,
            is_partial,
            ..
        } = run_of(dir)?;
        let none = "no summary.json and no begun.json: nothing was sent (or an older version was killed while it sent). \
            Leave this folder out; the merged run then says that its shard is missing";
        let summary = summary.ok_or_else(|| wrong(none))?;
        let shard = summary.pointer("/config/shard").and_then(Value::as_str);
        let (number, of) = shard
            .and_then(|shard| shard.split_once('/'))
            .and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)))
            .ok_or_else(|| wrong("no shard: the run was made without --shard i/n"))?;
        let began = summary.get("started_at_ns").and_then(Value::as_i64);
        let began = began.ok_or_else(|| wrong("its summary has no started_at_ns"))?;
        // One that was killed before its first rows reached the disk has not even the header.
        let is_begun =
            |path: &&PathBuf| !is_partial || path.metadata().is_ok_and(|file| file.len() > 0);
        let files: Vec<PathBuf> = files.iter().filter(is_begun).cloned().collect();
        let (table, told) = rows::read(&files, None, &[])?;
        if !told.unknown.is_empty() {
            return Err(wrong(
                "its rows have other columns than this version writes: merge with the version that wrote them",
            ));
        }
        let zero = told.zero.filter(|zero| zero.base == Base::Epoch);
        Ok(Shard {
            dir: dir.to_owned(),
            number,
            of,
            began,
            table,
            zero: zero.map(|zero| zero.nanos),
            broken: told.broken,
            is_partial,
            summary,
        })
    }

    /// What it is called: `shard 0/2`.
    pub fn name(&self) -> String {
        format!("shard {}/{}", self.number, self.of)
    }

    /// A member of its summary.
    pub fn told(&self, name: &str) -> Option<&Value> {
        self.summary.get(name).filter(|value| !value.is_null())
    }

    /// A number of its summary.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.told(name)?.as_f64()
    }

    /// The sum over what all shards together were to send.
    pub fn workload(&self) -> Option<&Value> {
        self.told("config")?
            .get(WORKLOAD)
            .filter(|sum| !sum.is_null())
    }

    /// The settings that all shards of a run share.
    pub fn config(&self) -> Map<String, Value> {
        let config = self.told("config").and_then(Value::as_object);
        let mut config = config.cloned().unwrap_or_default();
        config.retain(|key, _| !OWN.contains(&key.as_str()));
        config
    }
}
