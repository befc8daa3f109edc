//! The traffic generator: sends each request at its scheduled time whether or not earlier ones have ended (an open loop), and
//! writes a row for every request. Here: a run from flags to files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;

use serde_json::{Value, json};

use crate::clock::{Clock, NANOS, Stamp};
use crate::disk;
use crate::error::{Error, INVALID, SIGNALLED, TOO_MANY_FAILED};
use crate::report::files::{BEGUN, Grade, PARTIAL, ROWS, SCHEDULE, SUMMARY, Verdict};
use crate::report::load::{RunFacts, Summary};
use crate::request::shown_text;
use crate::stats::Histogram;
use crate::table::window::Window;
use crate::threads::joined;

mod args;
mod arrival;
pub mod client;
mod control;
mod driver;
pub mod folder;
mod plan;
mod rows;
mod verdict;
mod workload;

use args::DatasetName;
use client::INSECURE_WARNING;
use control::{cannot_start, on_own_thread, print_line};

pub use args::values::{rate, seconds, seconds_or_zero, value_name};
pub use args::{Args, Backend, OtlpArgs};
pub use control::{LiveProgress, Progress, Stop, unless_signalled};
use driver::PreparedRun;
pub use driver::{Run, drive};
use folder::Folder;
pub use plan::RunPlan;
use rows::{EngineLogs, Outputs, Recorded, Recorder, RowFile, Spans};
use verdict::{Bounds, Evidence, judge};
use workload::source;

/// A run that is over, with its files written.
#[derive(Debug)]
pub struct FinishedRun {
    /// The figures.
    pub summary: Summary,
    /// Whether the figures can be trusted.
    pub verdict: Verdict,
    /// What the verdict was judged by.
    pub evidence: Evidence,
    /// What a reader of the figures must know: requests waited for slots, the run was cut short, …
    pub warnings: Vec<String>,
    /// The folder of the files.
    pub output_dir: PathBuf,
    /// That no request succeeded, or that files could not be written; also of a run that was stopped.
    pub problem: Option<String>,
    /// Why scripts must not take the run for a complete and valid one.
    pub failure: Option<Error>,
}

/// The parent of a run's folder where `--output-dir` is not given.
const RESULTS: &str = "results/traffic";
/// What is told of a run that was stopped.
const STOPPED: &str = "the run was stopped before its end";
/// The default of `--max-failed`.
const HALF: f64 = 0.5;
/// All files that a run may leave in its folder, however it ends.
const FILES: [&str; 5] = [ROWS, PARTIAL, SUMMARY, SCHEDULE, BEGUN];
const SCHEDULE_COLUMNS: &str =
    "index,scheduled_offset,input_length,output_length,request_id,data_id";

/// Runs `args` to the end, or until Ctrl-C, and writes the files. Shows progress on standard error.
///
/// # Errors
/// Nothing could be run, or nothing was left to keep; see [`Error`].
pub fn run(args: &Args, clock: Clock) -> Result<FinishedRun, Error> {
    if let Some(problem) = args.idle_flags().into_iter().next() {
        return Err(Error::usage(problem));
    }
    let sent = run_with_progress(args, clock, Arc::default(), Stop::default());
    beside_runtimes(|| runtime()?.block_on(sent))?
}

/// Runs `work`, which waits for a runtime of its own, on a thread of its own: one on which a runtime runs already must not.
///
/// # Errors
/// The system refuses the thread.
pub fn beside_runtimes<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work);
        thread.map(joined)
    });
    done.map_err(cannot_start)
}

/// Creates the runtime that [`run`] uses.
///
/// # Errors
/// The system refuses the threads.
pub fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    // One thread sends some thousands of requests a second. With more threads, tasks move between them, which delays sends; and
    // the pacing thread, often the server too, needs a core.
    let cores = available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads((cores / 2).clamp(1, 4))
        .enable_all()
        .build()
        .map_err(cannot_start)
}

/// [`run`] on the current runtime: reports progress in `live`, and ends early by `stop` or by a signal.
///
/// # Errors
/// As [`run`].
pub async fn run_with_progress(
    args: &Args,
    clock: Clock,
    live: Arc<LiveProgress>,
    stop: Stop,
) -> Result<FinishedRun, Error> {
    let folder = Folder::new(args.output_dir.as_deref(), args.force, RESULTS);
    folder.check(&FILES)?;
    let listening = stop.on_signals().map_err(cannot_start)?;
    let (prepared, spans) = tokio::select! {
        // A stop also ends the warm-up.
        biased;
        () = stop.stopped() => return Err(stop.interrupted()),
        prepared = prepare(args, &clock, &stop) => prepared?,
    };
    let plan = &prepared.plan;
    // Checked again, so that nothing is left of a run that comes too late.
    plan.start(clock.now())?;
    let dir = begin(&folder, plan, clock.now())?;
    let start = plan.start(clock.now())?;
    let mut facts = RunFacts {
        started: start,
        ended: start,
        offered_rate: plan.shard_rate(),
        scheduled: plan.count(),
        config: plan.config(),
        goodput: args.goodput.clone(),
        machine: machine(),
    };
    let announcement = plan.announcement();
    print_line(&format!("{announcement}; rows go to {}", dir.display()));
    let outputs = Outputs {
        file: Some(RowFile::new(&dir, &facts, args.time_base)?),
        spans,
        logs: args.engine_logs.as_deref().map(EngineLogs::begin),
    };
    let delays = verdict::event_loop_delays(clock.clone(), live.clone());
    let drain = args.drain_timeout_s;
    let shown = control::show(live.clone(), facts.scheduled, clock, &stop, drain);
    let (run, recorder) = tokio::select! {
        // So that it is shown that requests are given up before they have ended.
        biased;
        never = shown => never,
        run = prepared.run(live, stop.clone(), start, outputs) => run?,
    };
    let delays = delays.lock().clone();
    drop(listening);
    facts.ended = run.ended;
    conclude(run, recorder, dir, facts, delays).await
}

