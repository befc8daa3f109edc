//! The Rust API of experiments: what [`super::node::NodeTest`] and [`super::routing::RoutingTest`] share. They run what the commands
//! run, with the same keys.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::Serialize;
use serde_json::Value;

use super::command::{new_folder, run_and_report};
use super::launch::router::in_path;
use super::plan::Plan;
use super::plan::keys::ExperimentKind;
use super::run::Finished;
use super::run::single::RunResult;
use crate::report::files::MaxRate;

/// The configuration of a test, whose fields are keys of a plan.
pub trait TestConfig: Serialize {
    /// What it tests.
    const KIND: ExperimentKind;

    /// Further keys, which override the fields; and the folder for all files, `None` for a new one.
    fn more_keys_and_folder(&self) -> (&toml::Table, Option<&Path>);

    /// Returns all keys as a plan.
    ///
    /// # Errors
    /// TOML cannot represent a value.
    fn keys(&self) -> Result<toml::Table, toml::ser::Error> {
        let mut keys = toml::Table::try_from(self)?;
        keys.extend(self.more_keys_and_folder().0.clone());
        Ok(keys)
    }
}

/// Defines a struct whose fields are keys of a plan, with their defaults.
macro_rules! plan_keys {
    ($(#[$about:meta])* $name:ident { $($(#[$help:meta])* $key:ident: $kind:ty = $default:expr,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        pub struct $name {
            $($(#[$help])* pub $key: $kind,)*
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($key: $default,)* }
            }
        }
    };
}
pub(super) use plan_keys;

/// A test that can be run.
#[derive(Clone, Debug)]
pub struct Test<C> {
    config: C,
}

/// The result of a test.
#[derive(Clone, Debug)]
pub struct TestResult {
    /// The figures of the first run: its `summary.json` (docs/SUMMARY.md).
    pub metrics: Value,
    /// All runs, in order. [`RunResult::metrics`] are the figures of one.
    pub runs: Vec<RunResult>,
    /// The result of a search for the highest rate.
    pub max_rate: Option<MaxRate>,
    /// The folder with all files.
    pub output_dir: PathBuf,
    /// The files in it: rows, figures, logs, `report.html`.
    pub exported_files: Vec<PathBuf>,
    /// The report as text.
    pub report: String,
}

impl<C: TestConfig> Test<C> {
    /// Makes a test of a configuration.
    pub fn new(config: C) -> Test<C> {
        Test { config }
    }

    /// Runs the test: starts what it needs, sends the load, stops everything.
    ///
    /// # Errors
    /// The keys contradict each other, something does not start, the folder cannot be used, or no run has figures.
    pub fn run(&self) -> anyhow::Result<TestResult> {
        let plan = Plan::new(C::KIND, Vec::new(), self.config.keys()?)?;
        let (_, output_dir) = self.config.more_keys_and_folder();
        let to = new_folder(C::KIND, output_dir);
        let (finished, report) = run_and_report(plan, to, program()?, |line| log::info!("{line}"))?;
        result(finished, report?)
    }
}

/// Finds the program `queuescope`: in the folder of the running program, in the one above it, or in PATH.
fn program() -> anyhow::Result<PathBuf> {
    const NAME: &str = "queuescope";
    let own = std::env::current_exe().context("the program's own file")?;
    let folders = own.ancestors().skip(1).take(2);
    let mut programs = folders.map(|folder| folder.join(NAME));
    let near = programs.find(|program| program.is_file());
    near.or_else(|| in_path(NAME)).context(
        "the program queuescope is neither beside this one nor in PATH; `cargo build` makes it",
    )
}

fn result(finished: Finished, report: String) -> anyhow::Result<TestResult> {
    let runs = finished.runs;
    let mut metrics = runs.iter().map(RunResult::metrics);
    let Some(metrics) = metrics.find(|metrics| !metrics.is_null()) else {
        let error = runs.iter().find_map(|run| run.file.error.clone());
        let error = error.unwrap_or_else(|| "stopped before there were figures".to_owned());
        return Err(anyhow!(error));
    };
    let mut exported_files = Vec::new();
    list_files(&finished.dir, &mut exported_files)?;
    exported_files.sort();
    Ok(TestResult {
        metrics,
        runs,
        max_rate: finished.file.max_rate,
        output_dir: finished.dir,
        exported_files,
        report,
    })
}

/// Adds all files in a folder and its subfolders to `all`.
fn list_files(dir: &Path, all: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        match path.is_dir() {
            true => list_files(&path, all)?,
            false => all.push(path),
        }
    }
    Ok(())
}
