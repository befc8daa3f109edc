//! Reads the folders of runs and of experiments.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

#[cfg(test)]
pub(super) mod tests;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::clock::{Stamp, seconds};
use crate::disk;
use crate::terminal::one_line;

use super::files::{
    BEGUN, EXPERIMENT, ExperimentFile, FAULTS, FaultRow, Grade, PACKED_ROWS, PARTIAL, PROXY_ROWS,
    ROWS, RUN, RunFile, SCHEDULE, SERIES, SUMMARY, SeriesRow, ServerFile, Verdict,
};
use super::sanitize::sanitize;
use crate::error::Error;
use crate::request::ColumnId;
use crate::table::Table;
use crate::table::parquet::Source;
use crate::table::rows::{self, ReadStats, SKIPPED_COLUMNS};
use crate::table::window::{Window, arrived_or_due};

/// The runs that were read.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The experiment, if a single folder was given, and it is one's.
    pub experiment: Option<ExperimentFile>,
    /// The runs, in order.
    pub runs: Vec<Run>,
}

/// A run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Its folder; that of the file, if it is only a file of rows.
    pub dir: PathBuf,
    /// Its name, which is unique in a report.
    pub name: String,
    /// Its files of rows, oldest first; none if they cannot be read.
    pub files: Vec<PathBuf>,
    /// Its `run.json`.
    pub file: Option<RunFile>,
    /// Its rows, without impossible values. Times are since the beginning of the run.
    pub table: Table,
    /// Its `summary.json`; its `begun.json` if it was killed; null if it has neither.
    pub summary: Value,
    /// When time 0 of the table was, if known.
    pub zero: Option<Stamp>,
    /// Measurements over time.
    pub series: Vec<SeriesRow>,
    /// Faults that were injected into its servers.
    pub faults: Vec<FaultRow>,
    /// Whether it was cut short: its rows are those of the requests that had ended by then.
    pub is_partial: bool,
    /// The most requests that each of its servers runs at once, if the caller says so; it stands before what its files say.
    pub given_slots: Option<u32>,
    /// Tokens that the KV cache of each holds, likewise.
    pub given_pool: Option<u64>,
    /// Whether others may have run of which nothing is known: nothing is concluded from what its requests leave free.
    pub is_excerpt: bool,
    /// Notes for the reader of its figures.
    pub notes: Vec<String>,
    /// Of a prediction: the expected errors of its figures, as shares.
    pub prediction_errors: BTreeMap<&'static str, f64>,
}

