//! Folders of runs and of experiments, read: what `queuescope report` is told of.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::clock::seconds;
use crate::disk;
use crate::terminal::one_line;

use super::believed::believed;
use super::files::{
    BEGUN, EXPERIMENT, ExperimentFile, FAULTS, FaultRow, PARTIAL, PROXY_ROWS, ROWS, RUN, RunFile,
    SCHEDULE, SERIES, SUMMARY, SeriesRow, ServerFile,
};
use super::verdict::{Grade, Verdict};
use crate::request::columns::ColumnId;
use crate::request::csv::Base;
use crate::table::parquet::Source;
use crate::table::rotated;
use crate::table::rows::{self, Told, UNSAID};
use crate::table::window::Window;
use crate::table::{Error, Table};

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
    /// Its rows as they are believed. Times count from the beginning of the run.
    pub table: Table,
    /// Its `summary.json`; of a run that was killed its `begun.json`; null where it has neither.
    pub summary: Value,
    /// What these count from, Unix seconds, where their files say it.
    pub epoch: Option<f64>,
    /// What was measured over time.
    pub series: Vec<SeriesRow>,
    /// What was done to its servers.
    pub faults: Vec<FaultRow>,
    /// Whether it did not come to its end: rows are those of the requests that had ended.
    pub is_partial: bool,
    /// What the reader of its figures must know.
    pub notes: Vec<String>,
    /// Of a prediction: by which share of it a figure may be off.
    pub off: BTreeMap<&'static str, f64>,
}

/// What programs write into folders of runs and of experiments beside reports.
const OF_RUN: [&str; 12] = [
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
    PROXY_ROWS,
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
        let run = run.read(is_of_experiment)?;
        // A folder tells more of its run than rows do.
        let mut files = run.files.iter().filter(|_| run.table.is_empty());
        if let Some(file) = files.find(|file| given.contains(file)) {
            let why = run.notes.join("; ");
            let what = format!(
                "nothing to report on: {why}; must hold a row a request below the names of its columns"
            );
            return Err(Error::read(file, what));
        }
        runs.push(run);
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
    let found = found.into_iter().filter(|run| !run.files.is_empty());
    let source = |run: Run| Source {
        began: run.began(),
        name: run.name,
        files: run.files,
    };
    Ok(found.map(source).collect())
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
    for path in &rotated::once(given) {
        let experiment: Option<ExperimentFile> = json(&path.join(EXPERIMENT))?;
        let Some(experiment) = experiment else {
            runs.push(run_of(path)?);
            continue;
        };
        for known in &experiment.runs {
            // One that was not begun, or failed before its first request, has none.
            runs.extend(found(&path.join(&known.dir), Some(&known.label))?);
        }
        last = Some(experiment);
    }
    tell_apart(&mut runs);
    Ok((last, runs))
}

/// A run's folder, or a file of rows: all but the rows.
///
/// # Errors
/// It cannot be read, or is neither.
pub fn run_of(path: &Path) -> Result<Run, Error> {
    std::fs::metadata(path).map_err(|cause| Error::read(path, cause))?;
    let none = || {
        let what = format!(
            "no folder of a run: it has no requests.csv, {EXPERIMENT} or {RUN} (a file of rows can be given by itself)"
        );
        Error::read(path, what)
    };
    found(path, None)?.ok_or_else(none)
}

/// The same; `None` where there is nothing of a run.
fn found(path: &Path, label: Option<&str>) -> Result<Option<Run>, Error> {
    let error = |cause| Error::read(path, cause);
    let given = match std::fs::metadata(path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        given => given.map_err(error)?,
    };
    disk::regular(&given).map_err(error)?;
    if !given.is_dir() {
        return Ok(Some(Run {
            dir: path.parent().unwrap_or(Path::new("")).to_owned(),
            name: name_of(path),
            files: rotated::with_older(path).map_err(error)?,
            ..Run::default()
        }));
    }
    let file: Option<RunFile> = json(&path.join(RUN))?;
    // Of a run that was killed: what it knew when it began.
    let summary: Value = match json(&path.join(SUMMARY))? {
        None => json(&path.join(BEGUN))?.unwrap_or_default(),
        Some(summary) => summary,
    };
    let mut rows = [ROWS, PARTIAL].into_iter().map(|name| path.join(name));
    let files: Vec<PathBuf> = rows.find(|path| path.is_file()).into_iter().collect();
    if files.is_empty() && file.is_none() {
        let demo = path.join(DEMO);
        return if demo.is_dir() {
            found(&demo, None)
        } else {
            Ok(None)
        };
    }
    let of_file = file.as_ref();
    let mut notes = of_file.map_or_else(Vec::new, |file| file.notes.clone());
    let label = label.or(of_file.map(|file| file.label.as_str()));
    let label = label.filter(|label| !label.is_empty());
    Ok(Some(Run {
        dir: path.to_owned(),
        name: label.map_or_else(|| name_of(path), |label| one_line(label).into_owned()),
        is_partial: !files.iter().any(|path| path.ends_with(ROWS)),
        files,
        series: csv_rows(path, SERIES, &mut notes)?,
        faults: csv_rows(path, FAULTS, &mut notes)?,
        notes,
        file,
        summary,
        ..Run::default()
    }))
}

