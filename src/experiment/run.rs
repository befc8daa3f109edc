//! Does what a plan says: run after run, each with servers of its own, in one folder that tells at any moment how far it came.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::clock::Clock;
use crate::disk;
use crate::report::files::{
    EXPERIMENT, ExperimentFile, MaxRate, RUNS, RunRef, RunState, TrialFile,
};
use crate::traffic::Stop;
use crate::traffic::folder::Folder;

pub mod folder;
pub mod one;
pub mod search;

use super::plan::usage::Usage;
use super::plan::{Plan, Run, grid, words};
use folder::{FILES, PLAN};
use one::{RunContext, RunEnd};
use search::{Search, Trial};

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
    file: ExperimentFile,
    ends: Vec<RunEnd>,
    notes: Vec<String>,
    /// Held until all is over: no other process works on the folder.
    _lock: File,
}

/// The rate that a search begins at where none is given, requests a second.
const FIRST_RATE: f64 = 10.0;
/// Runs that may fail to start before the first that does: SGLang may take ten minutes for each.
const MOST_FAILED_STARTS: usize = 2;

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
    let listening = stop.on_signals()?;
    let context = RunContext {
        kind: plan.kind,
        dir: PathBuf::new(),
        program,
        clock,
        stop: stop.clone(),
        tell,
    };
    let done = whole(plan, to, context).await;
    listening.abort();
    let done = done?;
    Ok(Finished {
        dir: done.context.dir,
        file: done.file,
        runs: done.ends,
        signal: stop.is_stopped().then(|| stop.signal()),
        notes: done.notes,
    })
}

async fn whole(plan: Plan, to: OutputDir, context: RunContext) -> anyhow::Result<ExperimentRunner> {
    if let OutputDir::New(folder) = &to {
        folder.check(&FILES)?;
        if let Folder::Given { dir, .. } = folder {
            folder::former(dir)?;
        }
    }
    let is_done = |run: &&Run| match &to {
        OutputDir::New(_) => false,
        OutputDir::Resumed(dir) => {
            folder::run_file(dir, &run.dir).is_some_and(|file| file.state == RunState::Done)
        }
    };
    let to_do = plan.runs().iter().filter(|run| !is_done(run));
    let to_do: Vec<_> = to_do.map(|run| &run.settings).collect();
    tokio::select! {
        found = one::preflight(plan.kind, &to_do, &context.program) => found?,
        () = context.stop.stopped() => {}
    }
    let mut runner = ExperimentRunner::begin(plan, to, context)?;
    runner.all().await?;
    runner.write()?;
    Ok(runner)
}

impl ExperimentRunner {
    fn begin(plan: Plan, to: OutputDir, mut context: RunContext) -> anyhow::Result<Self> {
        let now = context.clock.now();
        let mut notes = Vec::new();
        let (dir, began, lock) = match to {
            OutputDir::New(folder) => {
                let mut lock = None;
                if let Folder::Given { dir, .. } = &folder {
                    folder.check(&FILES)?;
                    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
                    // Before anything of an experiment that is replaced goes: it may be running.
                    lock = Some(locked(dir)?);
                    if let Some(aside) = folder::replace(dir)? {
                        let aside = aside.display();
                        notes.push(format!("what was there before is in {aside}"));
                    }
                }
                let made = folder.make(&FILES, now)?;
                notes.extend(made.note);
                let lock = lock.map_or_else(|| locked(&made.dir), Ok)?;
                folder::write_plan(&made.dir, &plan)?;
                (made.dir, now.seconds(), lock)
            }
            OutputDir::Resumed(dir) => {
                let lock = locked(&dir)?;
                let before: ExperimentFile =
                    folder::read_json(&dir.join(EXPERIMENT)).unwrap_or_default();
                let began = Some(before.began).filter(|began| *began > 0.0);
                (dir, began.unwrap_or(now.seconds()), lock)
            }
        };
        context.dir = dir;
        let sweeps = plan.sweeps();
        Ok(ExperimentRunner {
            _lock: lock,
            file: ExperimentFile {
                kind: plan.kind.name().to_owned(),
                began,
                keys: sweeps.into_iter().map(|sweep| sweep.key).collect(),
                ..ExperimentFile::default()
            },
            context,
            plan,
            ends: Vec::new(),
            notes,
        })
    }

    fn write(&self) -> anyhow::Result<()> {
        folder::write_json(&self.context.dir.join(EXPERIMENT), &self.file)
    }

