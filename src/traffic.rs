//! The traffic generator: an open loop that sends each request at its scheduled time, whatever
//! became of the earlier ones, and records every one of them.

use std::sync::Arc;

use serde_json::json;

use crate::clock::Clock;
use crate::report::figures;
use crate::report::load::RunFacts;
use crate::report::machine::Machine;
use crate::report::verdict::judge;
use crate::table::window::Edge;

mod args;
pub mod arrival;
pub mod client;
mod clocks;
mod dispatch;
mod download;
pub mod driver;
mod engine_logs;
mod error;
mod evidence;
mod finished;
pub mod folder;
pub mod lag;
mod live;
mod output;
pub mod plan;
mod progress;
mod rows;
mod saved;
pub mod shard;
mod signals;
pub mod spans;
pub mod stop;
mod watch;
pub mod workload;

use client::{INSECURE, Tls};

pub use args::values::{rate, seconds};
pub use args::{Args, ArrivalSource, DataArgs, DatasetName, PartArgs, TalkArgs, TimeOrigin};
pub use driver::{Ready, Run, drive};
use engine_logs::EngineLogs;
pub use error::Error;
pub use finished::{FinishedRun, Unfit};
use folder::{Folder, Made};
pub use live::{Live, Progress};
use output::{FILES, Files};
pub use plan::RunPlan;
use rows::Beside;
use signals::aside;
pub use signals::unless_signalled;
pub(crate) use signals::{FirstSignal, Signals};
use spans::Spans;
pub use stop::Stop;
use watch::{Watch, Watched};

/// Where runs go that are given no folder.
const RESULTS: &str = "results/traffic";
/// The figures of so many requests take some seconds.
const MANY: usize = 50_000;

/// Runs `args` to the end, or until Ctrl-C, and writes the files. Shows progress on standard error.
///
/// # Errors
/// Nothing could be run; see [`Error`].
pub fn run(args: &Args, clock: Clock) -> Result<FinishedRun, Error> {
    runtime()?.block_on(run_async(args, clock))
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

/// [`run`] on the current runtime, for whoever has other things to run beside it.
///
/// # Errors
/// As [`run`].
pub async fn run_async(args: &Args, clock: Clock) -> Result<FinishedRun, Error> {
    run_watched(args, clock, Arc::default(), Stop::new()).await
}

/// [`run`] for whoever looks on by `live` and may end it by `stop`, which signals do as well.
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
    let first = Arc::new(FirstSignal::default());
    let received = Signals::listen().map_err(Error::thread)?;
    let listening = tokio::spawn(first.clone().stop(received, stop.clone()));
    let (args, ready, spans) = tokio::select! {
        made = made_ready(args, &clock, &stop) => made?,
        () = stop.stopped() => return Err(Error::Interrupted(first.number())),
    };
    if stop.is_stopped() {
        return Err(Error::Interrupted(first.number()));
    }
    let (plan, schedule, now) = (ready.plan(), ready.schedule(), clock.now());
    let insecure = plan.client.tls.as_ref().is_some_and(Tls::is_insecure);
    let made = output::begin(&folder, plan, schedule, now)?;
    let mut facts = RunFacts {
        started: now,
        ended: now,
        offered_rate: plan.shard_rate(),
        scheduled: plan.count(schedule),
        config: args.config(plan),
        goodput: args.goodput.clone(),
        machine: Some(Machine::read()),
    };
    let files = Files::new(&made.dir, &facts, args.time_base)?;
    let dataset = args.described(plan);
    let what = args.announcement(plan, schedule);
    progress::tell(&format!("{what}; rows go to {}", made.dir.display()));
    let ending = (stop.clone(), plan.drain_timeout);
    let beside = Beside {
        spans,
        logs: args.engine_logs.as_deref().map(EngineLogs::begin),
    };
    let watch = Watch::start(clock.clone(), live.clone());
    let shown = progress::show(live.clone(), facts.scheduled, clock, ending);
    let run = tokio::select! {
        run = ready.run(live, stop, Some(files), beside) => run?,
        never = shown => never,
    };
    let watched = watch.end();
    let mut signals = Signals::listen().map_err(Error::thread)?;
    listening.abort();
    let stopped = run.stopped;
    (facts.started, facts.ended) = (run.started, run.ended);
    facts.scheduled -= run.turns_not_sent;
    let edges = (args.leave_out_first, args.leave_out_last);
    let insecure = insecure.then(|| INSECURE.to_owned());
    let finishing = aside(move || finish(run, made, &facts, &watched, edges, insecure));
    let twice = async {
        signals.next().await;
        progress::tell("the run is over and its rows are written: again to leave the figures out");
        signals.next().await
    };
    let mut outcome = tokio::select! {
        finished = finishing => finished??,
        signal = twice => return Err(Error::Interrupted(signal)),
    };
    outcome.dataset = dataset;
    match stopped {
        true => outcome.unfit = Some(Unfit::Stopped(first.number())),
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

/// What to run, with the files that it needs, and where its spans go.
async fn planned(args: &Args, clock: &Clock) -> Result<(Args, RunPlan, Option<Spans>), Error> {
    let args = args.with_downloads().await?;
    let read = args.clone();
    let mut plan = aside(move || read.plan()).await??;
    if let Some(at) = plan.start_at {
        Error::if_past(at, clock.now())?;
    }
    if let Some(path) = &args.part.save_workload {
        let saved = plan.clone();
        let path = path.clone();
        aside(move || saved.save_workload(&path)).await??;
    }
    let spans = args.otlp.start(clock.name())?;
    plan.client.sampled = spans.as_ref().map_or(1.0, |spans| spans.ratio);
    Ok((args, plan, spans))
}

/// The run, about to begin.
async fn made_ready(
    args: &Args,
    clock: &Clock,
    stop: &Stop,
) -> Result<(Args, Ready, Option<Spans>), Error> {
    let (args, plan, spans) = planned(args, clock).await?;
    let ready = Ready::prepare(plan, clock.clone()).await?;
    ready.warm_up(stop).await?;
    Ok((args, ready, spans))
}

/// Ends the file of rows, and takes the figures of it.
fn finish(
    mut run: Run,
    made: Made,
    facts: &RunFacts,
    watched: &Watched,
    edges: (Edge, Edge),
    insecure: Option<String>,
) -> Result<FinishedRun, Error> {
    if facts.scheduled >= MANY {
        progress::tell("the run is over: taking the figures of its rows");
    }
    let (rows, written, unsent_spans) = run.rows.finish();
    let summary = figures::of_file(&rows, facts, edges);
    let summary = summary.map_err(|unread| match &written {
        Err(unwritten) => Error::Unread(unwritten.to_string()),
        Ok(()) => Error::Unread(unread.to_string()),
    })?;
    let evidence = evidence::evidence(&run, &summary, watched);
    let verdict = judge(&evidence);
    let mut warnings = run.lag.warnings();
    let stopped = "the run was stopped before its end";
    warnings.extend(run.stopped.then(|| stopped.to_owned()));
    warnings.extend(run.warning());
    let more = [insecure, made.note, unsent_spans];
    warnings.extend(more.into_iter().flatten());
    let mut json = summary.to_json();
    json["warnings"] = json!(warnings);
    json["turns_not_sent"] = json!(run.turns_not_sent());
    json["verdict"] = json!(verdict);
    json["client"] = json!(evidence);
    json["config"]["workload_sha256"] = run.plan.workload_sha256().ok().into();
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
        dataset: None,
        output_dir: made.dir,
        unfit: None,
    })
}

#[cfg(test)]
mod tests;
