//! Does what a plan says: run after run, each with servers of its own, in one folder that tells at any moment how far it came.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock::Clock;
use crate::disk;
use crate::report::files::{
    EXPERIMENT, ExperimentFile, MaxRate, PROXY_ROWS, ROWS, RUN, RUNS, RunFile, RunRef, RunState,
    Trial, TrialFile,
};
use crate::traffic::Stop;
use crate::traffic::folder::{Folder, Made};
use crate::units::count;

pub mod one;
pub mod search;

use super::plan::error::PlanError;
use super::plan::{Plan, Run, grid};
use one::{RunContext, RunEnd};
use search::Search;

/// Where an experiment goes.
#[derive(Clone, Debug)]
pub enum OutputDir {
    /// A new folder.
    New(Folder),
    /// One that was begun: what is done stays.
    Resumed(PathBuf),
}

/// An experiment that is over, or was stopped.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its folder.
    pub dir: PathBuf,
    /// Its `experiment.json`.
    pub file: ExperimentFile,
    /// The runs that were done, in order; also earlier ones of one that was resumed.
    pub runs: Vec<RunEnd>,
    /// The signal that stopped it.
    pub signal: Option<u8>,
    /// What the reader must know.
    pub notes: Vec<String>,
}

/// An experiment under way.
struct ExperimentRunner {
    plan: Plan,
    context: RunContext,
    done: Finished,
    /// Held until all is over: no other process works on the folder.
    _lock: File,
}

/// The rate that a search begins at where none is given, requests a second.
const FIRST_RATE: f64 = 10.0;

/// Does all of a plan by the program `queuescope`, until it is done or stopped by a signal. `tell` hears how it goes, a line at a time.
///
/// # Errors
/// A folder that is not to be used, files that cannot be written. A run that fails is in its end.
pub async fn run(
    plan: Plan,
    to: OutputDir,
    program: PathBuf,
    tell: fn(&str),
    clock: Clock,
) -> anyhow::Result<Finished> {
    let stop = Stop::new();
    // That ends with the runtime.
    drop(stop.on_signals()?);
    let begun = match &to {
        OutputDir::New(folder) => folder.check(&FILES).map(|()| None)?,
        OutputDir::Resumed(dir) => Some(dir.clone()),
    };
    // What is done needs nothing more.
    let is_done = |run: &&Run| begun.as_ref().is_some_and(|dir| done(dir, run).is_some());
    let to_do = plan.runs().iter().filter(|run| !is_done(run));
    tokio::select! {
        found = one::preflight(to_do, &program) => found?,
        () = stop.stopped() => {}
    }
    let context = RunContext {
        program,
        clock,
        stop: stop.clone(),
        tell,
    };
    let mut runner = ExperimentRunner::begin(plan, to, context)?;
    match runner.plan.is_search() {
        true => runner.search().await?,
        false => runner.all().await?,
    }
    runner.write()?;
    runner.done.signal = stop.is_stopped().then(|| stop.signal());
    Ok(runner.done)
}

/// What a run of an experiment in `dir` left, if it is done.
fn done(dir: &Path, run: &Run) -> Option<RunEnd> {
    let dir = of_run(dir, &run.dir);
    let file: RunFile = read_json(&dir.join(RUN)).ok()?;
    (file.state == RunState::Done).then(|| RunEnd::read(dir, file))
}

impl ExperimentRunner {
    fn begin(plan: Plan, to: OutputDir, context: RunContext) -> anyhow::Result<Self> {
        let now = context.clock.now();
        let (dir, began, lock, note) = match to {
            OutputDir::New(folder) => {
                let Made { dir, note } = folder.make(&[], now)?;
                let lock = locked(&dir)?;
                // What came since the first look, before the lock.
                folder.check(&FILES)?;
                write_plan(&dir, &plan)?;
                (dir, now.seconds(), lock, note)
            }
            OutputDir::Resumed(dir) => {
                let lock = locked(&dir)?;
                let began = |before: ExperimentFile| before.began;
                let began = read_json(&dir.join(EXPERIMENT)).map_or(now.seconds(), began);
                (dir, began, lock, None)
            }
        };
        let file = ExperimentFile {
            kind: plan.kind.name().to_owned(),
            began,
            keys: plan.sweeps().into_iter().map(|(key, _)| key).collect(),
            ..ExperimentFile::default()
        };
        let done = Finished {
            dir,
            file,
            runs: Vec::new(),
            signal: None,
            notes: note.into_iter().collect(),
        };
        Ok(ExperimentRunner {
            plan,
            context,
            done,
            _lock: lock,
        })
    }