    async fn all(&mut self) -> anyhow::Result<()> {
        if self.plan.is_search() {
            return self.search().await;
        }
        let runs = self.plan.runs().to_vec();
        self.file.runs = runs.iter().map(|run| self.planned(run)).collect();
        self.write()?;
        for (index, run) in runs.iter().enumerate() {
            if self.context.stop.is_stopped() {
                break;
            }
            let (number, left) = (index + 1, runs.len() - index - 1);
            self.tell(&format!("run {number} of {}: {}", runs.len(), run.label));
            let is_first = !self.ends.iter().any(RunEnd::has_started);
            let end = self.one(index, run).await?;
            let noun = if left == 1 { "run" } else { "runs" };
            match end.file.start_s {
                Some(start_s) if is_first && left > 0 => {
                    let time = words::left(&runs[number..], start_s);
                    self.tell(&format!(
                        "  the start took {start_s:.1} s; {left} {noun} more take {time}"
                    ));
                }
                None if end.file.state == RunState::Failed
                    && is_first
                    && left > 0
                    && self.ends.len() >= MOST_FAILED_STARTS =>
                {
                    let were = if left == 1 { "was" } else { "were" };
                    let note = format!(
                        "{left} further {noun} {were} not tried: none of the first {MOST_FAILED_STARTS} could be started"
                    );
                    self.tell(&format!("  {note}"));
                    self.notes.push(note);
                    break;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A run as `experiment.json` has it before it is done; of one that was begun earlier, what it left.
    fn planned(&self, run: &Run) -> RunRef {
        let before = folder::run_file(&self.context.dir, &run.dir);
        RunRef {
            dir: format!("{RUNS}/{}", run.dir),
            label: run.label.clone(),
            settings: grid::json(&run.varied),
            repeat: run.repeat,
            state: before.map_or(RunState::Planned, |file| file.state),
        }
    }

    /// Does a run, unless it is done already.
    async fn one(&mut self, index: usize, run: &Run) -> anyhow::Result<RunEnd> {
        let before = folder::run_file(&self.context.dir, &run.dir);
        let done = before.filter(|file| file.state == RunState::Done);
        let end = match done {
            Some(file) => {
                self.tell("  done before");
                RunEnd::read(folder::of_run(&self.context.dir, &run.dir), file)
            }
            None => {
                if let Some(aside) = folder::put_aside(&self.context.dir, &run.dir)? {
                    self.tell(&format!(
                        "  was not done: what it left is in {}",
                        aside.display()
                    ));
                }
                self.state(index, RunState::Running)?;
                self.context.run(run).await?
            }
        };
        self.state(index, end.file.state)?;
        if let (RunState::Failed, Some(error)) = (end.file.state, &end.file.error) {
            self.tell(&format!("  failed: {error}"));
        }
        for note in end.warnings.iter().chain(&end.file.notes) {
            self.tell(&format!("  note: {note}"));
        }
        self.ends.push(end.clone());
        Ok(end)
    }

    fn state(&mut self, index: usize, state: RunState) -> anyhow::Result<()> {
        if let Some(run) = self.file.runs.get_mut(index) {
            run.state = state;
        }
        self.write()
    }

    /// Searches the highest rate that meets the objective.
    async fn search(&mut self) -> anyhow::Result<()> {
        let settings = self.plan.runs()[0].settings.clone();
        let (keys, rate) = (&settings.line.keys, settings.line.load.request_rate);
        let first = if rate.is_finite() { rate } else { FIRST_RATE };
        let mut search = Search::new(first, keys.rate_precision);
        self.file.keys = vec!["request_rate".to_owned()];
        let mut trials = Vec::new();
        while let Some(rate) = search.next() {
            let number = self.file.runs.len() + 1;
            let requests = search::requests(rate, keys.probe_s, keys.goodput_share);
            let run = self.plan.trial(number, rate, requests)?;
            self.tell(&format!("trial {number}: {rate} requests a second"));
            let planned = self.planned(&run);
            self.file.runs.push(planned);
            let end = self.one(number - 1, &run).await?;
            if self.context.stop.is_stopped() {
                break;
            }
            if end.file.state != RunState::Done {
                let why = end.file.error.as_deref().and_then(|why| why.lines().next());
                let why = why.unwrap_or("it failed");
                self.notes
                    .push(format!("the search ended with trial {number}: {why}"));
                break;
            }
            let (trial, words, made) = tried(&end, rate, keys.goodput_share);
            self.tell(&format!("  {words}"));
            search.tell(rate, trial);
            trials.push(made);
            self.file.max_rate = Some(MaxRate {
                goodput: settings.goodput(),
                share: keys.goodput_share,
                met: search.met,
                missed: search.missed,
                invalid: search.invalid,
                trials: trials.clone(),
            });
        }
        Ok(())
    }

    fn tell(&self, line: &str) {
        (self.context.tell)(line);
    }
}

/// The folder's lock, a file that nothing replaces: the system lets it go with this process, however that ends.
fn locked(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join(folder::LOCK);
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| path.display().to_string())?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let wrong =
                "another process is at work on this experiment; wait for its end, or end it";
            Err(Usage(format!("{}: {wrong}", dir.display())).into())
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// How a rate did, in words, and for the file.
fn tried(end: &RunEnd, rate: f64, share: f64) -> (Trial, String, TrialFile) {
    let count = |member: &str| end.summary(member).and_then(|count| count.as_u64());
    let (good, all) = (
        count("/goodput_requests").unwrap_or(0),
        count("/scheduled").unwrap_or(0),
    );
    let kept = good as f64 / all.max(1) as f64;
    let said = format!(
        "{good} of {all} requests kept the limits ({:.1} %)",
        kept * 100.0
    );
    let (trial, verb, words) = if end.is_invalid() {
        let words =
            "the generator did not send what was asked for, so this tells nothing of the servers";
        (Trial::Invalid, "INVALID", words.to_owned())
    } else if kept >= share {
        (Trial::Met, "met", said)
    } else {
        (Trial::Missed, "missed", said)
    };
    let drawn = end.summary("/schedule_rate").and_then(|rate| rate.as_f64());
    let file = TrialFile {
        rate,
        drawn,
        kept,
        result: verb.to_lowercase(),
    };
    (trial, format!("{verb}: {words}"), file)
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
        Usage(format!(
            "--resume {}: holds no experiment ({PLAN}: {error})",
            dir.display()
        ))
        .into()
    })
}
