//! The folder of an experiment. What tells how far it came is replaced in one step, so that whoever reads it after an end at
//! any moment finds the state before or after.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::disk;
use crate::experiment::plan::Plan;
use crate::experiment::plan::error::PlanError;
use crate::report::files::{EXPERIMENT, ExperimentFile, RUN, RUNS, RunFile};

/// The plan, every key with its value.
pub const PLAN: &str = "experiment.toml";
/// What an experiment writes into a folder that may be given.
pub const FILES: [&str; 6] = [
    EXPERIMENT,
    PLAN,
    RUNS,
    "report.html",
    "comparison.json",
    "summary.csv",
];
/// Where the files of runs go that are done again, and of experiments that are replaced.
const ASIDE: &str = "aside";
/// What is locked while a process works on the folder.
pub const LOCK: &str = ".lock";
/// Files of one run that are kept aside at most.
const MOST_ASIDE: u32 = 10_000;

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

/// What is known of a run; `None` where it was never begun.
pub fn run_file(dir: &Path, run: &str) -> Option<RunFile> {
    read_json(&of_run(dir, run).join(RUN)).ok()
}

/// What is in `dir` in the place of an experiment that is to be replaced.
///
/// # Errors
/// It is none.
pub fn former(dir: &Path) -> anyhow::Result<Vec<&'static str>> {
    let is_there = |name: &&str| dir.join(name).symlink_metadata().is_ok();
    let there: Vec<&str> = FILES.into_iter().filter(is_there).collect();
    let experiment: anyhow::Result<ExperimentFile> = read_json(&dir.join(EXPERIMENT));
    // One that ended before it had written more left its plan.
    let is_plan_alone = there == [PLAN] && dir.join(PLAN).is_file();
    match there.first() {
        Some(name) if experiment.is_err() && !is_plan_alone => Err(PlanError(format!(
            "--output-dir {}: {name} is not from an experiment, so --force does not replace it: move it, or name \
             another folder",
            dir.display()
        ))
        .into()),
        _ => Ok(there),
    }
}

/// Puts an experiment aside that is to be replaced; gives where.
///
/// # Errors
/// As [`former`], and then nothing is moved; or what the system answers.
pub fn replace(dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    let there = former(dir)?;
    if there.is_empty() {
        return Ok(None);
    }
    let aside = free(dir, "experiment")?;
    std::fs::create_dir(&aside).with_context(|| aside.display().to_string())?;
    // By its file an experiment is known: that goes last.
    for name in there.into_iter().rev() {
        let (from, to) = (dir.join(name), aside.join(name));
        std::fs::rename(&from, to).with_context(|| from.display().to_string())?;
    }
    Ok(Some(aside))
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
    let free = free(dir, run)?;
    std::fs::rename(&old, &free).with_context(|| old.display().to_string())?;
    Ok(Some(free))
}

/// A name that nothing has among what was put aside.
fn free(dir: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let aside = dir.join(ASIDE);
    std::fs::create_dir_all(&aside).with_context(|| aside.display().to_string())?;
    let mut names = (1..=MOST_ASIDE).map(|number| match number {
        1 => aside.join(name),
        number => aside.join(format!("{name}-{number}")),
    });
    let free = names.find(|name| !name.exists());
    free.context("too much was put aside already")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::files::RunState;

    #[test]
    fn a_file_is_the_old_or_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(RUN);
        let mut run = RunFile {
            label: "a".into(),
            ..RunFile::default()
        };
        write_json(&path, &run).unwrap();
        run.state = RunState::Done;
        write_json(&path, &run).unwrap();
        assert_eq!(read_json::<RunFile>(&path).unwrap(), run);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_plan_alone_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(PLAN), "rate = 1").unwrap();
        let aside = replace(folder.path()).unwrap().unwrap();
        assert_eq!(
            std::fs::read_to_string(aside.join(PLAN)).unwrap(),
            "rate = 1"
        );
        std::fs::write(folder.path().join(RUNS), "another's").unwrap();
        let error = replace(folder.path()).unwrap_err().to_string();
        assert!(error.contains("runs is not from an experiment"), "{error}");
    }

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