    /// Says how far it came.
    fn write(&mut self) -> anyhow::Result<()> {
        let Finished { dir, file, .. } = &mut self.done;
        for run in &mut file.runs {
            let left = read_json(&dir.join(&run.dir).join(RUN));
            run.state = left.map_or(RunState::Planned, |left: RunFile| left.state);
        }
        write_json(&dir.join(EXPERIMENT), file)
    }

    /// Has `experiment.json` list a run.
    fn list(&mut self, run: &Run) {
        self.done.file.runs.push(RunRef {
            dir: format!("{RUNS}/{}", run.dir),
            label: run.label.clone(),
            settings: grid::json(&run.varied),
            repeat: run.repeat,
            state: RunState::Planned,
        });
    }

    async fn all(&mut self) -> anyhow::Result<()> {
        let runs = self.plan.runs().to_vec();
        runs.iter().for_each(|run| self.list(run));
        for (index, run) in runs.iter().enumerate() {
            if self.context.stop.is_stopped() {
                break;
            }
            // SGLang may take ten minutes for each.
            let is_hopeless = self.done.runs.iter().all(|end| end.file.start_s.is_none());
            if index == 2 && is_hopeless {
                let left = count(runs.len() - index, "run");
                let note = format!("not tried: {left}, as none of the first 2 could be started");
                self.tell(&format!("  {note}"));
                self.done.notes.push(note);
                break;
            }
            let (number, all) = (index + 1, runs.len());
            self.tell(&format!("run {number} of {all}: {}", run.label));
            self.one(run).await?;
        }
        Ok(())
    }

    /// Does a run, unless it is done already.
    async fn one(&mut self, run: &Run) -> anyhow::Result<RunEnd> {
        let end = if let Some(end) = done(&self.done.dir, run) {
            self.tell("  done before");
            end
        } else {
            if let Some(aside) = put_aside(&self.done.dir, &run.dir)? {
                let aside = aside.display();
                self.tell(&format!("  was not done: what it left is in {aside}"));
            }
            let mut end = RunEnd::begin(&self.done.dir, run)?;
            self.write()?;
            self.context.run(&run.settings, &mut end).await?;
            end
        };
        self.write()?;
        if let (RunState::Failed, Some(error)) = (end.file.state, &end.file.error) {
            self.tell(&format!("  failed: {error}"));
        }
        for note in end.warnings.iter().chain(&end.file.notes) {
            self.tell(&format!("  note: {note}"));
        }
        self.done.runs.push(end.clone());
        Ok(end)
    }

    /// Searches the highest rate that meets the objective.
    async fn search(&mut self) -> anyhow::Result<()> {
        let settings = self.plan.runs()[0].settings.clone();
        let (keys, rate) = (&settings.keys, settings.load.request_rate);
        let first = if rate.is_finite() { rate } else { FIRST_RATE };
        let found = MaxRate {
            goodput: settings.goodput(),
            share: keys.goodput_share,
            ..MaxRate::default()
        };
        let mut search = Search::new(first, keys.rate_precision, found);
        self.done.file.keys = vec!["request_rate".to_owned()];
        while let Some(rate) = search.next() {
            let number = self.done.runs.len() + 1;
            let requests = search::requests(rate, keys.probe_s.as_secs_f64(), keys.goodput_share);
            let run = self.plan.trial(number, rate, requests)?;
            self.tell(&format!("trial {number}: {rate} requests a second"));
            self.list(&run);
            let end = self.one(&run).await?;
            if self.context.stop.is_stopped() {
                break;
            }
            if end.file.state != RunState::Done {
                let why = end.why().unwrap_or("it failed");
                let note = format!("the search ended with trial {number}: {why}");
                self.done.notes.push(note);
                break;
            }
            let (trial, words) = tried(&end, rate, keys.goodput_share);
            self.tell(&format!("  {words}"));
            search.tell(trial);
            self.done.file.max_rate = Some(search.found.clone());
        }
        Ok(())
    }

