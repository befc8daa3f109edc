//! Experiments from Rust: what [`super::node::NodeTest`] and [`super::routing::RoutingTest`] share. They do what the commands
//! do, with the same keys.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::Serialize;
use serde_json::Value;

use super::command::{done, new_folder};
use super::launch::router::in_path;
use super::plan::Plan;
use super::plan::keys::Kind;
use super::run::Finished;
use super::run::one::RunEnd;
use crate::report::files::MaxRate;

/// What a test is of: members are keys of a plan.
pub trait Keys: Serialize {
    /// What it is about.
    const KIND: Kind;

    /// Further keys, which win over its members; and the folder that gets all files, if not a new one.
    fn beside(&self) -> (&toml::Table, Option<&Path>);

    /// The keys of a plan.
    ///
    /// # Errors
    /// A value that TOML does not have.
    fn keys(&self) -> Result<toml::Table, toml::ser::Error> {
        let mut keys = toml::Table::try_from(self)?;
        keys.extend(self.beside().0.clone());
        Ok(keys)
    }
}

/// Makes members of a plan with their defaults, a line each.
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

/// A test to be run.
#[derive(Clone, Debug)]
pub struct Test<C> {
    config: C,
}

/// What came out of a test.
#[derive(Clone, Debug)]
pub struct TestResult {
    /// The figures of the first run: its `summary.json` (docs/SUMMARY.md).
    pub metrics: Value,
    /// All runs, in order. [`RunEnd::metrics`] are the figures of one.
    pub runs: Vec<RunEnd>,
    /// What a search of the highest rate found.
    pub max_rate: Option<MaxRate>,
    /// The folder of all files.
    pub output_dir: PathBuf,
    /// The files in it: rows, figures, logs, `report.html`.
    pub exported_files: Vec<PathBuf>,
    /// The report, as the terminal shows it.
    pub report: String,
}

impl<C: Keys> Test<C> {
    /// One of these keys, over the defaults.
    pub fn new(config: C) -> Test<C> {
        Test { config }
    }

    /// Runs it: starts what it needs, loads it, ends it.
    ///
    /// # Errors
    /// Values that do not go together; what does not start; a folder that cannot be used; not one run came to figures.
    pub fn run(&self) -> anyhow::Result<TestResult> {
        let plan = Plan::new(C::KIND, Vec::new(), self.config.keys()?)?;
        let (_, output_dir) = self.config.beside();
        let to = new_folder(C::KIND, output_dir);
        let (finished, reported) = done(plan, to, program()?, |line| log::info!("{line}"))?;
        result(finished, reported?)
    }
}

/// The program `queuescope`: beside the user's, in the folder above it, or in PATH.
fn program() -> anyhow::Result<PathBuf> {
    const NAME: &str = "queuescope";
    let own = std::env::current_exe().context("the program's own file")?;
    let near = own.ancestors().skip(1).take(2);
    let near = near
        .map(|folder| folder.join(NAME))
        .find(|program| program.is_file());
    near.or_else(|| in_path(NAME)).context(
        "the program queuescope is neither beside this one nor in PATH; `cargo build` makes it",
    )
}

fn result(finished: Finished, report: String) -> anyhow::Result<TestResult> {
    let runs = finished.runs;
    let mut metrics = runs.iter().map(RunEnd::metrics);
    let Some(metrics) = metrics.find(|metrics| !metrics.is_null()) else {
        let why = runs.iter().find_map(|run| run.file.error.clone());
        return Err(anyhow!(
            why.unwrap_or_else(|| "stopped before there were figures".to_owned())
        ));
    };
    let mut exported_files = Vec::new();
    files(&finished.dir, &mut exported_files)?;
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

/// All files in a folder and below it.
fn files(dir: &Path, all: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        match path.is_dir() {
            true => files(&path, all)?,
            false => all.push(path),
        }
    }
    Ok(())
}