impl Run {
    /// A member of its summary, or of a member of it, by its pointer: `/config/turns`.
    pub fn told(&self, pointer: &str) -> Option<&Value> {
        let told = self.summary.pointer(pointer);
        told.filter(|value| !value.is_null())
    }

    /// The same as what it is.
    pub fn read_of<T: DeserializeOwned>(&self, pointer: &str) -> Option<T> {
        serde_json::from_value(self.told(pointer)?.clone()).ok()
    }

    /// The part of it that its figures are of, where its summary tells.
    pub fn window(&self) -> Option<Window> {
        self.read_of("/window")
    }

    /// `INVALID` or `DEGRADED`, by the generator's verdict; `UNFINISHED` if the run was cut short and has no verdict. `None`: its
    /// figures can be believed.
    pub fn mark(&self) -> Option<&'static str> {
        match self.verdict().map(|verdict| verdict.grade) {
            Some(Grade::Valid) => None,
            Some(grade) => Some(grade.name()),
            None => self.is_partial.then_some("UNFINISHED"),
        }
    }

    /// Its name, followed by its mark.
    pub fn marked_name(&self) -> String {
        let name = &self.name;
        self.mark()
            .map_or_else(|| name.clone(), |mark| format!("{name} {mark}"))
    }

    /// The generator's verdict, if its summary has one.
    pub fn verdict(&self) -> Option<Verdict> {
        self.read_of("/verdict")
    }

    /// How many requests were to be sent.
    pub fn scheduled(&self) -> Option<u64> {
        self.read_of("/scheduled")
    }

    /// What it warns of itself.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        let told = self.told("/warnings").and_then(Value::as_array);
        told.into_iter().flatten().filter_map(Value::as_str)
    }

    /// The hash of what it was sent, where one was taken.
    pub fn workload_sha256(&self) -> Option<&str> {
        let of_file = self
            .file
            .as_ref()
            .and_then(|file| file.workload_sha256.as_deref());
        of_file.or_else(|| self.told("/config/workload_sha256")?.as_str())
    }

    /// Its servers, where an experiment made it.
    pub fn servers(&self) -> &[ServerFile] {
        self.file.as_ref().map_or(&[], |file| &file.servers)
    }

    /// A server's name, as series and faults call it; its host where it has none.
    pub fn server<'h>(&'h self, host: &'h str) -> &'h str {
        let server = self.servers().iter().find(|server| server.host == host);
        server.map_or(host, |server| &server.name)
    }

    /// Whether the figures are of a row: it tells of a request that arrived in that part, or nobody knows when.
    pub fn is_counted(&self) -> impl Fn(usize) -> bool + '_ {
        let window = self.window().filter(|window| !window.is_all());
        move |row| {
            let at = self.table.begun(row);
            let at = at.or_else(|| self.table.whole(ColumnId::scheduled_time, row));
            let both = window.as_ref().zip(at);
            both.is_none_or(|(window, at)| window.holds(seconds(at)))
        }
    }

    /// The first rows of the requests that the figures are of.
    pub fn counted(&self) -> impl Iterator<Item = usize> {
        let is_counted = self.is_counted();
        self.table.firsts().filter(move |row| is_counted(*row))
    }

    /// When it began, Unix seconds, as its files tell.
    fn began(&self) -> Option<f64> {
        let began = self.file.as_ref().and_then(|file| file.began);
        began.or_else(|| self.read_of("/started_at"))
    }

    /// What its times count from, Unix seconds, where that is known.
    pub fn zero(&self) -> Option<f64> {
        self.epoch.or_else(|| self.began())
    }

    /// From when to when its requests were there, Unix seconds.
    pub fn span(&self) -> Option<(f64, f64)> {
        let zero = self.zero()?;
        let all = |column| self.table.numbers(column).into_iter();
        let first = all(ColumnId::arrival_time).reduce(f64::min)?;
        let last = all(ColumnId::finish_time).fold(first, f64::max);
        Some((zero + first, zero + last))
    }

    /// Takes in the rows of another, as its own.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn take(&mut self, other: Run) -> Result<(), Error> {
        let (table, _) = rows::read(&other.files, self.epoch, &UNSAID)?;
        self.table.append(believed(table));
        self.name = format!("{} + {}", self.name, other.name);
        self.files.extend(other.files);
        self.notes.extend(other.notes);
        Ok(())
    }

    /// Reads its rows. `go_on`: one whose rows cannot be read has none, and a note of why.
    fn read(mut self, go_on: bool) -> Result<Run, Error> {
        match rows::read(&self.files, self.began(), &UNSAID) {
            Ok((table, told)) => {
                self.table = believed(table);
                let is_epoch = told.zero.is_some_and(|zero| zero.base == Base::Epoch);
                self.epoch = told.began.filter(|_| is_epoch);
                self.note(&told);
            }
            Err(error) if go_on => {
                self.is_partial = true;
                self.notes.push(error.to_string());
            }
            Err(error) => return Err(error),
        }
        if let Some(older @ 1..) = self.files.len().checked_sub(1) {
            let note = format!("with the rows of {older} files that were rotated away");
            self.notes.push(note);
        }
        Ok(self)
    }

    /// Says what is wrong with its rows.
    fn note(&mut self, told: &Told) {
        if self.is_partial {
            let of = self.scheduled();
            let of = of.map_or(String::new(), |all| format!(" of {all}"));
            let requests = self.table.firsts().count();
            self.notes.push(format!(
                "unfinished: {requests}{of} requests had ended when the run was cut short; figures are of those, and \
                 those under way then are missing, the slowest among them"
            ));
        }
        self.notes.extend(told.left_out());
        if told.rows + told.broken == 0 && !self.is_partial {
            self.notes
                .push("no row: not one request was recorded".to_owned());
        }
        if !told.unknown.is_empty() {
            self.notes.push(format!(
                "columns that this version does not know are left out: {}",
                told.unknown.join(", ")
            ));
        }
    }
}