/// Makes the plan of a run, which may take long: downloads the data set where necessary, and reads it.
///
/// # Errors
/// The data set cannot be downloaded or read; else as [`Args::plan`].
pub async fn plan(args: &Args) -> Result<RunPlan, Error> {
    let mut args = args.clone();
    let data = &mut args.data;
    if data.dataset_name == DatasetName::Sharegpt && data.dataset_path.is_none() {
        data.dataset_path = Some(source::sharegpt().await?);
    }
    on_own_thread(move || args.plan()).await?
}

/// Prepares a run up to its first scheduled request: reads the data set, starts the exporter of spans, sends the warm-up requests.
async fn prepare(
    args: &Args,
    clock: &Clock,
    stop: &Stop,
) -> Result<(PreparedRun, Option<Spans>), Error> {
    let plan = plan(args).await?;
    // Checked before anything is sent to the server or written.
    plan.start(clock.now())?;
    let spans = plan.args.otlp.start(clock.name())?;
    let prepared = PreparedRun::new(plan, clock.clone()).await?;
    prepared.warm_up(stop).await?;
    Ok((prepared, spans))
}

/// Writes the rows that are left, then the figures. A signal ends the waits and the figures, but costs no row.
async fn conclude(
    run: Run,
    recorder: Recorder,
    dir: PathBuf,
    facts: RunFacts,
    delays: Histogram,
) -> Result<FinishedRun, Error> {
    let stop = Stop::default();
    let _listening = stop.on_signals().map_err(cannot_start)?;
    let waits = stop.clone();
    let recorded = on_own_thread(move || recorder.finish(&waits)).await?;
    let rows = match &recorded {
        (_, Err(error), _) => error.to_string(),
        (path, ..) => format!("the rows are in {}", path.display()),
    };
    let interrupted = || {
        let message = format!("interrupted before there were figures; {rows}");
        Err(Error::new(SIGNALLED + stop.signal(), message))
    };
    if stop.is_stopped() {
        // Dropping the exporter sends the spans that it has, for which nobody waits.
        let _ = std::thread::Builder::new().spawn(move || drop(recorded));
        return interrupted();
    }
    tokio::select! {
        // First, so that the exporter is on that thread in any case.
        biased;
        finished = on_own_thread(move || finish(run, recorded, dir, &facts, &delays)) => finished?,
        () = stop.stopped() => interrupted(),
    }
}

/// Computes the figures from the file of rows, and writes `summary.json`.
fn finish(
    run: Run,
    (rows, written, spans): Recorded,
    dir: PathBuf,
    facts: &RunFacts,
    delays: &Histogram,
) -> Result<FinishedRun, Error> {
    let (plan, args) = (&run.plan, &run.plan.args);
    let edges = [args.leave_out_first, args.leave_out_last].map(|edge| edge.as_secs_f64());
    let summary = Summary::of_file(&rows, facts, edges).map_err(|read_error| {
        let error = written.as_ref().err().unwrap_or(&read_error);
        Error::failed(format!("no figures: {error}"))
    })?;
    let is_at_once = plan.offsets.first() == plan.offsets.last();
    let bounds = Bounds::of(summary.typical_wait());
    let scheduled = facts.scheduled as u64;
    let not_due = scheduled.saturating_sub(run.lag.ended);
    let evidence = Evidence {
        scheduled,
        // Requests that were due and waited for a slot until the stop have rows, but were not sent either.
        unsent: u64::from(run.stopped.is_some()) * (not_due + run.lag.unsent),
        given_up: run.lag.given_up,
        unwritten: run.lag.ended.saturating_sub(summary.whole.requests),
        failed: summary.whole.failed(),
        dropped: run.dropped,
        ..Evidence::measured(&run.lag, delays, bounds, is_at_once)
    };
    let verdict = judge(&evidence);
    let warnings = [
        run.lag.warning(),
        run.stopped.map(|_| STOPPED.to_owned()),
        summary.window.as_ref().and_then(Window::warning),
        args.tls.insecure.then(|| INSECURE_WARNING.to_owned()),
        spans.and_then(Spans::finish),
    ];
    let warnings = Vec::from_iter(warnings.into_iter().flatten());
    let mut json = summary.to_json();
    json["warnings"] = json!(warnings);
    json["verdict"] = json!(verdict);
    json["client"] = json!(evidence);
    json["config"]["workload_sha256"] = plan.workload_sha256().into();
    let rows = rows.file_name().unwrap_or_default().display().to_string();
    let written = written.map_err(|error| format!("{error}; see {rows} for the rows"));
    let summarized = write_summary(&dir, &json).map_err(|error| error.message);
    let problem = summary.failure().or(written.and(summarized).err());
    let counts = (summary.whole.failed(), summary.whole.requests);
    let (signal, grade) = (run.stopped, verdict.grade);
    Ok(FinishedRun {
        failure: failure_of(signal, grade, counts, args.max_failed, problem.as_ref()),
        problem,
        summary,
        verdict,
        evidence,
        warnings,
        output_dir: dir,
    })
}

