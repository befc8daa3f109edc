//! The traffic generator: an open loop that sends each request at its scheduled time, whatever
//! became of the earlier ones, and records every one of them.

use std::sync::Arc;

use serde_json::json;

use crate::clock::Clock;
use crate::report::figures;
use crate::report::load::{RunFacts, Summary};
use crate::stats::Histogram;
use crate::table::window::Window;

mod args;
pub mod arrival;
pub mod client;
mod clocks;
mod dispatch;
mod download;
pub mod driver;
mod engine_logs;
mod error;
mod finished;
pub mod folder;
pub mod lag;
pub mod machine;
mod output;
pub mod plan;
mod progress;
mod rows;
pub mod shard;
pub mod spans;
pub mod stop;
mod verdict;
mod watch;
pub mod workload;

use client::INSECURE;

pub use args::values::{rate, seconds};
pub use args::{Args, name};
pub use dispatch::Ready;
pub use driver::{Run, drive};
use engine_logs::EngineLogs;
pub use error::Error;
pub use finished::{FinishedRun, Unfit};
use folder::{Folder, Made};
use machine::Machine;
use output::{FILES, Files};
pub use plan::RunPlan;
pub use progress::{Live, Progress};
use rows::Outputs;
use spans::Spans;
use stop::aside;
pub use stop::{Stop, unless_signalled};
use verdict::{Bounds, Evidence, judge};
use watch::watch;

/// Where runs go that are given no folder.
const RESULTS: &str = "results/traffic";
/// The figures of so many requests take some seconds.
const MANY: usize = 50_000;

/// Runs `args` to the end, or until Ctrl-C, and writes the files. Shows progress on standard error.
///
/// # Errors
/// Nothing could be run; see [`Error`].
pub fn run(args: &Args, clock: Clock) -> Result<FinishedRun, Error> {
    runtime()?.block_on(run_watched(args, clock, Arc::default(), Stop::new()))
}

/// The runtime that [`run`] drives its requests in.
///
/// # Errors
/// The system gives no threads.
pub fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    // More threads pass requests to and fro, which costs time and lateness; and the pacing thread, often the
    // server too, needs a core. One thread sends some thousands of requests a second.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads((cores / 2).clamp(1, 4))
        .enable_all()
        .build()
        .map_err(Error::thread)
}

/// [`run`] on the current runtime, for whoever looks on by `live` and may end it by `stop`, which signals do as well.
///
/// # Errors
/// As [`run`].
pub async fn run_watched(
    args: &Args,
    clock: Clock,
    live: Arc<Live>,
    stop: Stop,
) -> Result<FinishedRun, Error> {
    let folder = Folder::new(args.output_dir.as_deref(), args.force, RESULTS);
    folder.check(&FILES)?;
    let listening = stop.on_signals().map_err(Error::thread)?;
    let (ready, spans) = tokio::select! {
        made = made_ready(args, &clock, &stop) => made?,
        () = stop.stopped() => return Err(Error::Interrupted(stop.signal())),
    };
    if stop.is_stopped() {
        return Err(Error::Interrupted(stop.signal()));
    }
    let (plan, schedule, now) = (&ready.plan, &ready.schedule, clock.now());
    let made = output::begin(&folder, plan, schedule, now)?;
    let mut facts = RunFacts {
        started: now,
        ended: now,
        offered_rate: plan.shard_rate(),
        scheduled: plan.count(schedule),
        config: plan.config(),
        goodput: args.goodput.clone(),
        machine: json!(Machine::read()),
    };
    let what = plan.announcement(schedule);
    progress::tell(&format!("{what}; rows go to {}", made.dir.display()));
    let ending = (stop.clone(), args.drain_timeout_s);
    let outputs = Outputs {
        files: Some(Files::new(&made.dir, &facts, args.time_base)?),
        spans,
        logs: args.engine_logs.as_deref().map(EngineLogs::begin),
    };
    let woke = watch(clock.clone(), live.clone());
    let shown = progress::show(live.clone(), facts.scheduled, clock, ending);
    let run = tokio::select! {
        run = ready.run(live, stop.clone(), outputs) => run?,
        never = shown => never,
    };
    let woke = woke.lock().clone();
    listening.abort();
    let stopped = run.stopped;
    (facts.started, facts.ended) = (run.started, run.ended);
    facts.scheduled -= run.turns_not_sent.unwrap_or_default();
    let mut outcome = unless_signalled(move || finish(run, made, &facts, &woke)).await??;
    match stopped {
        true => outcome.unfit = Some(Unfit::Stopped(stop.signal())),
        false => outcome.judge(args.max_failed),
    }
    Ok(outcome)
}