/// The files of runs and experiments, other than reports.
const RUN_FILES: [&str; 13] = [
    ROWS,
    PACKED_ROWS,
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

/// Reads folders of runs and of experiments, and files of rows, in the given order.
///
/// # Errors
/// One cannot be read, or is none of these.
pub fn load(given: &[PathBuf]) -> Result<Loaded, Error> {
    let (experiment, found) = find_runs(given)?;
    let is_of_experiment = experiment.is_some();
    let mut runs = Vec::new();
    for run in found {
        // A folder without rows still has a description of its run; a file without rows has nothing.
        let file = run.files.iter().find(|file| given.contains(file)).cloned();
        let run = run.read(is_of_experiment)?;
        if let Some(file) = file.filter(|_| run.table.is_empty()) {
            let what =
                "nothing to report on: it must hold a row a request below the names of its columns";
            let mut message = vec![what.to_owned()];
            message.extend(run.notes);
            return Err(Error::read(&file, message.join("; ")));
        }
        runs.push(run);
    }
    let experiment = experiment.filter(|_| given.len() == 1);
    Ok(Loaded { experiment, runs })
}

/// The files of rows of the given runs, not read.
///
/// # Errors
/// As [`load`].
pub fn sources(given: &[PathBuf]) -> Result<Vec<Source>, Error> {
    let (_, found) = find_runs(given)?;
    let found = found.into_iter().filter(|run| !run.files.is_empty());
    let source = |run: Run| Source {
        began: run.began(),
        name: run.name,
        files: run.files,
    };
    Ok(found.map(source).collect())
}

/// The files that the given runs are read from, which must not be overwritten. Paths that cannot be read have none.
pub fn inputs(given: &[PathBuf]) -> Vec<PathBuf> {
    let mut all = given.to_vec();
    for path in given {
        let found = find_runs(std::slice::from_ref(path));
        let runs = found.map_or_else(|_| Vec::new(), |(_, runs)| runs);
        // The folder of a file of rows does not belong to its run.
        let folders = runs.iter().filter(|run| !run.files.contains(path));
        let folders = folders.map(|run| &run.dir).chain([path]);
        all.extend(folders.flat_map(|dir| RUN_FILES.map(|name| dir.join(name))));
        all.extend(runs.into_iter().flat_map(|run| run.files));
    }
    all
}

/// The given runs, without their rows, and the last given experiment.
fn find_runs(given: &[PathBuf]) -> Result<(Option<ExperimentFile>, Vec<Run>), Error> {
    let (mut last, mut runs) = (None, Vec::new());
    for path in &rows::without_duplicates(given) {
        let file = path.join(EXPERIMENT);
        let experiment = json::<ExperimentFile>(&file)?;
        let Some(experiment) = experiment.map_err(|cause| Error::read(&file, cause))? else {
            runs.push(run_of(path)?);
            continue;
        };
        for known in &experiment.runs {
            // A run that was not begun, or failed before its first request, has nothing to read.
            runs.extend(read_run(&path.join(&known.dir), Some(&known.label))?);
        }
        last = Some(experiment);
    }
    Ok((last, each_once(runs)))
}

/// Reads a run's folder, or a file of rows, without the rows.
///
/// # Errors
/// It cannot be read, or is neither.
pub fn run_of(path: &Path) -> Result<Run, Error> {
    std::fs::metadata(path).map_err(|cause| Error::read(path, cause))?;
    let none = || {
        let message = format!(
            "no folder of a run: it has no requests.csv, {EXPERIMENT} or {RUN} (a file of rows, or the folder of a run in it, can be given by itself)"
        );
        Error::read(path, message)
    };
    read_run(path, None)?.ok_or_else(none)
}

/// The same; `None` if there is nothing of a run.
fn read_run(path: &Path, label: Option<&str>) -> Result<Option<Run>, Error> {
    let error = |cause| Error::read(path, cause);
    let Some(given) = if_there(path, std::fs::metadata(path))? else {
        return Ok(None);
    };
    disk::regular(&given).map_err(error)?;
    if !given.is_dir() {
        let dir = path.parent().unwrap_or(Path::new(""));
        // Of an experiment's run, the proxy's rows count from its beginning, too.
        let began = || json::<RunFile>(&dir.join(RUN)).ok()?.ok()??.began;
        let began = path.ends_with(PROXY_ROWS).then(began).flatten();
        return Ok(Some(Run {
            dir: dir.to_owned(),
            name: name_of(path),
            zero: began.and_then(Stamp::from_seconds),
            files: rows::with_rotated(path).map_err(error)?,
            ..Run::default()
        }));
    }
    let mut notes = Vec::new();
    let file: Option<RunFile> = json_of_run(path, RUN, &mut notes)?;
    let summary: Option<Map<String, Value>> = match json_of_run(path, SUMMARY, &mut notes)? {
        None => json_of_run(path, BEGUN, &mut notes)?,
        summary => summary,
    };
    let summary = summary.map_or(Value::Null, Value::Object);
    let is_file = |name: &&str| path.join(name).is_file();
    let rows = [ROWS, PACKED_ROWS, PARTIAL].into_iter().find(is_file);
    let is_summarized = is_file(&SUMMARY);
    if rows.is_none() && !is_file(&RUN) {
        return Ok(None);
    }
    let of_file = file.as_ref();
    notes.extend(of_file.into_iter().flat_map(|file| file.notes.clone()));
    let label = label.or(of_file.map(|file| file.label.as_str()));
    let label = label.filter(|label| !label.is_empty());
    let is_partial = rows.map_or(!is_summarized, |rows| rows == PARTIAL);
    // Joined rows of proxies have no verdict.
    let is_judged = !is_partial && (file.is_some() || is_file(&SCHEDULE));
    let missing = match rows {
        None if is_summarized => Some((ROWS, "there are no figures of it")),
        Some(_) if is_judged && summary.is_null() => Some((
            SUMMARY,
            "there is no verdict on it, and figures are of the whole run, whatever window it had",
        )),
        Some(_) if is_judged && !is_summarized => Some((SUMMARY, "there is no verdict on it")),
        _ => None,
    };
    notes.extend(missing.map(|(file, what)| format!("{file} is missing: {what}")));
    Ok(Some(Run {
        dir: path.to_owned(),
        name: label.map_or_else(|| name_of(path), |label| one_line(label).into_owned()),
        is_partial,
        files: rows.map(|name| path.join(name)).into_iter().collect(),
        series: csv_rows(path, SERIES, &mut notes)?,
        faults: csv_rows(path, FAULTS, &mut notes)?,
        notes,
        file,
        summary,
        ..Run::default()
    }))
}

impl Run {
    /// The folder of the runs of its experiment, if it is of one.
    pub fn experiment(&self) -> Option<PathBuf> {
        self.file.as_ref()?;
        rows::canonical(&self.dir).parent().map(Path::to_owned)
    }

    /// A member of its summary, by its JSON pointer: `/config/turns`. `None` if it is missing or null.
    pub fn summary_value(&self, pointer: &str) -> Option<&Value> {
        let value = self.summary.pointer(pointer);
        value.filter(|value| !value.is_null())
    }

    /// A member of its summary, deserialized.
    pub fn summary_as<T: DeserializeOwned>(&self, pointer: &str) -> Option<T> {
        serde_json::from_value(self.summary_value(pointer)?.clone()).ok()
    }

    /// The window of time that its figures are of, if its summary has one.
    pub fn window(&self) -> Option<Window> {
        self.summary_as("/window")
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

    /// A note on why it failed, if it did.
    pub fn failure_note(&self) -> Option<String> {
        let error = self.file.as_ref()?.error.as_ref()?;
        Some(format!("failed: {}", one_line(error)))
    }

    /// Its name, followed by its mark.
    pub fn marked_name(&self) -> String {
        let mark = self.mark().map(|mark| format!(" {mark}"));
        self.name.clone() + &mark.unwrap_or_default()
    }

    /// The generator's verdict, if its summary has one.
    pub fn verdict(&self) -> Option<Verdict> {
        self.summary_as("/verdict")
    }

    /// The number of requests that were to be sent.
    pub fn scheduled(&self) -> Option<u64> {
        self.summary_as("/scheduled")
    }

    /// The warnings of its summary.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        let warnings = self.summary_value("/warnings").and_then(Value::as_array);
        warnings.into_iter().flatten().filter_map(Value::as_str)
    }

    /// The hash of what was sent, if known.
    pub fn workload_sha256(&self) -> Option<&str> {
        let file = self.file.as_ref();
        let of_file = file.and_then(|file| file.workload_sha256.as_deref());
        of_file.or_else(|| self.summary_value("/config/workload_sha256")?.as_str())
    }

    /// Its servers, if it is a run of an experiment.
    pub fn servers(&self) -> &[ServerFile] {
        self.file.as_ref().map_or(&[], |file| &file.servers)
    }

    /// The name of a server in series and faults; its host if it has none.
    pub fn server<'h>(&'h self, host: &'h str) -> &'h str {
        let server = self.servers().iter().find(|server| server.host == host);
        server.map_or(host, |server| &server.name)
    }

    /// How long it lasted, seconds, if its summary says so; the duration of a window is not the run's.
    pub fn duration(&self) -> Option<f64> {
        let is_whole = self.window().is_none_or(|window| window.is_whole_run());
        self.summary_as("/duration").filter(|_| is_whole)
    }

    /// The first rows of the requests that count in the figures: those of the window, and of an unknown time.
    pub fn counted(&self) -> impl Iterator<Item = usize> {
        let window = self.window().filter(|window| !window.is_whole_run());
        self.table.first_rows().filter(move |row| {
            let both = window.as_ref().zip(self.table.arrival_or_due(*row));
            both.is_none_or(|(window, at)| window.contains(seconds(at)))
        })
    }

    /// When it began, by its summary or `run.json`: to the nanosecond, as the generator counted, where that is known. Rows of a proxy
    /// have neither: what [`Run::zero`] says.
    pub fn began(&self) -> Option<Stamp> {
        let exact = self.summary_as::<Stamp>("/started_at_ns");
        let of_file = self.file.as_ref().and_then(|file| file.began);
        let seconds = of_file.or_else(|| self.summary_as("/started_at"));
        exact
            .or(seconds.and_then(Stamp::from_seconds))
            .or(self.zero)
    }

    /// Whether nothing was counted, as its rows are missing or cannot be read.
    pub fn lacks_rows(&self) -> bool {
        self.files.is_empty() && self.table.is_empty()
    }

    /// Reads its rows. With `is_lenient` an error becomes a note, and there are no rows.
    fn read(mut self, is_lenient: bool) -> Result<Run, Error> {
        self.zero = self.began();
        match rows::read(&self.files, self.zero, SKIPPED_COLUMNS) {
            Ok((table, read)) => {
                self.table = sanitize(table);
                self.zero = read.zero;
                self.add_notes(&read);
                if !read.cut.is_empty() {
                    self.is_partial = true;
                    // Those of all its rows. What is wrong with the run stays.
                    let is_invalid = self.mark() == Some("INVALID");
                    let is_gone = |name: &str| match name {
                        "duration" | "window" => true,
                        "verdict" => !is_invalid,
                        _ => false,
                    };
                    if let Some(summary) = self.summary.as_object_mut() {
                        summary.retain(|name, _| !is_gone(name));
                    }
                }
                self.choose_window();
            }
            Err(error) if is_lenient => {
                self.is_partial = true;
                self.files.clear();
                self.notes.push(error.to_string());
            }
            Err(error) => return Err(error),
        }
        Ok(self)
    }

    /// Chooses the window that its settings ask for, if it was killed before its summary had one.
    fn choose_window(&mut self) {
        let edge = |name| self.summary_as::<String>(name)?.parse::<f64>().ok();
        let edges = ["/config/leave_out_first", "/config/leave_out_last"];
        let [first, last] = edges.map(|name| edge(name).unwrap_or(0.0));
        if self.window().is_none() && first + last > 0.0 {
            let ended = (0..self.table.len()).filter_map(|row| self.table.ended(row));
            let run_s = seconds(ended.max().unwrap_or(0));
            let window = Window::choose(&arrived_or_due(&self.table), run_s, first, last);
            self.notes.extend(window.warning());
            self.summary["window"] = json!(window);
        }
    }

    /// Adds notes on what its rows lack.
    fn add_notes(&mut self, read: &ReadStats) {
        if self.is_partial {
            let of = self.scheduled();
            let of = of.map_or(String::new(), |all| format!(" of {all}"));
            let requests = self.table.first_rows().count();
            self.notes.push(format!(
                "unfinished: {requests}{of} requests had ended when the run was cut short, or by now if it goes on; \
                 those under way then are missing, the slowest among them"
            ));
        }
        self.notes.extend(read.left_out());
        // The attempts of a request have one id at a hop.
        let text = |column, row| self.table.text(column, row);
        let requests = self.table.first_rows();
        let requests = requests.filter(|row| text(ColumnId::seen_by, *row) != "hop");
        let ids = requests.map(|row| text(ColumnId::req_id, row));
        let mut seen = HashSet::new();
        let ids = ids.filter(|id| !id.is_empty());
        let again = ids.filter(|id| !seen.insert(*id)).count();
        if again > 0 {
            self.notes.push(format!(
                "requests with the id of one before them, all of which count: {again}"
            ));
        }
        if !read.unknown_columns.is_empty() {
            self.notes.push(format!(
                "columns that this version does not know are left out: {}",
                read.unknown_columns.join(", ")
            ));
        }
    }
}

fn name_of(path: &Path) -> String {
    let absolute = rows::canonical(&Path::new(".").join(path));
    absolute.file_name().map_or_else(
        || path.display().to_string(),
        |name| one_line(&name.to_string_lossy()).into_owned(),
    )
}

/// Leaves out runs whose rows one before them has, found by another path, and makes the names of the others unique.
pub fn each_once(all: Vec<Run>) -> Vec<Run> {
    let (mut places, mut runs) = (HashMap::new(), Vec::<Run>::new());
    for run in all {
        let source = rows::canonical(run.files.last().unwrap_or(&run.dir));
        let place = *places.entry(source).or_insert(runs.len());
        match runs.get_mut(place) {
            // The folder of a file of rows knows more of the run.
            Some(known) if known.file.is_none() && known.summary.is_null() => *known = run,
            Some(_) => {}
            None => runs.push(run),
        }
    }
    make_names_unique(&mut runs);
    runs
}

/// Adds to equal names the numbers of repeats, or the folders if not all are runs of one experiment.
fn make_names_unique(runs: &mut [Run]) {
    let mut by_name = BTreeMap::<String, Vec<&mut Run>>::new();
    for run in runs {
        by_name.entry(run.name.clone()).or_default().push(run);
    }
    for mut alike in by_name.into_values().filter(|alike| alike.len() > 1) {
        let places: HashSet<_> = alike.iter().map(|run| run.experiment()).collect();
        let are_repeats = places.len() == 1 && !places.contains(&None);
        for (number, run) in (1..).zip(&mut alike) {
            run.name += &match are_repeats {
                true => format!(" #{number}"),
                false => format!(" ({})", one_line(&run.dir.to_string_lossy())),
            };
        }
    }
}

/// Reads a JSON file; `None` if there is none.
fn json<T: DeserializeOwned>(path: &Path) -> Result<serde_json::Result<Option<T>>, Error> {
    let text = if_there(path, disk::read(path))?;
    Ok(text.map(|text| serde_json::from_slice(&text)).transpose())
}

/// The same of a run. One that is no JSON, as it was cut, counts as missing, with a note.
fn json_of_run<T: DeserializeOwned>(
    dir: &Path,
    name: &str,
    notes: &mut Vec<String>,
) -> Result<Option<T>, Error> {
    let read = json(&dir.join(name))?.map_err(|cause| {
        notes.push(format!("{name} cannot be read and is left out: {cause}"));
    });
    Ok(read.unwrap_or_default())
}

/// What was found at a path; `None` if there is nothing.
fn if_there<T>(path: &Path, found: io::Result<T>) -> Result<Option<T>, Error> {
    match found {
        Err(cause) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&cause.kind()) => {
            Ok(None)
        }
        found => found.map(Some).map_err(|cause| Error::read(path, cause)),
    }
}

/// Reads the rows of a small CSV file, none if it does not exist. Broken rows are left out, with a note: the last may be cut, if the run
/// was killed.
fn csv_rows<T: DeserializeOwned>(
    dir: &Path,
    name: &str,
    notes: &mut Vec<String>,
) -> Result<Vec<T>, Error> {
    let path = &dir.join(name);
    let Some(file) = if_there(path, disk::open(path))? else {
        return Ok(Vec::new());
    };
    let rows = csv::Reader::from_reader(file).into_deserialize();
    let (read, broken): (Vec<_>, Vec<_>) = rows.partition(Result::is_ok);
    let (all, broken) = (read.len() + broken.len(), broken.len());
    if broken > 0 {
        notes.push(format!(
            "{broken} of {all} rows of {name} cannot be read and are left out"
        ));
    }
    Ok(read.into_iter().flatten().collect())
}
