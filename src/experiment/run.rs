//! Does what a plan says: run after run, each with servers of its own, in one folder that tells at any moment how far it came.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use crate::clock::Clock;
use crate::disk;
use crate::report::files::{
    EXPERIMENT, ExperimentFile, MaxRate, RUNS, RunRef, RunState, TrialFile,
};
use crate::traffic::folder::Folder;
use crate::traffic::{FirstSignal, Signals, Stop};

pub mod folder;
pub mod one;
pub mod search;

use super::launch::Lasts;
use super::plan::settings::Settings;
use super::plan::usage::Usage;
use super::plan::{Plan, Run, words};
use folder::{FILES, PLAN};
use one::{Bench, RunEnd};
use search::{Search, Trial};

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Order {
    /// The plan.
    pub plan: Plan,
    /// The folder of an experiment that was begun, or where a new one goes.
    pub to: To,
    /// The program `queuescope`.
    pub program: PathBuf,
    /// Who hears how it goes, a line at a time.
    pub tell: fn(&str),
}

/// Where an experiment goes.
#[derive(Clone, Debug)]
pub enum To {
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
struct Under {
    order: Order,
    bench: Bench,
    file: ExperimentFile,
    ends: Vec<RunEnd>,
    notes: Vec<String>,
    /// Held until all is over: no other process works on the folder.
    _lock: File,
}

/// The rate that a search begins at where none is given, requests a second.
const FIRST_RATE: f64 = 10.0;
/// Runs that may be not ready in time, before the first that is.
const MOST_LATE: usize = 2;
/// Does all of it, until it is done or stopped by a signal.
///
/// # Errors
/// A folder that is not to be used, files that cannot be written. A run that fails is in its end.
pub async fn run(order: Order, clock: Clock) -> anyhow::Result<Finished> {
    let stop = Stop::new();
    let first = Arc::new(FirstSignal::default());
    let listening = tokio::spawn(first.clone().stop(Signals::listen()?, stop.clone()));
    let done = whole(order, clock, &stop).await;
    listening.abort();
    let under = done?;
    let signal = stop.is_stopped().then(|| first.number());
    Ok(Finished {
        dir: under.bench.dir,
        file: under.file,
        runs: under.ends,
        signal,
        notes: under.notes,
    })
}

async fn whole(order: Order, clock: Clock, stop: &Stop) -> anyhow::Result<Under> {
    if let To::New(folder) = &order.to {
        folder.check(&FILES)?;
        if let Folder::Given { dir, .. } = folder {
            folder::former(dir)?;
        }
    }
    let runs = order.plan.runs()?;
    let is_done = |run: &&Run| match &order.to {
        To::New(_) => false,
        To::Resumed(dir) => {
            folder::run_file(dir, &run.dir).is_some_and(|file| file.state == RunState::Done)
        }
    };
    let to_do = runs.iter().filter(|run| !is_done(run));
    let to_do: Vec<&Settings> = to_do.map(|run| &run.settings).collect();
    tokio::select! {
        provided = one::provide(order.plan.kind, &to_do, &order.program) => provided?,
        () = stop.stopped() => {}
    }
    let mut under = Under::begin(order, clock, stop.clone())?;
    under.all().await?;
    under.write()?;
    Ok(under)
}

impl Under {
    fn begin(order: Order, clock: Clock, stop: Stop) -> anyhow::Result<Under> {
        let now = clock.now();
        let mut notes = Vec::new();
        let (dir, began, lock) = match &order.to {
            To::New(folder) => {
                let mut lock = None;
                if let Folder::Given { dir, .. } = folder {
                    folder.check(&FILES)?;
                    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
                    // Before anything of an experiment that is replaced goes: it may be running.
                    lock = Some(locked(dir)?);
                    folder::clear(dir)?;
                }
                let made = folder.make(&FILES, now)?;
                notes.extend(made.note);
                let lock = lock.map_or_else(|| locked(&made.dir), Ok)?;
                folder::write_plan(&made.dir, &order.plan)?;
                (made.dir, now.seconds(), lock)
            }
            To::Resumed(dir) => {
                let lock = locked(dir)?;
                let before: ExperimentFile =
                    folder::read_json(&dir.join(EXPERIMENT)).unwrap_or_default();
                let began = Some(before.began).filter(|began| *began > 0.0);
                (dir.clone(), began.unwrap_or(now.seconds()), lock)
            }
        };
        let sweeps = order.plan.sweeps();
        Ok(Under {
            _lock: lock,
            file: ExperimentFile {
                kind: order.plan.kind.name().to_owned(),
                began,
                keys: sweeps.into_iter().map(|sweep| sweep.key).collect(),
                ..ExperimentFile::default()
            },
            bench: Bench {
                kind: order.plan.kind,
                dir,
                program: order.program.clone(),
                clock,
                stop,
                tell: order.tell,
            },
            order,
            ends: Vec::new(),
            notes,
        })
    }

    fn write(&self) -> anyhow::Result<()> {
        folder::write_json(&self.bench.dir.join(EXPERIMENT), &self.file)
    }