fn name_of(path: &Path) -> String {
    let path = if path == Path::new("") {
        Path::new(".")
    } else {
        path
    };
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    absolute.file_name().map_or_else(
        || path.display().to_string(),
        |name| one_line(&name.to_string_lossy()).into_owned(),
    )
}

/// Runs that have one name get as much of their folders' paths as tells them apart, and a number where those are the same.
fn tell_apart(runs: &mut [Run]) {
    let place = |run: &Run| {
        let dir = run.dir.canonicalize().unwrap_or_else(|_| run.dir.clone());
        (run.name.clone(), dir)
    };
    let places: Vec<(String, PathBuf)> = runs.iter().map(place).collect();
    let mut known: HashMap<String, u32> = HashMap::new();
    for (run, (name, dir)) in runs.iter_mut().zip(&places) {
        let alike = places.iter().filter(|of| of.0 == *name && of.1 != *dir);
        let alike: Vec<&Path> = alike.map(|of| of.1.as_path()).collect();
        let is_own = |end: &&Path| !alike.iter().any(|other| other.ends_with(end));
        let parts: Vec<_> = dir.components().collect();
        let ends = (0..parts.len())
            .rev()
            .map(|from| parts[from..].iter().collect::<PathBuf>());
        if let Some(end) = ends
            .filter(|_| !alike.is_empty())
            .find(|end| is_own(&end.as_path()))
        {
            run.name = format!("{name} ({})", one_line(&end.to_string_lossy()));
        }
        let number = known.entry(run.name.clone()).or_default();
        *number += 1;
        if *number > 1 {
            run.name = format!("{} ({number})", run.name);
        }
    }
}

/// A file of JSON; `None` where there is none.
fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    match disk::read(path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|cause| Error::read(path, cause)),
        Err(cause) if is_nothing(&cause) => Ok(None),
        Err(cause) => Err(Error::read(path, cause)),
    }
}

/// Whether there is no such file.
fn is_nothing(cause: &std::io::Error) -> bool {
    matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
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
        Ok(file) => csv::Reader::from_reader(file).into_deserialize(),
        Err(cause) if is_nothing(&cause) => return Ok(Vec::new()),
        Err(cause) => return Err(Error::read(path, cause)),
    };
    let (read, broken): (Vec<_>, Vec<_>) = rows.partition(Result::is_ok);
    if !broken.is_empty() {
        let all = read.len() + broken.len();
        notes.push(format!(
            "{} of {all} rows of {name} cannot be read and are left out",
            broken.len()
        ));
    }
    Ok(read.into_iter().flatten().collect())
}
