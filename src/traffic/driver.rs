//! The open loop: a thread of its own waits for each request's time on an absolute timer and hands it to
//! the runtime, whatever became of the earlier ones.

use std::sync::Arc;
use std::sync::mpsc;

use bytes::Bytes;
use http::Method;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use crate::clock::{Clock, Stamp};
use crate::request::outcome::Outcome;
use crate::request::row::Row;

use super::client::{Client, Job};
use super::dispatch::{Dispatch, Ready, pace};
use super::error::Error;
use super::lag::Lag;
use super::plan::{Planned, RunPlan};
use super::progress::Live;
use super::rows::{Outputs, Recorder};
use super::stop::{Stop, aside};
use super::workload::Backend;

/// A run that is over.
#[derive(Debug)]
pub struct Run {
    /// The moment that all scheduled offsets count from.
    pub started: Stamp,
    /// When the last request was done.
    pub ended: Stamp,
    /// A row for each request that was due (more where one generates several sequences), in order of
    /// arrival; none where they went to a file.
    pub records: Vec<Row>,
    /// The schedule, also of what was no longer sent.
    pub schedule: Arc<Vec<Planned>>,
    /// The generator's own lateness.
    pub lag: Lag,
    /// Whether it was stopped from outside.
    pub stopped: bool,
    pub(super) rows: Recorder,
    pub(super) plan: Arc<RunPlan>,
    /// Turns of the conversations that had begun that were never due; `None` where there are no conversations.
    pub(super) turns_not_sent: Option<usize>,
    /// Requests that got no connection as this machine gave no more files or ports.
    pub(super) dropped: u64,
}

/// Runs a plan, in the runtime of the caller. Dropping it ends the run.
///
/// # Errors
/// The plan makes no sense, the target does not answer, or a warm-up request fails. A failed request of the
/// run is no error but a row.
pub async fn drive(plan: RunPlan, clock: Clock, live: Arc<Live>, stop: Stop) -> Result<Run, Error> {
    let ready = Ready::prepare(plan, clock).await?;
    ready.warm_up(&stop).await?;
    ready.run(live, stop, Outputs::default()).await
}

impl Run {
    /// What a reader of the figures must know of turns that were not sent.
    pub(super) fn warning(&self) -> Option<String> {
        let not_sent = self.turns_not_sent.filter(|not_sent| *not_sent > 0);
        not_sent.map(|not_sent| {
            let stop = if self.stopped { ", or the run was stopped" } else { "" };
            format!(
                "{not_sent} turns of conversations were not sent: one before them went wrong, or its reply was longer than 1 MiB{stop}"
            )
        })
    }
}

impl Ready {
    /// Makes ready: lays the schedule out, looks the target up and asks what must be known of it.
    ///
    /// # Errors
    /// As [`drive`].
    pub async fn prepare(plan: RunPlan, clock: Clock) -> Result<Ready, Error> {
        let laid_out = aside(move || {
            let schedule = plan.schedule()?;
            Ok::<_, Error>((plan, schedule))
        });
        let (mut plan, schedule) = laid_out.await??;
        let schedule = Arc::new(schedule);
        let target = plan.client.target.clone();
        let unreachable = |why: String| Error::Failed(format!("cannot reach {target}: {why}"));
        let client = Client::new(plan.client.clone(), clock.clone()).await;
        let client = Arc::new(client.map_err(|error| unreachable(error.to_string()))?);
        if plan.check_target {
            client.preconnect().await.map_err(unreachable)?;
        }
        if plan.args.flush_cache {
            let flushed = client.ask(Method::POST, "/flush_cache", Bytes::new()).await;
            let (status, _) = flushed.map_err(unreachable)?;
            if !(200..300).contains(&status) {
                return Err(Error::Failed(format!(
                    "--flush-cache: {target} answered {status}: leave it out, or wait until the server is idle"
                )));
            }
        }
        if plan.args.backend != Backend::Sglang && plan.args.model.is_none() {
            let listed = client.ask(Method::GET, "/v1/models", Bytes::new()).await;
            let model = first_model(&listed.map_err(unreachable)?);
            let none = || {
                Error::Failed(format!(
                    "{target}/v1/models names no model: name one with --model"
                ))
            };
            plan.args.model = Some(model.ok_or_else(none)?);
        }
        Ok(Ready {
            plan: Arc::new(plan),
            client,
            schedule,
            clock,
        })
    }

    /// Runs the schedule.
    ///
    /// # Errors
    /// As [`drive`].
    pub(super) async fn run(
        self,
        live: Arc<Live>,
        stop: Stop,
        outputs: Outputs,
    ) -> Result<Run, Error> {
        if let Some(at) = self.plan.args.start_at {
            Error::if_past(at, self.clock.now())?;
        }
        let _guard = stop.on_drop();
        let (done, ended) = mpsc::channel();
        let (started, start) = oneshot::channel();
        let slots = self.plan.args.max_concurrency.unwrap_or(usize::MAX);
        let dispatch = Arc::new(Dispatch {
            ready: self.clone(),
            stop: stop.clone(),
            live: live.clone(),
            slots: Semaphore::new(slots.min(Semaphore::MAX_PERMITS)),
            done,
        });
        let runtime = Handle::current();
        let thread = std::thread::Builder::new().name("pacer".to_owned());
        let spawned = thread.spawn(move || pace(&dispatch, &runtime, started));
        spawned.map_err(Error::thread)?;
        let started = start.await.unwrap_or_else(|_| self.clock.now());
        // Told once: this is the run's only beginning.
        let _ = live.began.set(started);

        let rows = Recorder::new(self.clock.clone(), started, outputs);
        let taken = tokio::task::spawn_blocking(move || rows.take_all(&ended));
        let drained = async {
            stop.stopped().await;
            tokio::time::sleep(self.plan.args.drain_timeout_s).await;
            stop.abort();
            std::future::pending().await
        };
        let rows = tokio::select! {
            taken = taken => taken,
            never = drained => never,
        };
        let mut rows = rows.map_err(Error::thread)?;
        let ended = self.clock.now();
        let stopped = stop.is_stopped();
        let mut records = std::mem::take(&mut rows.kept);
        records.sort_by_key(|row| row.sent_time.or(row.arrival_time).or(row.scheduled_time));
        let has_turns = self.plan.most_turns > 1;
        Ok(Run {
            started,
            ended,
            records,
            lag: std::mem::take(&mut rows.lag),
            rows,
            schedule: self.schedule,
            plan: self.plan,
            dropped: self.client.dropped(),
            turns_not_sent: has_turns.then(|| live.counts().turns_to_come),
            stopped,
        })
    }

    /// Sends the warm-up requests; stopped, it sends no more of them.
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
                let why = row.and_then(|row| row.error).unwrap_or_default();
                return Err(Error::Failed(format!("a warm-up request failed: {why}")));
            }
        }
        Ok(())
    }
}

/// The id of the first model in the answer of `/v1/models`.
fn first_model((status, body): &(u16, Bytes)) -> Option<String> {
    let listed = serde_json::from_slice(body).ok();
    let listed: serde_json::Value = listed.filter(|_| *status == 200)?;
    listed["data"][0]["id"].as_str().map(str::to_owned)
}