    async fn all(&mut self) -> anyhow::Result<()> {
        if self.order.plan.is_search() {
            return self.search().await;
        }
        let runs = self.order.plan.runs()?;
        self.file.runs = runs.iter().map(|run| self.planned(run)).collect();
        self.write()?;
        for (index, run) in runs.iter().enumerate() {
            if self.bench.stop.is_stopped() {
                break;
            }
            self.tell(&format!(
                "run {} of {}: {}",
                index + 1,
                runs.len(),
                run.label
            ));
            let is_first = self.ends.iter().all(|end| end.file.start_s.is_none());
            let end = self.one(index, run).await?;
            let left = runs.len() - index - 1;
            if let (Some(start_s), true, 1..) = (end.file.start_s, is_first, left) {
                let time = words::left(&runs[index + 1..], start_s);
                let runs = if left == 1 { "run" } else { "runs" };
                self.tell(&format!(
                    "  the start took {start_s:.1} s; {left} {runs} more take {time}"
                ));
            }
            if let (Some(why), true) = (self.in_vain(), left > 0) {
                let note = format!("{left} further runs were not tried: {why}");
                self.tell(&format!("  {note}"));
                self.notes.push(note);
                break;
            }
        }
        Ok(())
    }

    /// Why further runs would fail as well, if that is known: SGLang may take ten minutes for each.
    fn in_vain(&self) -> Option<&'static str> {
        if self.ends.iter().any(RunEnd::has_started) {
            return None;
        }
        let is_varied = |keys: &[&str]| {
            let is_one = |varied: &String| {
                let is_of =
                    |key: &&str| varied == *key || (key.ends_with('.') && varied.starts_with(*key));
                keys.iter().any(is_of)
            };
            self.file.keys.iter().any(is_one)
        };
        let late = self
            .ends
            .iter()
            .filter(|end| end.not_started == Some(Lasts::Perhaps));
        match self.ends.last()?.not_started? {
            Lasts::Unless(keys) if !is_varied(keys) => {
                Some("nothing that varies changes why this one could not be started")
            }
            Lasts::Perhaps if late.count() >= MOST_LATE => {
                Some("none was ready in time; start_timeout_s gives them longer")
            }
            _ => None,
        }
    }

    /// A run as `experiment.json` has it before it is done; of one that was begun earlier, what it left.
    fn planned(&self, run: &Run) -> RunRef {
        let before = folder::run_file(&self.bench.dir, &run.dir);
        RunRef {
            dir: format!("{RUNS}/{}", run.dir),
            label: run.label.clone(),
            settings: super::plan::grid::json(&run.varied),
            repeat: run.repeat,
            state: before.map_or(RunState::Planned, |file| file.state),
        }
    }

    /// Does a run, unless it is done already.
    async fn one(&mut self, index: usize, run: &Run) -> anyhow::Result<RunEnd> {
        let before = folder::run_file(&self.bench.dir, &run.dir);
        let done = before.filter(|file| file.state == RunState::Done);
        let end = match done {
            Some(file) => {
                self.tell("  done before");
                RunEnd::read(folder::of_run(&self.bench.dir, &run.dir), file)
            }
            None => {
                if let Some(aside) = folder::put_aside(&self.bench.dir, &run.dir)? {
                    self.tell(&format!(
                        "  was not done: what it left is in {}",
                        aside.display()
                    ));
                }
                self.state(index, RunState::Running)?;
                self.bench.run(run).await?
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
        let settings = self.order.plan.only_settings()?;
        let share = settings.number("goodput_share").unwrap_or_default();
        let seconds = settings.number("probe_s").unwrap_or_default();
        let first = settings
            .number("request_rate")
            .filter(|rate| rate.is_finite());
        let mut search = Search::new(
            first.unwrap_or(FIRST_RATE),
            settings.number("rate_precision").unwrap_or_default(),
        );
        self.file.keys = vec!["request_rate".to_owned()];
        let mut number = 0;
        let mut trials = Vec::new();
        while let Some(rate) = search.next() {
            number += 1;
            let run = self
                .order
                .plan
                .probe(number, rate, search::requests(rate, seconds, share));
            self.tell(&format!("trial {number}: {rate} requests a second"));
            let planned = self.planned(&run);
            self.file.runs.push(planned);
            let end = self.one(number - 1, &run).await?;
            if self.bench.stop.is_stopped() {
                break;
            }
            if end.file.state != RunState::Done {
                let why = end.file.error.as_deref().and_then(|why| why.lines().next());
                let why = why.unwrap_or("it failed");
                self.notes
                    .push(format!("the search ended with trial {number}: {why}"));
                break;
            }
            let (trial, words, made) = tried(&end, rate, share);
            self.tell(&format!("  {words}"));
            search.tell(rate, trial);
            trials.push(made);
            self.file.max_rate = Some(MaxRate {
                goodput: settings.texts("goodput"),
                share,
                met: search.met,
                missed: search.missed,
                invalid: search.invalid,
                trials: trials.clone(),
            });
        }
        Ok(())
    }

    fn tell(&self, line: &str) {
        (self.order.tell)(line);
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
