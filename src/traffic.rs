//! The traffic generator: an open loop that sends each request at its scheduled time, whatever
//! became of the earlier ones, and records every one of them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::report::load::{Gathering, RunFacts, UsualErrors, goals_ms};
use crate::report::machine::Machine;
use crate::report::verdict::{Verdict, judge};
use crate::report::window::{Arrived, Edge, Window};
use crate::request::row::Row;
use crate::telemetry::csv::TimeBase;

mod args;
pub mod arrival;
pub mod calibration;
pub mod client;
mod clocks;
mod dispatch;
mod download;
mod drafts;
pub mod driver;
mod ended;
mod engine_logs;
mod error;
mod evidence;
mod finished;
pub mod folder;
pub mod lag;
mod live;
mod output;
pub mod plan;
mod processor;
mod progress;
mod saved;
pub mod shard;
mod signals;
mod slots;
pub mod spans;
mod spool;
pub mod stop;
mod turns;
mod watch;
pub mod workload;

use calibration::{Calibration, Known, Of};
use client::{INSECURE, Tls};

pub use args::values::rate;
pub use args::{Args, ArrivalSource, DataArgs, DatasetName, PartArgs, TalkArgs, TimeOrigin};
use clocks::Clocks;
use driver::Driven;
pub use driver::{Ready, Run, drive};
use ended::{Ended, Files};
use engine_logs::EngineLogs;
pub use error::Error;
pub use finished::{FinishedRun, Unfit};
use folder::Folder;
use lag::Lag;
pub use live::{Live, Progress};
use output::{FILES, Output, PARTIAL, Rows};
pub use plan::RunPlan;
use signals::aside;
pub use signals::unless_signalled;
pub(crate) use signals::{FirstSignal, Signals};
use spans::Spans;
pub use stop::Stop;
use watch::{Watch, Watched};

/// Where runs go that are given no folder.
const RESULTS: &str = "results/traffic";
/// Rows that are looked at together for the figures.
const BATCH: usize = 10_000;
/// The rows of so many requests take some seconds to write.
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

/// Runs a plan without files, and judges it as a run that takes up no share of the machine's limit and in which 10 ms are
/// late, however long answers took.
///
/// # Errors
/// As [`drive`].
pub async fn judged(plan: RunPlan, clock: Clock) -> Result<Verdict, Error> {
    let ready = Ready::prepare(plan, clock.clone()).await?;
    let live = Arc::<Live>::default();
    let watch = Watch::start(clock, live.clone());
    let run = ready.run(live, Stop::new(), None).await?;
    let watched = watch.end();
    let lost = |error: io::Error| Error::Lost(error.to_string());
    let clocks = run.requests.clocks().map_err(lost)?;
    let mut gathering = Gathering::new(UsualErrors::default().median(), Vec::new());
    let read = run
        .requests
        .each(&clocks, |records| gathering.add(&records));
    read.map_err(lost)?;
    let facts = RunFacts {
        started: run.started,
        ended: run.ended,
        offered_rate: None,
        scheduled: run.schedule.len(),
        config: Value::Null,
        goodput: Vec::new(),
        machine: None,
    };
    let summary = gathering.summary(&facts);
    Ok(judge(&evidence::evidence(
        &run, &summary, &watched, None, None,
    )))
}

