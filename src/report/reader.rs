//! Folders of runs and of experiments, read: what `queuescope report` is told of.

use std::path::{Path, PathBuf};

mod rotated;
#[cfg(test)]
mod tests;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::files::{EXPERIMENT, ExperimentFile, FAULTS, FaultRow, RUN, RunFile, SERIES, SeriesRow};
use super::rows::{self, Broken, Told};
use super::table::Table;

/// All that was read.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// What the runs are to each other, of one experiment's folder.
    pub experiment: Option<ExperimentFile>,
    /// The runs, in order.
    pub runs: Vec<Run>,
}

/// A run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Its folder; of a file of rows alone, the file's.
    pub dir: PathBuf,
    /// What tells it from the others.
    pub name: String,
    /// Its `run.json`.
    pub file: Option<RunFile>,
    /// Its rows. Times count from the beginning of the run.
    pub table: Table,
    /// Its `summary.json`.
    pub summary: Option<Value>,
    /// What was measured over time.
    pub series: Vec<SeriesRow>,
    /// What was done to its servers.
    pub faults: Vec<FaultRow>,
    /// Whether it did not come to its end: rows are those of the requests that had ended.
    pub is_partial: bool,
    /// How many requests were to be sent, where that is known.
    pub scheduled: Option<u64>,
    /// What the reader of its figures must know.
    pub notes: Vec<String>,
}

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of rows.
    #[error(transparent)]
    Rows(#[from] rows::Error),
    /// A folder without anything of a run's.
    #[error(
        "{}: no folder of a run: it has no requests.csv, {EXPERIMENT} or {RUN} (a file of rows can be given by itself)",
        .0.display()
    )]
    NoRun(PathBuf),
    /// What the system says.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// A file that is not what its name says.
    #[error("{}: {cause}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: serde_json::Error,
    },
    /// A file of a later version.
    #[error(
        "{}: format {found}, and this version of queuescope reads up to {most}: use the version that wrote it, or a later one",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The highest that can be read.
        most: u64,
    },
}

/// The rows of a run that came to its end, and of one that did not.
const WHOLE: &str = "requests.csv";
const PARTIAL: &str = "requests.partial.csv";
const SUMMARY: &str = "summary.json";
const SCHEDULE: &str = "schedule.csv";
/// The highest `format` of `run.json` and `experiment.json` that is read.
const FORMAT: u64 = 0;

/// Reads folders of runs and experiments, and files of rows, in the order given.
///
/// # Errors
/// One cannot be read, or is none of these.
pub fn load(given: &[PathBuf]) -> Result<Loaded, Error> {
    let mut loaded = Loaded::default();
    for path in given {
        let experiment: Option<ExperimentFile> = json(&path.join(EXPERIMENT))?;
        match experiment {
            Some(experiment) => {
                loaded.runs.extend(runs_of(path, &experiment)?);
                if given.len() == 1 {
                    loaded.experiment = Some(experiment);
                }
            }
            None => loaded.runs.push(run(path, None)?),
        }
    }
    tell_apart(&mut loaded.runs);
    Ok(loaded)
}

/// The runs of an experiment that have any rows, in its order.
fn runs_of(dir: &Path, experiment: &ExperimentFile) -> Result<Vec<Run>, Error> {
    let mut runs = Vec::new();
    for known in &experiment.runs {
        let folder = dir.join(&known.dir);
        match run(&folder, Some(&known.label)) {
            Ok(run) => runs.push(run),
            // Not begun, or failed before its first request.
            Err(Error::NoRun(_)) => {}
            Err(Error::File { cause, .. }) if cause.kind() == std::io::ErrorKind::NotFound => {}
            // One run's file must not take the others' report away.
            Err(Error::Rows(error)) => runs.push(Run {
                dir: folder,
                name: known.label.clone(),
                is_partial: true,
                notes: vec![error.to_string()],
                ..Run::default()
            }),
            Err(error) => return Err(error),
        }
    }
    Ok(runs)
}

/// A run's folder, or a file of rows.
fn run(path: &Path, label: Option<&str>) -> Result<Run, Error> {
    let found = std::fs::metadata(path).map_err(|cause| Error::File {
        path: path.to_owned(),
        cause,
    })?;
    if !found.is_dir() {
        let files = rotated::with_older(path).map_err(|cause| Error::File {
            path: path.to_owned(),
            cause,
        })?;
        let (table, told) = rows::read(&files, None)?;
        let mut run = Run {
            dir: path.parent().unwrap_or(Path::new("")).to_owned(),
            name: name_of(path),
            ..Run::default()
        };
        run.take(table, &told);
        if let Some(older @ 1..) = files.len().checked_sub(1) {
            run.notes.push(format!(
                "with the rows of {older} files that were rotated away"
            ));
        }
        return Ok(run);
    }
    let file: Option<RunFile> = json(&path.join(RUN))?;
    let summary: Option<Value> = json(&path.join(SUMMARY))?;
    let told = |name: &str| {
        summary
            .as_ref()
            .and_then(|summary| summary.get(name)?.as_f64())
    };
    let began = file.as_ref().and_then(|file| file.began);
    let began = began.or_else(|| told("started_at"));
    let whole = path.join(WHOLE);
    let partial = path.join(PARTIAL);
    let ((table, told), is_partial) = if whole.is_file() {
        (rows::read(&[whole], began)?, false)
    } else if partial.is_file() {
        (rows::read(&[partial], began)?, true)
    } else if file.is_some() {
        (Default::default(), true)
    } else {
        return Err(Error::NoRun(path.to_owned()));
    };
    let label = label.or(file.as_ref().map(|file| file.label.as_str()));
    let mut run = Run {
        dir: path.to_owned(),
        name: label
            .filter(|label| !label.is_empty())
            .map_or_else(|| name_of(path), str::to_owned),
        scheduled: scheduled(path, summary.as_ref()),
        series: csv_rows(&path.join(SERIES))?,
        faults: csv_rows(&path.join(FAULTS))?,
        file,
        summary,
        is_partial,
        ..Run::default()
    };
    run.take(table, &told);
    Ok(run)
}

