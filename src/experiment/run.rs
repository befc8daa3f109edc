//! Runs an experiment: one run after another, each with its own servers, in one folder whose files show the progress at any time.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::clock::{Clock, Stamp};
use crate::disk;
use crate::error::Error;
use crate::report::files::{
    EXPERIMENT, ExperimentFile, MaxRate, PACKED_ROWS, PROXY_ROWS, ROWS, RUN, RUNS, RunFile, RunRef,
    RunState, SCHEDULE, SUMMARY, Trial, TrialFile,
};
use crate::report::load::rate;
use crate::traffic::Stop;
use crate::traffic::folder::Folder;
use crate::units::count;

pub mod search;
pub mod single;

use super::plan::{Plan, Run, grid};
use search::Search;
use single::RunResult;

/// The folder of an experiment.
#[derive(Clone, Debug)]
pub enum OutputDir {
    /// A folder to be made.
    New(Folder),
    /// The folder of an experiment that was begun; its completed runs stay.
    Resumed(PathBuf),
}

/// An experiment that ended or was stopped.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Its folder.
    pub dir: PathBuf,
    /// Its `experiment.json`.
    pub file: ExperimentFile,
    /// Its runs so far, in order, including those of before it was resumed.
    pub runs: Vec<RunResult>,
    /// The signal that stopped it.
    pub signal: Option<u8>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// An experiment in progress.
struct ExperimentRunner {
    plan: Plan,
    /// The program of queuescope itself.
    program: PathBuf,
    clock: Clock,
    /// Stops the experiment.
    stop: Stop,
    /// Gets lines for the user.
    on_progress: fn(&str),
    finished: Finished,
    /// Held until the end, so that no other process uses the folder.
    _lock: File,
}

/// The request rate at which a search begins if the plan gives none.
const FIRST_RATE: f64 = 10.0;

/// Runs a plan to its end or until a signal stops it. `program` is queuescope's own; `on_progress` gets lines for the user.
///
/// # Errors
/// The folder must not be used, or files cannot be written. The failure of a run is in its [`RunResult`].
pub async fn run(
    plan: Plan,
    output: OutputDir,
    program: PathBuf,
    on_progress: fn(&str),
    clock: Clock,
) -> anyhow::Result<Finished> {
    let stop = Stop::default();
    let _listening = stop.on_signals()?;
    let resumed = match &output {
        OutputDir::New(folder) => folder.check(&FILES).map(|()| None)?,
        OutputDir::Resumed(dir) => Some(dir),
    };
    let before = |run: &Run| completed(resumed?, run);
    let pending = plan.runs.iter().filter(|run| before(run).is_none());
    tokio::select! {
        checked = single::preflight(pending, &program) => checked?,
        () = stop.stopped() => {}
    }
    let now = clock.now();
    let (finished, lock) = begin(&plan, output, now)?;
    let mut runner = ExperimentRunner {
        plan,
        program,
        clock,
        stop: stop.clone(),
        on_progress,
        finished,
        _lock: lock,
    };
    let is_whole = match runner.plan.is_search() {
        true => runner.search().await?,
        false => runner.run_all().await?,
    };
    runner.write()?;
    if !is_whole {
        // The generator may have received the signal before us.
        stop.stopped().await;
        runner.finished.signal = Some(stop.signal());
    }
    Ok(runner.finished)
}

/// Reads the result of a run of the experiment in `dir`, if it is completed: it is done, and its rows and summary are there.
fn completed(dir: &Path, run: &Run) -> Option<RunResult> {
    let dir = run_dir(dir, &run.dir);
    let file: RunFile = read_json(&dir.join(RUN))?;
    let _: Map<String, Value> = read_json(&dir.join(SUMMARY))?;
    let has_rows = [ROWS, PACKED_ROWS]
        .iter()
        .any(|rows| dir.join(rows).is_file());
    (file.state == RunState::Done && has_rows).then_some(RunResult { dir, file })
}

/// Makes or takes up the folder of an experiment, and locks it.
fn begin(plan: &Plan, output: OutputDir, now: Stamp) -> anyhow::Result<(Finished, File)> {
    let dir = match &output {
        OutputDir::New(folder) => folder.create(&[], now)?,
        OutputDir::Resumed(dir) => dir.clone(),
    };
    let lock = lock(&dir)?;
    if let OutputDir::New(folder) = output {
        // Another experiment may have written here between the first check and the lock.
        folder.check(&FILES)?;
        // If it contains a secret, only its owner can read it.
        let (path, text) = (dir.join(PLAN), plan.to_toml());
        let holds_secret = plan.to_text() != text;
        disk::write(&path, text.as_bytes(), holds_secret)
            .with_context(|| path.display().to_string())?;
    }
    let began = |file: ExperimentFile| file.began;
    let file = ExperimentFile {
        kind: plan.kind.name().to_owned(),
        began: read_json(&dir.join(EXPERIMENT)).map_or(now.seconds(), began),
        keys: plan.sweeps().into_iter().map(|(key, _)| key).collect(),
        ..ExperimentFile::default()
    };
    let finished = Finished {
        dir,
        file,
        ..Finished::default()
    };
    Ok((finished, lock))
}

