//! The folder of a shard.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::disk;
use crate::report::files::{BEGUN, PARTIAL, ROWS, SUMMARY};
use crate::report::reader;
use crate::report::rows::{self, Base, read_columns};
use crate::report::table::Table;

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
    /// Its rows; times count from `zero` since the base of its file.
    pub table: Table,
    /// What the times of its file count from.
    pub base: Option<Base>,
    /// See `table`, nanoseconds.
    pub zero: i64,
    /// Rows that cannot be read.
    pub broken: u64,
    /// Whether it did not come to its end.
    pub is_partial: bool,
}

/// What shards of one run may differ in; what they sent is known only at a run's end.
const OWN: [&str; 3] = ["shard", "start_at", WORKLOAD];
/// The member of `config` that tells what all shards together sent.
pub const WORKLOAD: &str = "workload_sha256";

impl Shard {
    /// Reads what its folder tells beside its rows.
    ///
    /// # Errors
    /// It is no shard's, or a file cannot be read.
    pub fn open(dir: &Path) -> Result<Shard, Error> {
        let no_shard = |what: &str| Error::NoShard {
            dir: dir.to_owned(),
            what: what.to_owned(),
        };
        let mut name = SUMMARY;
        if dir.is_dir() && !dir.join(name).exists() {
            name = BEGUN;
            if !dir.join(name).exists() {
                return Err(no_shard(
                    "no summary.json and no begun.json: nothing was sent (or an older version was killed while it sent). \
                     Leave this folder out; the merged run then says that its shard is missing",
                ));
            }
        }
        let path = dir.join(name);
        let text = disk::read(&path).map_err(|cause| file(&path, cause))?;
        let summary: Value =
            serde_json::from_slice(&text).map_err(|error| no_shard(&format!("{name}: {error}")))?;
        let shard = summary.pointer("/config/shard").and_then(Value::as_str);
        let (number, of) = shard
            .and_then(|shard| shard.split_once('/'))
            .and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)))
            .ok_or_else(|| no_shard("no shard: the run was made without --shard i/n"))?;
        let began = summary.get("started_at_ns").and_then(Value::as_i64);
        let began = began.ok_or_else(|| no_shard(&format!("{name} has no started_at_ns")))?;
        let whole = dir.join(ROWS);
        let is_partial = !whole.is_file();
        let rows = if is_partial { dir.join(PARTIAL) } else { whole };
        let (table, told) = match read_columns(&[rows], None, &[]) {
            // One that was killed before its first rows reached the disk has not even the header.
            Err(rows::Error::Empty(_)) if is_partial => Default::default(),
            read => read.map_err(reader::Error::from)?,
        };
        if !told.unknown.is_empty() {
            return Err(no_shard(
                "its rows have other columns than this version writes: merge with the version that wrote them",
            ));
        }
        Ok(Shard {
            dir: dir.to_owned(),
            number,
            of,
            began,
            table,
            base: told.base,
            zero: told.zero,
            broken: told.broken,
            is_partial,
            summary,
        })
    }

    /// What it is called: `shard 0/2`.
    pub fn name(&self) -> String {
        format!("shard {}/{}", self.number, self.of)
    }

    /// The sum over what all shards together were to send.
    pub fn workload(&self) -> Option<&Value> {
        let sum = self.summary.get("config")?.get(WORKLOAD)?;
        (!sum.is_null()).then_some(sum)
    }

    /// The settings that all shards of a run share.
    pub fn config(&self) -> Map<String, Value> {
        let config = self.summary.get("config").and_then(Value::as_object);
        let mut config = config.cloned().unwrap_or_default();
        config.retain(|key, _| !OWN.contains(&key.as_str()));
        config
    }
}

/// What the system says of a file.
pub fn file(path: &Path, cause: io::Error) -> Error {
    Error::File {
        path: path.to_owned(),
        cause,
    }
}