impl Run {
    /// Takes its rows, and tells what is wrong with them.
    fn take(&mut self, table: Table, told: &Told) {
        let Told {
            broken,
            examples,
            unknown,
            ..
        } = told;
        let read = table.len();
        if self.is_partial {
            let of = self
                .scheduled
                .map_or(String::new(), |all| format!(" of {all}"));
            let requests = (0..read).filter(|row| table.is_first(*row)).count();
            self.notes.push(format!(
                "unfinished: {requests}{of} requests had ended when the run was cut short; figures are of those, and \
                 those under way then are missing, the slowest among them"
            ));
        }
        if *broken > 0 {
            let words = examples.iter().map(Broken::words).collect::<Vec<_>>();
            let more = if *broken > words.len() as u64 {
                ", …"
            } else {
                ""
            };
            self.notes.push(format!(
                "{broken} of {} rows cannot be read and are left out: {}{more}",
                read as u64 + broken,
                words.join("; ")
            ));
        }
        if read == 0 && *broken == 0 && !self.is_partial {
            self.notes
                .push("no row: not one request was recorded".to_owned());
        }
        if !unknown.is_empty() {
            self.notes.push(format!(
                "columns that this version does not know are left out: {}",
                unknown.join(", ")
            ));
        }
        self.table = table;
    }
}

impl Broken {
    fn words(&self) -> String {
        let file = self.file.file_name().unwrap_or_default();
        format!("{} line {}: {}", file.display(), self.line, self.what)
    }
}

fn name_of(path: &Path) -> String {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    absolute.file_name().map_or_else(
        || path.display().to_string(),
        |name| name.display().to_string(),
    )
}

/// Runs that have one name get their folders' as well, and a number where those are the same too.
fn tell_apart(runs: &mut [Run]) {
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    let count =
        |names: &[String], name: &String| names.iter().filter(|known| *known == name).count();
    for run in runs.iter_mut().filter(|run| count(&names, &run.name) > 1) {
        let folder = name_of(&run.dir);
        if folder != run.name {
            run.name = format!("{} ({folder})", run.name);
        }
    }
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for (at, run) in runs.iter_mut().enumerate() {
        let before = names.get(..at).unwrap_or_default();
        match count(before, &run.name) {
            0 => {}
            more => run.name = format!("{} ({})", run.name, more + 1),
        }
    }
}

/// How many requests a run was to send.
fn scheduled(dir: &Path, summary: Option<&Value>) -> Option<u64> {
    let told = summary.and_then(|summary| summary.get("scheduled")?.as_u64());
    told.or_else(|| {
        let rows = std::fs::read(dir.join(SCHEDULE)).ok()?;
        let lines = memchr::memchr_iter(b'\n', &rows).count() as u64;
        lines.checked_sub(1)
    })
}

/// A file of JSON; `None` where there is none.
fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotADirectory => return Ok(None),
        Err(cause) => {
            return Err(Error::File {
                path: path.to_owned(),
                cause,
            });
        }
    };
    let wrong = |cause| Error::Json {
        path: path.to_owned(),
        cause,
    };
    let value: Value = serde_json::from_slice(&text).map_err(wrong)?;
    match value.get("format").and_then(Value::as_u64) {
        Some(found) if found > FORMAT => Err(Error::Format {
            path: path.to_owned(),
            found,
            most: FORMAT,
        }),
        _ => serde_json::from_value(value).map(Some).map_err(wrong),
    }
}

/// The rows of a small file, as far as they can be read: a run that was killed may have cut the last. None where there is
/// no such file.
fn csv_rows<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, Error> {
    let rows = match csv::Reader::from_path(path) {
        Ok(rows) => rows,
        Err(cause) => {
            return match cause.into_kind() {
                csv::ErrorKind::Io(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                    Ok(Vec::new())
                }
                csv::ErrorKind::Io(cause) => Err(Error::File {
                    path: path.to_owned(),
                    cause,
                }),
                _ => Ok(Vec::new()),
            };
        }
    };
    Ok(rows.into_deserialize().filter_map(Result::ok).collect())
}
