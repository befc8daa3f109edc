//! The traffic generator: sends each request at its scheduled time whether or not earlier ones have ended (an open loop), and
//! writes a row for every request.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use serde_json::json;

use crate::clock::Clock;
use crate::error::Error;
use crate::report::figures;
use crate::report::load::RunFacts;
use crate::stats::Histogram;
use crate::table::window::Window;

mod args;
pub mod arrival;
pub mod client;
mod clocks;
pub mod driver;
mod finished;
pub mod folder;
pub mod lag;
pub mod machine;
mod output;
pub mod plan;
mod progress;
mod rows;
pub mod spans;
pub mod stop;
mod verdict;
pub mod workload;

use client::INSECURE_WARNING;

pub use args::values::{rate, seconds, value_name};
pub use args::{Args, Backend};
pub use driver::{PreparedRun, Run, drive};
pub use finished::FinishedRun;
use folder::Folder;
use machine::Machine;
use output::{FILES, RowFile};
pub use plan::RunPlan;
use progress::print_line;
pub use progress::{LiveProgress, Progress};
use rows::{EngineLogs, Outputs};
use spans::Spans;
pub use stop::{Stop, unless_signalled};
use stop::{cannot_start, on_own_thread};
use verdict::{Evidence, judge};

/// The parent of a run's folder where `--output-dir` is not given.
const RESULTS: &str = "results/traffic";

/// Runs `args` to the end, or until Ctrl-C, and writes the files. Shows progress on standard error.
///
/// # Errors
/// Nothing could be run, or nothing was left to keep; see [`Error`].
pub fn run(args: &Args, clock: Clock) -> Result<FinishedRun, Error> {
    let run = || runtime()?.block_on(run_with_progress(args, clock, Arc::default(), Stop::new()));
    beside_runtimes(run)?
}

/// Runs `work`, which waits for a runtime of its own, on a thread of its own: one on which a runtime runs already must not.
///
/// # Errors
/// The system refuses the thread.
pub fn beside_runtimes<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work);
        thread.map(ScopedJoinHandle::join)
    });
    let done = done.map_err(cannot_start)?;
    Ok(done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// Creates the runtime that [`run`] uses.
///
/// # Errors
/// The system refuses the threads.
pub fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    // One thread sends some thousands of requests a second. With more threads, tasks move between them, which delays sends; and
    // the pacing thread, often the server too, needs a core.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
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
    let dir = output::begin(&folder, plan, clock.now())?;
    let start = plan.start(clock.now())?;
    let mut facts = RunFacts {
        started: start,
        ended: start,
        offered_rate: plan.shard_rate(),
        scheduled: plan.count(),
        config: plan.config(),
        goodput: args.goodput.clone(),
        machine: json!(Machine::read()),
    };
    let announcement = plan.announcement();
    print_line(&format!("{announcement}; rows go to {}", dir.display()));
    let outputs = Outputs {
        file: Some(RowFile::new(&dir, &facts, args.time_base)?),
        spans,
        logs: args.engine_logs.as_deref().map(EngineLogs::begin),
    };
    let delays = lag::of_event_loop(clock.clone(), live.clone());
    let drain = args.drain_timeout_s;
    let shown = progress::show(live.clone(), facts.scheduled, clock, &stop, drain);
    let run = tokio::select! {
        // So that it is shown that requests are given up before they have ended.
        biased;
        never = shown => never,
        run = prepared.run(live, stop.clone(), start, outputs) => run?,
    };
    if run.lag.given_up > 0 {
        print_line(&format!("gave up {}", run.lag.given_up));
    }
    let delays = delays.lock().clone();
    listening.abort();
    let stopped = run.stopped;
    facts.ended = run.ended;
    let mut finished = unless_signalled(move || finish(run, dir, &facts, &delays)).await??;
    finished.judge(stopped.then(|| stop.signal()), args.max_failed);
    Ok(finished)
}

/// Downloads the data set of a later run where necessary, and checks that it can be read.
///
/// # Errors
/// It cannot be downloaded or read.
pub async fn fetch_dataset(args: &Args) -> Result<(), Error> {
    plan(args).await.map(drop)
}

/// Makes the plan, which may take long.
async fn plan(args: &Args) -> Result<RunPlan, Error> {
    let args = args.with_downloads().await?;
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

/// Completes the file of rows, computes the figures from it and writes `summary.json`.
fn finish(
    mut run: Run,
    dir: PathBuf,
    facts: &RunFacts,
    delays: &Histogram,
) -> Result<FinishedRun, Error> {
    let (rows, written, lost_spans) = run.recorder.finish();
    let plan = run.plan.clone();
    let args = &plan.args;
    let edges = [args.leave_out_first, args.leave_out_last].map(|edge| edge.as_secs_f64());
    let summary = figures::of_file(&rows, facts, edges);
    let summary = summary.map_err(|read_error| match &written {
        Err(write_error) => Error::failed(format!("no figures: {write_error}")),
        Ok(()) => Error::failed(format!("no figures: {read_error}")),
    })?;
    let evidence = Evidence::of(&run, &summary, delays);
    let verdict = judge(&evidence);
    let mut warnings = Vec::from_iter(run.lag.warning());
    let stopped = "the run was stopped before its end";
    warnings.extend(run.stopped.then(|| stopped.to_owned()));
    let window = summary.window.as_ref();
    warnings.extend(window.and_then(Window::warning));
    let insecure = args.tls.insecure.then(|| INSECURE_WARNING.to_owned());
    warnings.extend(insecure.into_iter().chain(lost_spans));
    let mut json = summary.to_json();
    json["warnings"] = json!(warnings);
    json["verdict"] = json!(verdict);
    json["client"] = json!(evidence);
    json["config"]["workload_sha256"] = plan.workload_sha256().into();
    let rows = rows.file_name().unwrap_or_default().display().to_string();
    let written = written.map_err(|error| format!("{error}; see {rows} for the rows"));
    let written = written.map_err(Error::failed);
    let summarized = output::write_summary(&dir, &json);
    let failure = summary.failure().map(Error::failed);
    Ok(FinishedRun {
        failure: failure.or(written.and(summarized).err()),
        summary,
        verdict,
        evidence,
        warnings,
        output_dir: dir,
    })
}

#[cfg(test)]
mod tests;
