//! The folder of an experiment. What tells how far it came is replaced in one step, so that whoever reads it after an end at
//! any moment finds the state before or after.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::disk;
use crate::experiment::plan::Plan;
use crate::experiment::plan::usage::Usage;
use crate::report::files::{ENGINE_LOGS, EXPERIMENT, ExperimentFile, LOGS, RUN, RUNS, RunFile};
use crate::report::outputs;
use crate::report::reader::OF_RUN;

/// The plan, every key with its value.
pub const PLAN: &str = "experiment.toml";
const PAGE: &str = "report.html";
/// What an experiment writes into a folder that may be given.
pub const FILES: [&str; 5] = [EXPERIMENT, PLAN, PAGE, "comparison.json", "summary.csv"];
/// What a run has while it goes on, beside what is read of it.
const UNFINISHED: [&str; 2] = ["requests.csv.unfinished", "requests.spool"];
/// Where the files of runs go that are done again.
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

/// What an experiment wrote into `dir` that is to be replaced: files, and the folders that are empty without them.
///
/// # Errors
/// Somebody else's file is where a file would be removed or written, or what the system answers.
pub fn former(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut former = Former::default();
    let experiment: Option<ExperimentFile> = read_json(&dir.join(EXPERIMENT)).ok();
    let is_there = |path: &Path| path.symlink_metadata().is_ok();
    for name in FILES.map(|name| dir.join(name)) {
        let is_ours = match name.file_name().and_then(OsStr::to_str) {
            Some(EXPERIMENT) => experiment.is_some(),
            Some(PLAN) => disk::read(&name).is_ok_and(|text| text.starts_with(b"experiment = \"")),
            _ => outputs::is_ours(&name).unwrap_or(false),
        };
        former
            .others
            .extend((is_there(&name) && !is_ours).then_some(name));
    }
    let names: Vec<String> = experiment.map_or_else(Vec::new, |experiment| {
        experiment.runs.into_iter().map(|run| run.dir).collect()
    });
    let is_named = |name: &str| names.contains(&format!("{RUNS}/{name}"));
    for (name, path) in entries(&dir.join(RUNS))? {
        match is_named(&name) && is_folder(&path) {
            true => former.folder(path)?,
            false => former.others.push(path),
        }
    }
    for (name, path) in entries(&dir.join(ASIDE))? {
        let before = name.rsplit_once('-').map(|(name, _)| name);
        // Nothing is ever written over what else is there.
        if is_folder(&path) && (is_named(&name) || before.is_some_and(is_named)) {
            former.folder(path)?;
        }
    }
    match former.others.first() {
        None => Ok(former.ours),
        Some(other) => Err(Usage(format!(
            "--output-dir {}: {} is none of an experiment's files, and only those are replaced (by --force): move it, or \
             name another folder",
            dir.display(),
            other.display()
        ))
        .into()),
    }
}

/// Removes what an experiment wrote into `dir`.
///
/// # Errors
/// As [`former`], and then nothing is removed; or what the system answers.
pub fn clear(dir: &Path) -> anyhow::Result<()> {
    for path in &former(dir)? {
        let removed = match path.is_dir() {
            true => std::fs::remove_dir(path),
            false => std::fs::remove_file(path),
        };
        removed.with_context(|| path.display().to_string())?;
    }
    // What is left there is somebody else's.
    let _ = std::fs::remove_dir(dir.join(ASIDE));
    Ok(())
}

/// What is found in the place of an experiment.
#[derive(Debug, Default)]
struct Former {
    ours: Vec<PathBuf>,
    others: Vec<PathBuf>,
}

impl Former {
    /// Takes the folder of a run, or one in it.
    fn folder(&mut self, dir: PathBuf) -> anyhow::Result<()> {
        let (is_logs, is_engine) = (dir.ends_with(LOGS), dir.ends_with(ENGINE_LOGS));
        for (name, path) in entries(&dir)? {
            let is_inner = [LOGS, ENGINE_LOGS].contains(&name.as_str()) && is_folder(&path);
            if is_inner && !is_logs && !is_engine {
                self.folder(path)?;
                continue;
            }
            let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
            let is_ours = match (is_logs, is_engine) {
                (true, _) => is_log(&name),
                (_, true) => is_request_log(&name),
                _ => is_of_run(&name, &path),
            };
            match is_file && is_ours {
                true => self.ours.push(path),
                false => self.others.push(path),
            }
        }
        self.ours.push(dir);
        Ok(())
    }
}

fn is_of_run(name: &str, path: &Path) -> bool {
    OF_RUN.contains(&name)
        || UNFINISHED.contains(&name)
        || name.starts_with("proxy.csv.")
        || disk::is_draft(name)
        || name == PAGE && outputs::is_ours(path).unwrap_or(false)
}

fn is_log(name: &str) -> bool {
    name == "proxy.log" || name == "router.log" || name.starts_with("server-")
}

fn is_request_log(name: &str) -> bool {
    name.starts_with("sglang-request-metrics-") && name.ends_with(".log")
}

/// Not by a link: what that leads to is elsewhere.
fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_dir())
}

/// What is in a folder, by name; nothing where there is none.
fn entries(dir: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let named = |entry: io::Result<std::fs::DirEntry>| {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok((name.into_owned(), path))
    };
    let all = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        found => found.and_then(|all| all.map(named).collect()),
    };
    let mut all: Vec<(String, PathBuf)> = all.with_context(|| dir.display().to_string())?;
    all.sort();
    Ok(all)
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
    let names = (1..=MOST_ASIDE).map(|number| match number {
        1 => aside.join(run),
        number => aside.join(format!("{run}-{number}")),
    });
    let free = names.into_iter().find(|name| !name.exists());
    let free = free.context("too much was put aside already")?;
    std::fs::rename(&old, &free).with_context(|| old.display().to_string())?;
    Ok(Some(free))
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