/// The same for whoever looks on by `live` and may end it by `stop`, which signals do as well.
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
    let (args, plan, spans) = tokio::select! {
        planned = planned(args, &clock) => planned?,
        () = stop.stopped() => return Err(Error::Interrupted(first.number())),
    };
    let insecure = plan.client.tls.as_ref().is_some_and(Tls::is_insecure);
    let ready = tokio::select! {
        ready = Ready::prepare(plan, clock.clone()) => ready?,
        () = stop.stopped() => return Err(Error::Interrupted(first.number())),
    };
    ready.warm_up(&stop).await?;
    if stop.is_stopped() {
        return Err(Error::Interrupted(first.number()));
    }
    let output = Output::begin(&folder, ready.plan(), ready.schedule(), clock.now())?;
    let skip_ordering = CancellationToken::new();
    let config = args.config(ready.plan());
    let dataset = args.described(ready.plan());
    let offered_rate = ready.plan().shard_rate();
    let count = ready.plan().count(ready.schedule());
    let files = Files {
        spool: output.spool()?,
        partial: output.partial()?,
        begun: output.begun(begun(&args, &config, count, offered_rate)),
        times_from: args.time_base,
        skip_ordering: skip_ordering.clone(),
    };
    progress::announce(
        &args.announcement(ready.plan(), ready.schedule()),
        output.dir(),
    );
    let ending = progress::Ending {
        stop: stop.clone(),
        drain: ready.plan().drain_timeout,
    };
    let logs = args.engine_logs.as_deref().map(EngineLogs::begin);
    let watch = Watch::start(clock.clone(), live.clone());
    let shown = progress::show(live.clone(), count, clock, ending);
    let run = tokio::select! {
        run = ready.run(live, stop, Some(files)) => run?,
        () = shown => return Err(Error::Thread("the progress display ended".to_owned())),
    };
    let beside = Beside {
        watched: watch.end(),
        limit: Calibration::known(&Of::here()),
        edges: (args.leave_out_first, args.leave_out_last),
        insecure,
        spans,
        logs,
    };
    let signals_after = Signals::listen().map_err(Error::thread)?;
    listening.abort();
    let facts = facts(&args, &run, config, offered_rate);
    let stopped = run.stopped;
    let times_from = args.time_base;
    let rows = output.partial_path();
    let finishing = spawn_blocking(move || finish(&run, &output, &facts, times_from, beside));
    let mut outcome = outcome(finishing, &skip_ordering, signals_after, rows).await?;
    outcome.dataset = dataset;
    match stopped {
        true => outcome.unfit = Some(Unfit::Stopped(first.number())),
        false => outcome.judge(args.max_failed),
    }
    Ok(outcome)
}

/// What is known of a run when it begins, by the names of `summary.json`.
fn begun(args: &Args, config: &Value, count: usize, offered_rate: Option<f64>) -> Value {
    json!({
        "scheduled": count,
        "offered_rate": offered_rate,
        "goodput_goals_ms": goals_ms(&args.goodput),
        "config": config,
    })
}