    fn tell(&self, line: &str) {
        (self.context.tell)(line);
    }
}

/// The folder's lock, a file that nothing replaces: the system lets it go with this process, however that ends.
fn locked(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join(LOCK);
    let file = File::options().create(true).append(true).open(&path);
    let file = file.with_context(|| path.display().to_string())?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let wrong =
                "another process is at work on this experiment; wait for its end, or end it";
            Err(PlanError(format!("{}: {wrong}", dir.display())).into())
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// How a rate did, for the file and in words.
fn tried(end: &RunEnd, rate: f64, share: f64) -> (TrialFile, String) {
    let figures = end.metrics();
    let number = |member: &str| figures[member].as_f64();
    let good = number("goodput_requests").unwrap_or(0.0);
    let all = number("scheduled").unwrap_or(0.0);
    let kept = good / all.max(1.0);
    let (result, word) = match (end.is_invalid(), kept >= share) {
        (true, _) => (
            Trial::Invalid,
            "INVALID: the generator did not keep its schedule",
        ),
        (false, true) => (Trial::Met, "met"),
        (false, false) => (Trial::Missed, "missed"),
    };
    let trial = TrialFile {
        rate,
        drawn: number("schedule_rate"),
        kept,
        result,
    };
    let percent = kept * 100.0;
    let words = format!("{word}: {good} of {all} requests kept the limits ({percent:.1} %)");
    (trial, words)
}

impl Finished {
    /// Whether a run's figures say nothing of its servers.
    pub fn is_invalid(&self) -> bool {
        self.runs.iter().any(RunEnd::is_invalid)
    }

    /// Runs that did not come to their end, or of which nothing came out.
    pub fn failed(&self) -> impl Iterator<Item = &RunEnd> {
        let has_failed = |end: &&RunEnd| {
            end.file.state == RunState::Failed
                || (end.file.error.is_some() && !end.file.has_failed_too_often)
        };
        self.runs.iter().filter(has_failed)
    }
}

/// The plan of an experiment that was begun in `dir`.
///
/// # Errors
/// There is none.
pub fn begun(dir: &Path) -> anyhow::Result<String> {
    let path = dir.join(PLAN);
    let text = disk::open(&path).and_then(std::io::read_to_string);
    text.map_err(|error| {
        PlanError(format!(
            "--resume {}: holds no experiment ({PLAN}: {error})",
            dir.display()
        ))
        .into()
    })
}

/// The plan, every key with its value.
const PLAN: &str = "experiment.toml";
/// What an experiment writes into a folder that may be given; and rows, of a run or a demo.
const FILES: [&str; 7] = [
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
const LOCK: &str = ".lock";

/// Writes the plan; where it holds a secret, for its owner alone.
///
/// # Errors
/// What the system answers.
fn write_plan(dir: &Path, plan: &Plan) -> anyhow::Result<()> {
    let path = dir.join(PLAN);
    disk::write(&path, plan.to_toml().as_bytes(), plan.holds_secret())
        .with_context(|| path.display().to_string())
}

/// Replaces a file of JSON.
///
/// # Errors
/// As [`write`].
fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("JSON")?;
    disk::replace(path, (text + "\n").as_bytes()).with_context(|| path.display().to_string())
}

/// Reads a file of JSON.
///
/// # Errors
/// It is not there, or not what was expected.
fn read_json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = disk::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// The folder of a run.
fn of_run(dir: &Path, run: &str) -> PathBuf {
    dir.join(RUNS).join(run)
}

/// Puts what a run left aside; gives where.
///
/// # Errors
/// What the system answers.
fn put_aside(dir: &Path, run: &str) -> anyhow::Result<Option<PathBuf>> {
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
mod tests;
