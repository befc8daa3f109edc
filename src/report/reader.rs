//! Folders of runs and of experiments, read: what `queuescope report` is told of.

use std::path::{Path, PathBuf};

mod rotated;
#[cfg(test)]
mod tests;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::disk;
use crate::terminal::one_line;

use super::files::{
    BEGUN, EXPERIMENT, ExperimentFile, FAULTS, FaultRow, PARTIAL, ROWS, RUN, RunFile, SCHEDULE,
    SERIES, SUMMARY, SeriesRow,
};
use super::parquet::Source;
use super::rows::{self, Broken, Told};
use super::series;
use super::table::Table;
use super::verdict::Verdict;
use super::window::Window;

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
    /// Its files of rows, the oldest first.
    pub files: Vec<PathBuf>,
    /// Its `run.json`.
    pub file: Option<RunFile>,
    /// Its rows. Times count from the beginning of the run.
    pub table: Table,
    /// Its `summary.json`; of a run that was killed its `begun.json`.
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
}

/// What programs write into folders of runs and of experiments beside reports.
pub const OF_RUN: [&str; 12] = [
    ROWS,
    PARTIAL,
    SUMMARY,
    BEGUN,
    SCHEDULE,
    RUN,
    SERIES,
    FAULTS,
    EXPERIMENT,
    "experiment.toml",
    "proxy.csv",
    "proxy.toml",
];
/// The run in a demo's folder.
const DEMO: &str = "traffic";
/// Reads folders of runs and experiments, and files of rows, in the order given.
///
/// # Errors
/// One cannot be read, or is none of these.
pub fn load(given: &[PathBuf]) -> Result<Loaded, Error> {
    let (mut experiment, found) = find(given)?;
    let is_of_experiment = experiment.is_some();
    let mut runs = Vec::new();
    for run in found {
        runs.push(run.read(is_of_experiment)?);
    }
    if given.len() > 1 {
        experiment = None;
    }
    Ok(Loaded { experiment, runs })
}

/// The files of rows of what is given, none of which is read.
///
/// # Errors
/// As [`load`].
pub fn sources(given: &[PathBuf]) -> Result<Vec<Source>, Error> {
    let (_, found) = find(given)?;
    let source = |run: Run| Source {
        began: run.began(),
        name: run.name,
        files: run.files,
    };
    Ok(found
        .into_iter()
        .map(source)
        .filter(|source| !source.files.is_empty())
        .collect())
}

/// Whether a folder is an experiment's.
pub fn is_experiment(dir: &Path) -> bool {
    dir.join(EXPERIMENT).is_file()
}

/// The files that tell of what is given: nothing is to be written onto one of them. What cannot be read has none.
pub fn inputs(given: &[PathBuf]) -> Vec<PathBuf> {
    let mut all = given.to_vec();
    for path in given {
        let found = find(std::slice::from_ref(path));
        let runs = found.map_or_else(|_| Vec::new(), |(_, runs)| runs);
        // Beside a file of rows alone, nothing is of its run.
        let folders = runs.iter().filter(|run| !run.files.contains(path));
        let folders = folders.map(|run| &run.dir).chain([path]);
        all.extend(folders.flat_map(|dir| OF_RUN.map(|name| dir.join(name))));
        all.extend(runs.into_iter().flat_map(|run| run.files));
    }
    all
}

/// The runs of what is given, without their rows; the experiment that was given, or the last of them.
fn find(given: &[PathBuf]) -> Result<(Option<ExperimentFile>, Vec<Run>), Error> {
    let (mut last, mut runs) = (None, Vec::new());
    for path in given {
        let experiment: Option<ExperimentFile> = json(&path.join(EXPERIMENT))?;
        match experiment {
            Some(experiment) => {
                runs.extend(runs_of(path, &experiment)?);
                last = Some(experiment);
            }
            None => runs.push(found(path, None)?),
        }
    }
    tell_apart(&mut runs);
    Ok((last, runs))
}

