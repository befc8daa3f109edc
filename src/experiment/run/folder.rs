//! The folder of an experiment. What tells how far it came is replaced in one step, so that whoever reads it after an end at
//! any moment finds the state before or after.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::disk;
use crate::experiment::plan::Plan;
use crate::report::files::{PROXY_ROWS, ROWS, RUNS};

/// The plan, every key with its value.
pub const PLAN: &str = "experiment.toml";
/// What an experiment writes into a folder that may be given; and rows, of a run or a demo.
pub const FILES: [&str; 7] = [
    PLAN,
    RUNS,
    "report.html",
    "comparison.json",
    "summary.csv",
    ROWS,
    PROXY_ROWS,
];
/// Where the files of runs go that are done again.
const ASIDE: &str = "aside";
/// What is locked while a process works on the folder.
pub const LOCK: &str = ".lock";

/// Writes the plan; where it holds a secret, for its owner alone.
///
/// # Errors
/// What the system answers.
pub fn write_plan(dir: &Path, plan: &Plan) -> anyhow::Result<()> {
    let path = dir.join(PLAN);
    disk::write(&path, plan.to_toml().as_bytes(), plan.holds_secret())
        .with_context(|| path.display().to_string())
}

/// Replaces a file of JSON.
///
/// # Errors
/// As [`write`].
pub fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("JSON")?;
    disk::replace(path, (text + "\n").as_bytes()).with_context(|| path.display().to_string())
}

/// Reads a file of JSON.
///
/// # Errors
/// It is not there, or not what was expected.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = disk::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// The folder of a run.
pub fn of_run(dir: &Path, run: &str) -> PathBuf {
    dir.join(RUNS).join(run)
}

/// Puts what a run left aside; gives where.
///
/// # Errors
/// What the system answers.
pub fn put_aside(dir: &Path, run: &str) -> anyhow::Result<Option<PathBuf>> {
    let old = of_run(dir, run);
    if !old.exists() {
        return Ok(None);
    }
    let aside = dir.join(ASIDE);
    std::fs::create_dir_all(&aside).with_context(|| aside.display().to_string())?;
    let mut names = (1_u64..).map(|number| aside.join(format!("{run}-{number}")));
    let free = names.find(|name| !name.exists());
    let free = free.context("no name is free")?;
    std::fs::rename(&old, &free).with_context(|| old.display().to_string())?;
    Ok(Some(free))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_aside_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(put_aside(folder.path(), "01-run").unwrap(), None);
        let mut seen = Vec::new();
        for text in ["first", "second"] {
            let dir = of_run(folder.path(), "01-run");
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("x"), text).unwrap();
            seen.push(put_aside(folder.path(), "01-run").unwrap().unwrap());
            assert!(!dir.exists());
        }
        assert_eq!(std::fs::read_to_string(seen[0].join("x")).unwrap(), "first");
        assert_eq!(
            std::fs::read_to_string(seen[1].join("x")).unwrap(),
            "second"
        );
    }
}