/// Brings the data set of a run to come, if need be, and reads it.
///
/// # Errors
/// It cannot be had, or is none.
pub async fn provide(args: &Args) -> Result<(), Error> {
    let args = args.with_downloads().await?;
    aside(move || args.plan().map(drop)).await?
}

/// The run, about to begin, and where its spans go.
async fn made_ready(
    args: &Args,
    clock: &Clock,
    stop: &Stop,
) -> Result<(Ready, Option<Spans>), Error> {
    let args = args.with_downloads().await?;
    let plan = aside(move || args.plan()).await??;
    // Before anything is asked of the server or written.
    if let Some(at) = plan.args.start_at {
        Error::if_past(at, clock.now())?;
    }
    let spans = plan.args.otlp.start(clock.name())?;
    let ready = Ready::prepare(plan, clock.clone()).await?;
    ready.warm_up(stop).await?;
    Ok((ready, spans))
}

/// Ends the file of rows, and takes the figures of it.
fn finish(
    mut run: Run,
    made: Made,
    facts: &RunFacts,
    woke: &Histogram,
) -> Result<FinishedRun, Error> {
    if facts.scheduled >= MANY {
        progress::tell("the run is over: taking the figures of its rows; Ctrl-C leaves them out");
    }
    let (rows, written, unsent_spans) = run.rows.finish();
    let plan = run.plan.clone();
    let args = &plan.args;
    let edges = [args.leave_out_first, args.leave_out_last].map(|edge| edge.as_secs_f64());
    let summary = figures::of_file(&rows, facts, edges);
    let summary = summary.map_err(|unread| match &written {
        Err(unwritten) => Error::Failed(format!("no figures: {unwritten}")),
        Ok(()) => Error::Failed(format!("no figures: {unread}")),
    })?;
    let evidence = evidence(&run, &summary, woke);
    let verdict = judge(&evidence);
    let mut warnings = run.lag.warnings();
    let stopped = "the run was stopped before its end";
    warnings.extend(run.stopped.then(|| stopped.to_owned()));
    warnings.extend(run.warning());
    let window = summary.window.as_ref();
    warnings.extend(window.and_then(Window::warning));
    let insecure = args.tls.insecure.then(|| INSECURE.to_owned());
    let more = [insecure, made.note, unsent_spans];
    warnings.extend(more.into_iter().flatten());
    let mut json = summary.to_json();
    json["warnings"] = json!(warnings);
    json["turns_not_sent"] = json!(run.turns_not_sent);
    json["verdict"] = json!(verdict);
    json["client"] = json!(evidence);
    json["config"]["workload_sha256"] = plan.workload_sha256().ok().into();
    let rows = rows.file_name().unwrap_or_default().display().to_string();
    let written = written.map_err(|error| format!("{error}; see {rows} for the rows"));
    let written = written
        .and(output::summary(&made.dir, &json).map_err(|error| error.to_string()))
        .err();
    Ok(FinishedRun {
        failure: summary.failure().or(written),
        summary,
        verdict,
        evidence,
        warnings,
        dataset: plan.described(),
        output_dir: made.dir,
        unfit: None,
    })
}

/// What is known of how a run was made; something is late beside how long a client typically waits.
fn evidence(run: &Run, summary: &Summary, woke: &Histogram) -> Evidence {
    let at = |planned: Option<&plan::Planned>| planned.map(|planned| planned.offset_nanos);
    let is_at_once = at(run.schedule.first()) == at(run.schedule.last());
    let whole = is_at_once.then(|| run.ended.since(run.started));
    let scheduled = summary.run.scheduled as u64;
    let not_due = scheduled.saturating_sub(summary.requests());
    let mut evidence = Evidence {
        scheduled,
        // Those that waited for a slot have rows as well.
        unsent: u64::from(run.stopped) * (not_due + run.lag.unsent),
        given_up: summary.whole.given_up.saturating_sub(run.lag.unsent),
        due: summary.requests(),
        failed: summary.failed(),
        dropped: run.dropped,
        bounds: Bounds::of(summary.typical_wait(), whole),
        // A long run does not excuse a loop that stands still: it sees nothing.
        loop_bounds: Bounds::of(summary.typical_wait(), None),
        ..Evidence::default()
    };
    run.lag.tell(&mut evidence);
    watch::tell(woke, &mut evidence);
    evidence
}

#[cfg(test)]
mod tests;