/// The runs of an experiment that have any rows, in its order.
fn runs_of(dir: &Path, experiment: &ExperimentFile) -> Result<Vec<Run>, Error> {
    let mut runs = Vec::new();
    for known in &experiment.runs {
        let folder = dir.join(&known.dir);
        match found(&folder, Some(&known.label)) {
            Ok(run) => runs.push(run),
            // Not begun, or failed before its first request.
            Err(Error::NoRun(_)) => {}
            Err(Error::File { cause, .. }) if cause.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(runs)
}

/// A run's folder, or a file of rows: all but the rows.
fn found(path: &Path, label: Option<&str>) -> Result<Run, Error> {
    let error = |cause| Error::File {
        path: path.to_owned(),
        cause,
    };
    let given = std::fs::metadata(path).map_err(error)?;
    disk::regular(&given).map_err(error)?;
    if !given.is_dir() {
        return Ok(Run {
            dir: path.parent().unwrap_or(Path::new("")).to_owned(),
            name: name_of(path),
            files: rotated::with_older(path).map_err(error)?,
            ..Run::default()
        });
    }
    let file: Option<RunFile> = json(&path.join(RUN))?;
    // Of a run that was killed: what it knew when it began.
    let summary: Option<Value> = match json(&path.join(SUMMARY))? {
        None => json(&path.join(BEGUN))?,
        summary => summary,
    };
    let whole = path.join(ROWS);
    let partial = path.join(PARTIAL);
    let (files, is_partial) = if whole.is_file() {
        (vec![whole], false)
    } else if partial.is_file() {
        (vec![partial], true)
    } else if file.is_some() {
        (Vec::new(), true)
    } else if path.join(DEMO).is_dir() {
        return found(&path.join(DEMO), None);
    } else {
        return Err(Error::NoRun(path.to_owned()));
    };
    let mut notes = file
        .as_ref()
        .map_or_else(Vec::new, |file| file.notes.clone());
    let label = label.or(file.as_ref().map(|file| file.label.as_str()));
    let label = label.filter(|label| !label.is_empty());
    Ok(Run {
        dir: path.to_owned(),
        name: label.map_or_else(|| name_of(path), |label| one_line(label).into_owned()),
        files,
        scheduled: scheduled(path, summary.as_ref()),
        series: csv_rows(path, SERIES, &mut notes)?,
        faults: csv_rows(path, FAULTS, &mut notes)?,
        notes,
        file,
        summary,
        is_partial,
        ..Run::default()
    })
}

impl Run {
    /// The part of it that its figures are of, where its summary tells.
    pub fn window(&self) -> Option<Window> {
        Window::of(self.summary.as_ref()?)
    }

    /// How its generator judged it, where its summary tells.
    pub fn verdict(&self) -> Option<Verdict> {
        Verdict::of(self.summary.as_ref()?)
    }

    /// Whether the figures are of a row: it tells of a request that arrived in that part, or nobody knows when.
    pub fn is_counted(&self) -> impl Fn(usize) -> bool + '_ {
        let window = self.window().filter(|window| !window.is_all());
        let arrived = |row| {
            let mut columns = ["sent_time", "arrival_time", "scheduled_time"].into_iter();
            columns.find_map(|column| self.table.number(column, row))
        };
        move |row| {
            let at = window
                .as_ref()
                .and_then(|window| Some((window, arrived(row)?)));
            at.is_none_or(|(window, at)| window.holds(at))
        }
    }

    /// When it began, Unix seconds, as its files tell.
    fn began(&self) -> Option<f64> {
        let began = self.file.as_ref().and_then(|file| file.began);
        began.or_else(|| self.summary.as_ref()?.get("started_at")?.as_f64())
    }

    /// Reads its rows. `go_on`: one whose rows cannot be read has none, and a note of why.
    fn read(mut self, go_on: bool) -> Result<Run, Error> {
        if self.files.is_empty() {
            self.take(Table::default(), &Told::default());
            return Ok(self);
        }
        match rows::read(&self.files, self.began()) {
            Ok((table, told)) => {
                self.take(table, &told);
                self.count_series();
            }
            Err(error) if go_on => {
                self.is_partial = true;
                self.notes.push(error.to_string());
            }
            Err(error) => return Err(error.into()),
        }
        if let Some(older @ 1..) = self.files.len().checked_sub(1) {
            let note = format!("with the rows of {older} files that were rotated away");
            self.notes.push(note);
        }
        Ok(self)
    }

    /// Puts what is counted from its rows among what servers told over time: of an experiment's run, whose servers are known.
    fn count_series(&mut self) {
        if let Some(file) = &self.file
            && !self.series.iter().any(|row| row.source == series::RECORDS)
        {
            let counted = series::of_records(&self.table, &file.servers);
            self.series.extend(counted.rows);
            self.series.sort_by(|a, b| a.time.total_cmp(&b.time));
            self.notes.extend(counted.notes);
        }
    }

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
            let requests = table.firsts().count();
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
        |name| one_line(&name.to_string_lossy()).into_owned(),
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
        let rows = disk::read(&dir.join(SCHEDULE)).ok()?;
        let lines = memchr::memchr_iter(b'\n', &rows).count() as u64;
        lines.checked_sub(1)
    })
}

/// A file of JSON; `None` where there is none.
fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    let text = match disk::read(path) {
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
    serde_json::from_slice(&text).map(Some).map_err(wrong)
}

/// The rows of a small file, as far as they can be read: a run that was killed may have cut the last; how many cannot is
/// noted. None where there is no such file.
fn csv_rows<T: DeserializeOwned>(
    dir: &Path,
    name: &str,
    notes: &mut Vec<String>,
) -> Result<Vec<T>, Error> {
    let path = &dir.join(name);
    let rows = match disk::open(path) {
        Ok(file) => csv::Reader::from_reader(file),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => {
            return Err(Error::File {
                path: path.to_owned(),
                cause,
            });
        }
    };
    let (mut read, mut broken) = (Vec::new(), 0);
    for row in rows.into_deserialize() {
        match row {
            Ok(row) => read.push(row),
            Err(_) => broken += 1,
        }
    }
    if broken > 0 {
        let all = read.len() + broken;
        notes.push(format!(
            "{broken} of {all} rows of {name} cannot be read and are left out"
        ));
    }
    Ok(read)
}
