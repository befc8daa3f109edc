//! The traffic generator: an open loop that sends each request at its scheduled time, whatever
//! became of the earlier ones, and records every one of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::clock::Clock;
use crate::report::load::{RunFacts, Summary};
use crate::report::machine::Machine;
use crate::request::record::Record;
use crate::telemetry::csv::TimeBase;

mod args;
pub mod arrival;
pub mod client;
mod clocks;
pub mod driver;
pub mod lag;
mod output;
pub mod plan;
mod progress;
pub mod stop;
pub mod workload;

use client::{INSECURE, Tls};

pub use args::{Args, Base, DatasetName};
pub use driver::{Live, Ready, Run, drive};
pub use output::{Output, OutputError};
pub use plan::Plan;
pub use stop::Stop;

/// Why there was no run, or nothing to keep of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// No connection to the target came about.
    #[error("cannot reach {url}: {why}")]
    Unreachable {
        /// The base URL.
        url: String,
        /// What happened.
        why: String,
    },
    /// The target answers, but not so that the run can begin.
    #[error("{0}")]
    Refused(String),
    /// A warm-up request failed.
    #[error("a warm-up request failed: {0}")]
    Warmup(String),
    /// The system gave no thread or runtime.
    #[error("the generator could not start: {0}")]
    Thread(String),
    /// The files could not be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// A run that is over and on disk.
#[derive(Debug)]
pub struct Outcome {
    /// The figures.
    pub summary: Summary,
    /// What the reader of the figures must know: the generator was late, the run was cut short, …
    pub warnings: Vec<String>,
    /// Where the files are.
    pub output_dir: PathBuf,
    /// Why the run counts as failed: not one request succeeded, or its files could not be written.
    pub failure: Option<String>,
}

impl Error {
    /// Whether what was asked for is to blame, rather than how it went.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Error::Usage(_) | Error::Output(OutputError::NotOurs(_))
        )
    }
}

/// Runs `args` to the end, or until Ctrl-C, and writes the files. Shows progress on standard error.
///
/// # Errors
/// Nothing could be run; see [`Error`].
pub fn run(args: &Args, clock: Clock) -> Result<Outcome, Error> {
    runtime()?.block_on(run_async(args, clock))
}

/// The runtime that [`run`] drives its requests in.
///
/// # Errors
/// The system gives no threads.
pub fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    // More threads hand requests to and fro, which costs time and lateness; and the pacing thread, often the
    // server too, needs a core. One thread sends some thousands of requests a second.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads((cores / 2).clamp(1, 4))
        .enable_all()
        .build()
        .map_err(|error| Error::Thread(error.to_string()))
}

/// [`run`] on the current runtime, for whoever has other things to run beside it.
///
/// # Errors
/// As [`run`].
pub async fn run_async(args: &Args, clock: Clock) -> Result<Outcome, Error> {
    let plan = args.plan()?;
    let output = Output::open(&args.output_dir)?;
    raise_file_limit();
    let stop = Stop::new();
    let signals = tokio::spawn(stop_on_interrupt(stop.clone()));
    let insecure = plan.client.tls.as_ref().is_some_and(Tls::is_insecure);
    let ready = tokio::select! {
        ready = Ready::prepare(plan, clock.clone()) => ready?,
        () = stop.stopped() => {
            return Err(Error::Refused("interrupted before the run began".to_owned()));
        }
    };
    output.begin(ready.schedule())?;
    let config = args.config(ready.plan());
    let offered_rate = ready.plan().arrival.rate();
    let live = Arc::new(Live::default());
    let shown = progress::show(live.clone(), ready.schedule().len(), clock);
    let run = tokio::select! {
        run = ready.run(live, stop) => run?,
        () = shown => return Err(Error::Thread("the progress display ended".to_owned())),
    };
    signals.abort();
    let base = match args.time_base {
        Base::Run => TimeBase::Since(run.started),
        Base::Epoch => TimeBase::Epoch,
    };
    let rows = output.requests(&run.records, base);
    let goals = args.goodput.iter();
    let facts = RunFacts {
        started: run.started,
        ended: run.ended,
        offered_rate,
        scheduled: run.schedule.len(),
        config,
        goodput: goals
            .map(|goal| (goal.name.clone(), goal.most_ms))
            .collect(),
        machine: Some(Machine::read()),
    };
    let summary = Summary::of(&run.records, &facts);
    let insecure = insecure.then(|| INSECURE.to_owned());
    let warnings: Vec<String> = insecure.into_iter().chain(run.warnings()).collect();
    let mut json = summary.to_json();
    if let Some(json) = json.as_object_mut() {
        json.insert("warnings".to_owned(), warnings.clone().into());
    }
    // A full disk must not cost the figures on the screen.
    let written = rows.and(output.summary(&json)).err();
    Ok(Outcome {
        summary,
        warnings,
        output_dir: output.dir().to_owned(),
        failure: run.failure().or(written.map(|error| error.to_string())),
    })
}

impl Outcome {
    /// What the terminal shows.
    pub fn to_text(&self) -> String {
        let mut text = self.summary.to_text();
        for warning in &self.warnings {
            text.push_str(&format!("note: {warning}\n"));
        }
        text.push_str(&format!("files: {}\n", self.output_dir.display()));
        text
    }
}

impl Run {
    /// What a reader of the run's figures must know.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.lag.warnings();
        if self.stopped {
            warnings.push("the run was stopped before its end".to_owned());
        }
        warnings
    }

    /// Why it counts as failed, if not one request succeeded: the errors, most frequent first.
    pub fn failure(&self) -> Option<String> {
        if self.records.iter().any(Record::is_ok) {
            return None;
        }
        let mut errors: BTreeMap<&str, usize> = BTreeMap::new();
        for record in &self.records {
            *errors.entry(&record.facts.error).or_default() += 1;
        }
        let mut errors: Vec<(&str, usize)> = errors.into_iter().collect();
        errors.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let shown = errors.iter().take(3);
        let shown: Vec<String> = shown
            .map(|(error, count)| format!("{error} ({count}×)"))
            .collect();
        Some(match self.records.len() {
            0 => "no request was sent".to_owned(),
            count => format!("none of {count} requests succeeded: {}", shown.join("; ")),
        })
    }
}

/// Ctrl-C or SIGTERM stops the run, a second one also ends what is under way.
async fn stop_on_interrupt(stop: Stop) {
    use tokio::signal::unix::{SignalKind, signal};
    // Where no handler can be set, signals end the process as ever.
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return;
    };
    for step in [Stop::stop, Stop::abort] {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        step(&stop);
    }
}

/// A burst needs a socket a request; the usual soft limit of 1024 would fail it for no good reason.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // Refused: then the soft limit stays, and a request without a socket says so in its row.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