fn facts(args: &Args, run: &Driven, config: Value, offered_rate: Option<f64>) -> RunFacts {
    RunFacts {
        started: run.started,
        ended: run.ended,
        offered_rate,
        scheduled: run.plan.count(&run.schedule) - run.turns_not_sent,
        config,
        goodput: args.goodput.clone(),
        machine: Some(Machine::read()),
    }
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

/// What `finishing` gives, unless signals end it before its rows are in order; they then stay in `rows`.
async fn outcome(
    finishing: JoinHandle<Result<FinishedRun, Error>>,
    skip_ordering: &CancellationToken,
    mut signals: Signals,
    rows: PathBuf,
) -> Result<FinishedRun, Error> {
    let (finished, signal) =
        unless_skipped(finishing, skip_ordering, async || signals.next().await).await;
    match (finished.map_err(Error::thread)?, signal) {
        (Err(Error::Lost(_)), Some(signal)) => Err(Error::Unordered { signal, rows }),
        (finished, _) => finished,
    }
}

/// What `finishing` gives. The second signal of those that come until then cancels `skip_ordering` and is returned.
async fn unless_skipped<T>(
    mut finishing: JoinHandle<T>,
    skip_ordering: &CancellationToken,
    mut signal: impl AsyncFnMut() -> u8,
) -> (Result<T, JoinError>, Option<u8>) {
    tokio::select! {
        finished = &mut finishing => return (finished, None),
        _ = signal() => {
            progress::tell(&format!("putting rows in order; again to leave them in {PARTIAL}"));
        }
    }
    let number = tokio::select! {
        finished = &mut finishing => return (finished, None),
        number = signal() => number,
    };
    skip_ordering.cancel();
    (finishing.await, Some(number))
}

/// What is known of a run beside its requests.
struct Beside {
    watched: Watched,
    limit: Known,
    /// What is left out of the figures, first and last.
    edges: (Edge, Edge),
    insecure: bool,
    spans: Option<Spans>,
    logs: Option<EngineLogs>,
}

/// Writes the rows in their order, with all that is known in the end, and the figures.
fn finish(
    run: &Driven,
    output: &Output,
    facts: &RunFacts,
    times_from: TimeOrigin,
    beside: Beside,
) -> Result<FinishedRun, Error> {
    if facts.scheduled >= MANY {
        progress::tell("the run is over: putting its rows in order");
    }
    let lost = |error: io::Error| {
        let rows = output.partial_path();
        Error::Lost(format!("{error}; see {} for the rows", rows.display()))
    };
    let logs = beside.logs;
    let told = logs.map(|logs| logs.told(run.requests.sendings().len()));
    let clocks = run.requests.clocks_told(told.unwrap_or_default());
    let clocks = clocks.map_err(lost)?;
    let (usual, window) = looked_through(run, &clocks, beside.edges).map_err(lost)?;
    let gathering = Gathering::new(usual.median(), facts.goodput.clone());
    let gathering = gathering.within(window, run.started);
    let written = put_in_order(
        &run.requests,
        &clocks,
        output,
        times_from.of(run.started),
        gathering,
        beside.spans.as_ref(),
    );
    let (gathering, rows) = written.map_err(lost)?;
    let summary = gathering.summary(facts);
    let share = beside.limit.share(&run.schedule);
    let share = share.map(|share| share * run.turns_each());
    let evidence = evidence::evidence(
        run,
        &summary,
        &beside.watched,
        summary.typical_wait(),
        share,
    );
    let verdict = judge(&evidence);
    let mut warnings = Lag::of(run.requests.sendings()).warnings();
    warnings.extend(
        run.stopped
            .then(|| "the run was stopped before its end".to_owned()),
    );
    warnings.extend(run.warning());
    warnings.extend(beside.insecure.then(|| INSECURE.to_owned()));
    warnings.extend(output.note().map(str::to_owned));
    warnings.extend(beside.spans.and_then(Spans::finish));
    let mut json = summary.to_json();
    if let Some(json) = json.as_object_mut() {
        json.insert("warnings".to_owned(), warnings.clone().into());
        json.insert("turns_not_sent".to_owned(), run.turns_not_sent().into());
        json.insert("verdict".to_owned(), json!(verdict));
        json.insert("client".to_owned(), json!(evidence));
    }
    if json["config"].is_object() {
        json["config"]["workload_sha256"] = run.workload_sha256().into();
    }
    let written = output.finish(rows);
    let written = written.map_err(|error| format!("{error}; see {PARTIAL} for the rows"));
    let written = written
        .and(output.summary(&json).map_err(|error| error.to_string()))
        .err();
    Ok(FinishedRun {
        failure: summary.failure().or(written),
        summary,
        verdict,
        evidence,
        limit: beside.limit,
        warnings,
        dataset: None,
        output_dir: output.dir().to_owned(),
        unfit: None,
    })
}

/// What must be known of all requests before figures are taken of any: the clocks' usual errors, and which part of the
/// run the figures are of.
fn looked_through(
    run: &Driven,
    clocks: &Clocks,
    (first, last): (Edge, Edge),
) -> io::Result<(UsualErrors, Window)> {
    let mut usual = UsualErrors::default();
    let mut arrived = Vec::new();
    run.requests.each(clocks, |records| {
        usual.add(&records);
        let first = records.first();
        arrived.extend(first.and_then(|first| Arrived::of(first, run.started)));
    })?;
    let seconds = run.ended.since(run.started);
    Ok((usual, Window::choose(arrived, seconds, first, last)))
}

/// Writes the rows in order of arrival, as far as the disk takes them, and gathers the figures.
fn put_in_order(
    requests: &Ended,
    clocks: &Clocks,
    output: &Output,
    base: TimeBase,
    mut gathering: Gathering,
    spans: Option<&Spans>,
) -> io::Result<(Gathering, Result<Rows, Error>)> {
    let mut batch: Vec<Row> = Vec::new();
    // A full disk must not cost the figures on the screen.
    let mut rows = output.requests(base);
    let read = requests.each(clocks, |mut records| {
        if let Ok(out) = &mut rows
            && let Err(error) = out.write(&records)
        {
            rows = Err(error);
        }
        if let Some(spans) = spans {
            spans.add(&records);
        }
        batch.append(&mut records);
        if batch.len() >= BATCH {
            gathering.add(&batch);
            batch.clear();
        }
    });
    read.inspect_err(|_| output.discard())?;
    gathering.add(&batch);
    Ok((gathering, rows))
}

#[cfg(test)]
mod tests;
