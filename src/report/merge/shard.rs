//! The folder of a shard.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::report::reader::{Run, run_of};
use crate::request::csv::Base;
use crate::table::{Error, rows};

/// A shard of a schedule.
#[derive(Debug)]
pub struct Shard {
    /// Its run, with all columns of its rows.
    pub run: Run,
    /// Its number, from 0.
    pub number: u64,
    /// The number of shards.
    pub count: u64,
    /// When it began, nanoseconds since the epoch.
    pub began: i64,
    /// If the times of its file are since the epoch: time 0 of its table, nanoseconds since the epoch.
    pub zero: Option<i64>,
    /// Rows that cannot be read.
    pub broken: u64,
}

/// The settings in which shards of one run may differ.
const MAY_DIFFER: [&str; 2] = ["shard", "start_at"];
/// The member of `config` with the hash of what all shards together sent.
pub const WORKLOAD: &str = "workload_sha256";

impl Shard {
    /// Reads the folder of a shard.
    ///
    /// # Errors
    /// It is no folder of a shard, or a file cannot be read.
    pub fn open(dir: &Path) -> Result<Shard, Error> {
        let error = |message: &str| Error::read(dir, message);
        if !dir.is_dir() && dir.exists() {
            return Err(error("is a file; --merge takes the folders of the shards"));
        }
        let mut run = run_of(dir)?;
        if run.summary.is_null() {
            return Err(error(
                "no summary.json and no begun.json: nothing was sent (or an older version was killed while it sent). Leave this folder \
                 out; the merged run then says that its shard is missing",
            ));
        }
        let shard = run.summary_value("/config/shard").and_then(Value::as_str);
        let (number, count) = shard
            .and_then(|shard| shard.split_once('/'))
            .and_then(|(number, count)| Some((number.parse().ok()?, count.parse().ok()?)))
            .ok_or_else(|| error("no shard: the run was made without --shard i/n"))?;
        let began = run.summary_as("/started_at_ns");
        let began = began.ok_or_else(|| error("its summary has no started_at_ns"))?;
        // A shard that was killed before its first rows were written has an empty file, without the header.
        let is_empty = |path: &PathBuf| path.metadata().is_ok_and(|file| file.len() == 0);
        let is_partial = run.is_partial;
        run.files.retain(|path| !is_partial || !is_empty(path));
        let (table, read) = rows::read(&run.files, None, &[])?;
        if !read.unknown_columns.is_empty() {
            return Err(error(
                "its rows have other columns than this version writes: merge with the version that wrote them",
            ));
        }
        run.table = table;
        let zero = read.origin.filter(|zero| zero.base == Base::Epoch);
        Ok(Shard {
            run,
            number,
            count,
            began,
            zero: zero.map(|zero| zero.nanos),
            broken: read.broken,
        })
    }

    /// Its label: `shard 0/2`.
    pub fn name(&self) -> String {
        format!("shard {}/{}", self.number, self.count)
    }

    /// The settings that all shards of a run share.
    pub fn config(&self) -> Map<String, Value> {
        let config = self.run.summary_value("/config").and_then(Value::as_object);
        let mut config = config.cloned().unwrap_or_default();
        config.retain(|key, _| !MAY_DIFFER.contains(&key.as_str()));
        config
    }
}