/// Creates the folder of a run that begins `now`, and writes `schedule.csv`, with offsets in seconds from the start of the run.
///
/// # Errors
/// The folder holds a run already, or cannot be written.
fn begin(folder: &Folder, plan: &RunPlan, now: Stamp) -> Result<PathBuf, Error> {
    let dir = folder.create(&FILES, now)?;
    let path = dir.join(SCHEDULE);
    let written = File::create_new(&path).and_then(|file| {
        let mut rows = csv::Writer::from_writer(file);
        rows.write_record(SCHEDULE_COLUMNS.split(','))?;
        // Escaped as in `requests.csv`, so that the two files can be joined.
        let escaped = |text: String| shown_text(text.into()).into_owned();
        for (index, due, lengths) in plan.requests() {
            let offset = due.map(|due| format!("{}.{:09}", due / NANOS, due % NANOS));
            let ids = (escaped(plan.req_id(index)), lengths.data_id.map(escaped));
            rows.serialize((index, offset, lengths.input, lengths.output, ids))?;
        }
        rows.flush()
    });
    written.map_err(|cause| Error::write(&path, cause))?;
    Ok(dir)
}

/// Writes `summary.json`.
///
/// # Errors
/// It cannot be written.
fn write_summary(dir: &Path, summary: &Value) -> Result<(), Error> {
    let path = dir.join(SUMMARY);
    let written = disk::replace(&path, format!("{summary:#}\n").as_bytes());
    written.map_err(|cause| Error::write(&path, cause))?;
    // The summary holds all of it; a file that cannot be removed does no harm.
    let _ = std::fs::remove_file(dir.join(BEGUN));
    Ok(())
}

/// Why scripts must not take a run for a complete and valid one: by the signal that stopped it, else the grade of its verdict, or how
/// many of all requests failed. A `problem`, that no request succeeded or that files could not be written, stays the message.
fn failure_of(
    signal: Option<u8>,
    grade: Grade,
    (failed, all): (u64, u64),
    max_failed: Option<f64>,
    problem: Option<&String>,
) -> Option<Error> {
    let allowed = max_failed.unwrap_or(HALF);
    let has_failed_too_often = failed as f64 > allowed * all as f64;
    let (code, message) = if let Some(signal) = signal {
        (SIGNALLED + signal, STOPPED.to_owned())
    } else if grade == Grade::Invalid && problem.is_none() {
        let message = "the run is INVALID: its figures are not the server's";
        (INVALID, message.to_owned())
    } else if has_failed_too_often && (max_failed.is_some() || problem.is_none()) {
        let message =
            format!("{failed} of {all} requests failed, more than --max-failed {allowed} allows");
        (TOO_MANY_FAILED, message)
    } else {
        return problem.map(Error::failed);
    };
    Some(Error::new(code, problem.unwrap_or(&message)))
}

impl FinishedRun {
    /// Renders the result for the terminal.
    pub fn to_text(&self) -> String {
        let mut text = self.verdict.marked(&self.summary.to_text());
        text.push_str(&self.verdict.to_text(&self.evidence));
        for warning in &self.warnings {
            text.push_str(&format!("note: {warning}\n"));
        }
        text.push_str(&format!("files: {}\n", self.output_dir.display()));
        text
    }
}

/// Reads the properties of this machine that matter for its figures: the processors that this process may use, their model, and the
/// kernel with its release. What the system does not report is null.
pub fn machine() -> Value {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    json!({
        "cores": available_parallelism().ok().map(usize::from),
        "cpu_model": cpu_model(&cpus),
        "kernel": kernel.map(|release| format!("Linux {}", release.trim())),
    })
}

/// Returns the first `model name` of a `/proc/cpuinfo`.
fn cpu_model(cpus: &str) -> Option<String> {
    let mut lines = cpus.lines().filter_map(|line| line.split_once(':'));
    let (_, name) = lines.find(|(key, _)| key.trim() == "model name")?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests;
