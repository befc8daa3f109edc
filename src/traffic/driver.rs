//! Runs a plan: prepares the target, sends the warm-up requests, drives the schedule and collects the rows.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use bytes::Bytes;
use http::Method;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::clock::{Clock, Stamp};
use crate::request::outcome::Outcome;
use crate::request::row::Row;

use super::client::{Client, Job};
use super::dispatch::{Dispatch, PreparedRun, pace};
use super::error::Error;
use super::lag::Lag;
use super::plan::RunPlan;
use super::progress::LiveProgress;
use super::rows::{Outputs, Recorder};
use super::stop::Stop;
use super::workload::Backend;

/// A run that is over.
#[derive(Debug)]
pub struct Run {
    /// The time that all scheduled offsets count from.
    pub started: Stamp,
    /// When the last request ended.
    pub ended: Stamp,
    /// A row for each request that was due (several where it generates several sequences), in order of sending; empty if they
    /// were written to a file.
    pub rows: Vec<Row>,
    /// How late the generator sent.
    pub lag: Lag,
    /// Whether the run was stopped before its end.
    pub stopped: bool,
    pub(super) recorder: Recorder,
    /// What was planned, also of requests that were not sent.
    pub plan: Arc<RunPlan>,
    /// Requests that got no connection because this machine had no file descriptors or ports left.
    pub(super) dropped: u64,
}

/// The run starts this long after it is prepared, so that its first bodies are built and its first requests are not late already.
const START_DELAY_NANOS: i64 = 100_000_000;

/// Runs a plan on the current runtime. Dropping the future ends the run.
///
/// # Errors
/// The target cannot be reached, or a warm-up request fails. A failed request of the run is a row, not an
/// error.
pub async fn drive(
    plan: RunPlan,
    clock: Clock,
    live: Arc<LiveProgress>,
    stop: Stop,
) -> Result<Run, Error> {
    let prepared = PreparedRun::new(plan, clock).await?;
    prepared.warm_up(&stop).await?;
    let start = prepared.start()?;
    prepared.run(live, stop, start, Outputs::default()).await
}

impl PreparedRun {
    /// Checks that the target can be reached, flushes its cache if asked to, and looks up the model's name.
    ///
    /// # Errors
    /// As [`drive`].
    pub async fn new(mut plan: RunPlan, clock: Clock) -> Result<PreparedRun, Error> {
        let target = plan.client.target.clone();
        let unreachable = |cause: String| Error::Failed(format!("cannot reach {target}: {cause}"));
        let client = Client::new(plan.client.clone(), clock.clone()).await;
        let client = Arc::new(client.map_err(|error| unreachable(error.to_string()))?);
        if plan.check_target {
            client.preconnect().await.map_err(unreachable)?;
        }
        if plan.args.flush_cache {
            let flushed = client
                .fetch(Method::POST, "/flush_cache", Bytes::new())
                .await;
            let (status, _) = flushed.map_err(unreachable)?;
            if !(200..300).contains(&status) {
                return Err(Error::Failed(format!(
                    "--flush-cache: {target} answered {status}: leave it out, or wait until the server is idle"
                )));
            }
        }
        if plan.args.backend != Backend::Sglang && plan.args.model.is_none() {
            let models = client.fetch(Method::GET, "/v1/models", Bytes::new()).await;
            let model = first_model(&models.map_err(unreachable)?);
            let missing = format!("{target}/v1/models names no model: name one with --model");
            plan.args.model = Some(model.ok_or(Error::Failed(missing))?);
        }
        Ok(PreparedRun {
            plan: Arc::new(plan),
            client,
            clock,
        })
    }

    /// When the run begins.
    ///
    /// # Errors
    /// `--start-at` has passed.
    pub(super) fn start(&self) -> Result<Stamp, Error> {
        let now = self.clock.now();
        match self.plan.args.start_at {
            Some(at) => Error::if_past(at, now).map(|()| at),
            None => Ok(now.plus_nanos(START_DELAY_NANOS)),
        }
    }

    /// Runs the schedule, whose offsets count from `started`.
    ///
    /// # Errors
    /// As [`drive`].
    pub(super) async fn run(
        self,
        live: Arc<LiveProgress>,
        stop: Stop,
        started: Stamp,
        outputs: Outputs,
    ) -> Result<Run, Error> {
        let _guard = stop.on_drop();
        let (sender, ended) = mpsc::channel();
        let slots = self.plan.args.max_concurrency.unwrap_or(usize::MAX);
        let dispatch = Arc::new(Dispatch {
            run: self.clone(),
            stop: stop.clone(),
            live: live.clone(),
            slots: Semaphore::new(slots.min(Semaphore::MAX_PERMITS)),
            ended: sender,
        });
        let runtime = Handle::current();
        let thread = std::thread::Builder::new().name("pacer".to_owned());
        let spawned = thread.spawn(move || pace(&dispatch, &runtime, started));
        spawned.map_err(Error::thread)?;
        let _ = live.began.set(started);

        let recorder = Recorder::new(self.clock.clone(), outputs);
        let recorded = tokio::task::spawn_blocking(move || recorder.record_all(&ended));
        let drained = async {
            stop.stopped().await;
            tokio::time::sleep(self.plan.args.drain_timeout_s).await;
            stop.abort();
            std::future::pending().await
        };
        let recorder = tokio::select! {
            // So that whoever waits for the abort is polled before the end.
            biased;
            recorder = recorded => recorder,
            never = drained => never,
        };
        let mut recorder = recorder.map_err(Error::thread)?;
        let ended = self.clock.now();
        let stopped = stop.is_stopped();
        let mut rows = std::mem::take(&mut recorder.in_memory);
        rows.sort_by_key(|row| row.sent_time.or(row.arrival_time).or(row.scheduled_time));
        Ok(Run {
            started,
            ended,
            rows,
            lag: std::mem::take(&mut recorder.lag),
            recorder,
            plan: self.plan,
            dropped: self.client.dropped.load(Ordering::Relaxed),
            stopped,
        })
    }

    /// Sends the warm-up requests one after the other, until the run is stopped.
    ///
    /// # Errors
    /// One of them failed.
    pub async fn warm_up(&self, stop: &Stop) -> Result<(), Error> {
        for index in 0..self.plan.args.warmup_requests {
            let job = Job {
                req_id: format!("{}-warmup-{index}", self.plan.request_id_prefix),
                endpoint: self.plan.args.backend.endpoint(),
                scheduled: None,
                body: self.plan.warmup(index as u64),
            };
            let exchange = self.client.exchange(job, None, stop.stopped()).await;
            if stop.is_stopped() {
                return Ok(());
            }
            if exchange.outcome() != Outcome::Ok {
                let row = exchange.rows.into_iter().next();
                let error = row.and_then(|row| row.error).unwrap_or_default();
                return Err(Error::Failed(format!("a warm-up request failed: {error}")));
            }
        }
        Ok(())
    }
}

/// Returns the id of the first model in a response of `/v1/models`.
fn first_model((status, body): &(u16, Bytes)) -> Option<String> {
    let models = serde_json::from_slice(body).ok();
    let models: serde_json::Value = models.filter(|_| *status == 200)?;
    models["data"][0]["id"].as_str().map(str::to_owned)
}