impl ExperimentRunner {
    /// Writes `experiment.json` with the state of each run.
    fn write(&mut self) -> anyhow::Result<()> {
        let Finished { dir, file, .. } = &mut self.finished;
        for run in &mut file.runs {
            let file = read_json(&dir.join(&run.dir).join(RUN));
            run.state = file.map_or(RunState::Planned, |file: RunFile| file.state);
        }
        write_json(&dir.join(EXPERIMENT), file)
    }

    /// Adds a run to the list in `experiment.json`.
    fn list(&mut self, run: &Run) {
        self.finished.file.runs.push(RunRef {
            dir: format!("{RUNS}/{}", run.dir),
            label: run.label.clone(),
            settings: grid::json(&run.varied),
            repeat: run.repeat,
            state: RunState::Planned,
        });
    }

    /// Returns whether it came to its end: a signal that comes when the last run is done stops nothing.
    async fn run_all(&mut self) -> anyhow::Result<bool> {
        let runs = self.plan.runs.to_vec();
        runs.iter().for_each(|run| self.list(run));
        for (index, run) in runs.iter().enumerate() {
            if self.stop.is_stopped() {
                return Ok(false);
            }
            // A start of SGLang may take ten minutes.
            let results = &self.finished.runs;
            if index == 2 && results.iter().all(|run| run.file.start_s.is_none()) {
                let left = count(runs.len() - index, "run");
                let note = format!("not tried: {left}, as none of the first 2 could be started");
                self.notify(&format!("  {note}"));
                self.finished.notes.push(note);
                break;
            }
            let (number, all) = (index + 1, runs.len());
            if all > 1 {
                self.notify(&format!("run {number} of {all}: {}", run.label));
            }
            if self.run_one(run).await?.file.state == RunState::Stopped {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs a run, unless it is completed already.
    async fn run_one(&mut self, run: &Run) -> anyhow::Result<RunResult> {
        let dir = &self.finished.dir;
        let result = if let Some(result) = completed(dir, run) {
            self.notify("  done before");
            result
        } else {
            if let Some(aside) = put_aside(dir, &run.dir)? {
                let aside = aside.display();
                self.notify(&format!("  was not done: what it left is in {aside}"));
            }
            let mut result = RunResult::begin(dir, run)?;
            self.write()?;
            self.run(&run.settings, &mut result).await?;
            result
        };
        self.write()?;
        let file = &result.file;
        let is_told = file.state == RunState::Stopped || file.has_failed_too_often;
        if let Some(error) = file.error.as_ref().filter(|_| !is_told) {
            self.notify(&format!("  failed: {error}"));
        }
        for note in &result.file.notes {
            self.notify(&format!("  note: {note}"));
        }
        self.finished.runs.push(result.clone());
        Ok(result)
    }

    /// Searches for the highest rate that meets the objective. Returns whether it came to its end.
    async fn search(&mut self) -> anyhow::Result<bool> {
        let settings = self.plan.runs[0].settings.clone();
        let (keys, rate) = (&settings.keys, settings.load.request_rate);
        let first = if rate.is_finite() { rate } else { FIRST_RATE };
        let found = MaxRate {
            goodput: settings.goodput(),
            share: keys.goodput_share,
            ..MaxRate::default()
        };
        let mut search = Search::new(first, keys.rate_precision, found);
        self.finished.file.keys = vec!["request_rate".to_owned()];
        while let Some(rate) = search.next() {
            if self.stop.is_stopped() {
                return Ok(false);
            }
            let number = self.finished.runs.len() + 1;
            let requests = search::requests(rate, keys.probe_s.as_secs_f64(), keys.goodput_share);
            let run = self.plan.trial(number, rate, requests)?;
            self.notify(&format!("trial {number}: {rate} requests a second"));
            self.list(&run);
            let result = self.run_one(&run).await?;
            if result.file.state == RunState::Stopped {
                return Ok(false);
            }
            let evaluated = match result.file.state {
                RunState::Done => evaluate(&result, rate, &search.found),
                _ => Err(result.reason().unwrap_or("it failed").to_owned()),
            };
            let ended = |why: &str| format!("the search ended with trial {number}: {why}");
            let (trial, message) = match evaluated {
                Ok(evaluated) => evaluated,
                Err(reason) => {
                    self.finished.notes.push(ended(&reason));
                    let last = self.finished.runs.last_mut();
                    last.map(|run| run.file.error.get_or_insert(reason));
                    break;
                }
            };
            self.notify(&format!("  {message}"));
            let is_hopeless = search::is_hopeless(&trial, &result.metrics());
            search.add(trial);
            let has_met = search.found.met.is_some();
            self.finished.file.max_rate = Some(search.found.clone());
            if is_hopeless && !has_met {
                self.finished.notes.push(ended(OUT_OF_REACH));
                break;
            }
        }
        Ok(true)
    }

    fn notify(&self, line: &str) {
        (self.on_progress)(line);
    }
}

/// Locks the folder by a file of its own. The system releases the lock with this process, however that ends.
fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join(LOCK);
    let file = File::options().create(true).append(true).open(&path);
    let file = file.with_context(|| path.display().to_string())?;
    file.try_lock().map_err(|error| not_locked(dir, error))?;
    Ok(file)
}

fn not_locked(dir: &Path, error: TryLockError) -> anyhow::Error {
    let dir = dir.display();
    match error {
        TryLockError::WouldBlock => Error::usage(format!(
            "{dir}: another process is at work on this experiment; wait for its end, or end it"
        ))
        .into(),
        TryLockError::Error(error) => anyhow!(
            "{dir}: {LOCK} cannot be locked ({error}); name a folder of a file system that has locks"
        ),
    }
}

/// Evaluates a trial of a rate: for the file, and as a message.
///
/// # Errors
/// Too many requests lack a latency that a limit is for: whether they kept it would decide.
fn evaluate(
    run: &RunResult,
    rate: f64,
    objective: &MaxRate,
) -> Result<(TrialFile, String), String> {
    let figures = run.metrics();
    let number = |member: &str| figures[member].as_f64();
    let good = number("goodput_requests").unwrap_or(0.0);
    let unknown = number("goodput_unknown").unwrap_or(0.0);
    let left_out = |edge: &str| figures["window"][edge].as_f64().unwrap_or(0.0);
    let left_out = left_out("left_out_first") + left_out("left_out_last");
    let all = number("scheduled").unwrap_or(0.0) - left_out;
    let [kept, at_most] = [good, good + unknown].map(|count| count / all.max(1.0));
    let (result, label) = if run.is_invalid() {
        (Trial::Invalid, "INVALID")
    } else if kept >= objective.share {
        (Trial::Met, "met")
    } else if at_most < objective.share {
        (Trial::Missed, "missed")
    } else {
        let goals = objective.goodput.join(" ");
        return Err(format!(
            "{goals} cannot be measured: {unknown} of {all} requests have no such latency (ttft and tpot need streams, the \
             server's own times a server that reports them)"
        ));
    };
    let trial = TrialFile {
        rate,
        drawn: drawn_rate(&run.dir),
        kept,
        result,
    };
    let percent = kept * 100.0;
    let message = format!("{label}: {good} of {all} requests kept the limits ({percent:.1} %)");
    Ok((trial, message))
}

/// Why no lower rate is tried.
const OUT_OF_REACH: &str = "no request kept the limits though most had the servers to themselves: no lower rate can keep them";

/// The line of a request in `schedule.csv`.
#[derive(Deserialize)]
struct Scheduled {
    /// Seconds; `None` of a later turn of a conversation.
    scheduled_offset: Option<f64>,
}

/// The rate of a run's whole schedule: requests, or conversations, a second. `None` if a line cannot be read.
fn drawn_rate(dir: &Path) -> Option<f64> {
    let mut lines = csv::Reader::from_path(dir.join(SCHEDULE)).ok()?;
    let lines: Vec<Scheduled> = lines.deserialize().collect::<Result<_, _>>().ok()?;
    let due = lines.iter().filter_map(|line| line.scheduled_offset);
    rate(due.filter_map(Stamp::from_seconds).map(Stamp::nanos))
}

impl Finished {
    /// Whether the figures of a run, or of both trials of a rate, say nothing of the servers.
    pub fn is_invalid(&self) -> bool {
        match &self.file.max_rate {
            // An invalid trial was repeated.
            Some(found) => found.invalid.is_some(),
            None => self.runs.iter().any(RunResult::is_invalid),
        }
    }

    /// The runs that failed, or whose results could not be written.
    pub fn failed(&self) -> impl Iterator<Item = &RunResult> {
        let has_failed = |run: &&RunResult| {
            run.file.state == RunState::Failed
                || (run.file.error.is_some() && !run.file.has_failed_too_often)
        };
        self.runs.iter().filter(has_failed)
    }
}

/// The file of the plan, with every key and its value.
pub const PLAN: &str = "experiment.toml";
/// Files whose presence means that a given folder is already used: those of an experiment, and the rows of a run.
const FILES: [&str; 7] = [
    PLAN,
    RUNS,
    "report.html",
    "comparison.json",
    "summary.csv",
    ROWS,
    PROXY_ROWS,
];
/// The folder for the files of incomplete runs, which are run again.
const ASIDE: &str = "aside";
/// The file that is locked while a process works on the folder.
const LOCK: &str = ".lock";

/// Replaces a JSON file.
fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("JSON")?;
    disk::replace(path, (text + "\n").as_bytes()).with_context(|| path.display().to_string())
}

/// Reads a JSON file; `None` if it is not there, or is another's.
fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&disk::read(path).ok()?).ok()
}

/// The folder of a run.
fn run_dir(dir: &Path, run: &str) -> PathBuf {
    dir.join(RUNS).join(run)
}

/// Moves the folder of an incomplete run aside. Returns its new path, `None` if there is no such folder.
fn put_aside(dir: &Path, run: &str) -> anyhow::Result<Option<PathBuf>> {
    let old = run_dir(dir, run);
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
mod tests;
