//! Runs a plan: prepares the target, sends the warm-up requests, drives the schedule and collects the rows.
//!
//! The loop is open: a thread waits for each request's scheduled time and spawns the task that sends it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use bytes::Bytes;
use http::Method;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::{Clock, Stamp};
use crate::error::Error;
use crate::request::{Outcome, Row};

use super::args::Backend;
use super::client::{Client, Exchange, Job, Reply};
use super::control::{LiveProgress, Stop, cannot_start};
use super::plan::RunPlan;
use super::rows::{Outputs, Recorder};
use super::verdict::Lag;

/// A run about to begin: the target is reachable, the cache is flushed, the model is known.
#[derive(Clone)]
pub struct PreparedRun {
    pub(super) plan: Arc<RunPlan>,
    pub(super) client: Arc<Client>,
    pub(super) clock: Clock,
}

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
    /// The number of the signal that stopped the run before its end; SIGINT's, if it was stopped by a handle.
    pub stopped: Option<u8>,
    /// What was planned, also of requests that were not sent.
    pub plan: Arc<RunPlan>,
    /// Requests that got no connection because this machine had no file descriptors or ports left.
    pub(super) dropped: u64,
}

/// A body is built ahead of time only if the next request is due later than this.
const MIN_BUILD_NANOS: i64 = 2_000_000;
/// The pacing thread checks at least this often whether the run was stopped.
const STOP_CHECK_PERIOD_NANOS: i64 = 50_000_000;
/// Bodies are built ahead of time, so that building one does not delay a send, until they have this many bytes.
const MAX_PREBUILT_BYTES: usize = 64 << 20;

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
    let start = prepared.plan.start(prepared.clock.now())?;
    let (run, _) = prepared.run(live, stop, start, Outputs::default()).await?;
    Ok(run)
}

impl PreparedRun {
    /// Checks that the target can be reached, flushes its cache if asked to, and looks up the model's name.
    ///
    /// # Errors
    /// As [`drive`].
    pub async fn new(mut plan: RunPlan, clock: Clock) -> Result<PreparedRun, Error> {
        let target = plan.client.target.clone();
        let unreachable = |cause: String| Error::failed(format!("cannot reach {target}: {cause}"));
        let client = Client::new(plan.client.clone(), clock.clone()).await;
        let client = Arc::new(client.map_err(|error| unreachable(error.to_string()))?);
        client.preconnect().await.map_err(unreachable)?;
        if plan.args.flush_cache {
            let flush = client.fetch(Method::POST, "/flush_cache", Bytes::new());
            let (status, _) = flush.await.map_err(unreachable)?;
            if !(200..300).contains(&status) {
                return Err(Error::failed(format!(
                    "--flush-cache: {target} answered {status}: leave it out, or wait until the server is idle"
                )));
            }
        }
        if plan.args.backend != Backend::Sglang && plan.args.model.is_none() {
            let models = client.fetch(Method::GET, "/v1/models", Bytes::new()).await;
            let model = first_model(&models.map_err(unreachable)?);
            let missing = format!("{target}/v1/models names no model: name one with --model");
            plan.args.model = Some(model.ok_or(Error::failed(missing))?);
        }
        Ok(PreparedRun {
            plan: Arc::new(plan),
            client,
            clock,
        })
    }

    /// Runs the schedule, whose offsets count from `started`. The recorder may still hold rows.
    ///
    /// # Errors
    /// As [`drive`].
    pub(super) async fn run(
        self,
        live: Arc<LiveProgress>,
        stop: Stop,
        started: Stamp,
        outputs: Outputs,
    ) -> Result<(Run, Recorder), Error> {
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
        spawned.map_err(cannot_start)?;
        let _ = live.began.set(started);

        let clock = self.clock.clone();
        let recording = move || Recorder::record_all(clock, outputs, &ended);
        let recorded = tokio::task::spawn_blocking(recording);
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
        let mut recorder = recorder.map_err(cannot_start)?;
        let ended = self.clock.now();
        let stopped = stop.is_stopped().then(|| stop.signal());
        let mut rows = std::mem::take(&mut recorder.in_memory);
        rows.sort_by_key(|row| row.sent_time.or(row.arrival_time).or(row.scheduled_time));
        let run = Run {
            started,
            ended,
            rows,
            lag: std::mem::take(&mut recorder.lag),
            plan: self.plan,
            dropped: self.client.dropped.load(Ordering::Relaxed),
            stopped,
        };
        Ok((run, recorder))
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
                return Err(Error::failed(format!("a warm-up request failed: {error}")));
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

/// Spawns the task of each request at its time. `start` is the time that the schedule's offsets count from.
fn pace(dispatch: &Arc<Dispatch>, runtime: &Handle, start: Stamp) {
    // By default the kernel may wake this thread 50 µs late to save wake-ups. A refusal only makes sends less exact.
    let _ = nix::sys::prctl::set_timerslack(1);
    let (run, mut bodies) = (&dispatch.run, VecDeque::new());
    // The requests whose bodies are not built yet, and the bytes of those that are.
    let (mut ahead, mut bytes) = (run.plan.schedule(), 0);
    for (number, offset) in run.plan.schedule() {
        let at = start.plus_nanos(offset);
        while bytes < MAX_PREBUILT_BYTES
            && at.nanos_since(run.clock.now()) > MIN_BUILD_NANOS
            && dispatch.slots.available_permits() > 0
            && let Some((next, _)) = ahead.next()
        {
            let body = run.plan.request(next);
            bytes += body.len();
            bodies.push_back(body);
        }
        if !dispatch.wait_until(at) {
            return;
        }
        let body = bodies.pop_front();
        match &body {
            Some(body) => bytes -= body.len(),
            None => drop(ahead.next()),
        }
        runtime.spawn(dispatch.clone().serve(number, at, body));
    }
}

/// What the tasks of a run share.
struct Dispatch {
    run: PreparedRun,
    stop: Stop,
    live: Arc<LiveProgress>,
    /// The slots of `--max-concurrency`. The semaphore is fair: requests get them in their order.
    slots: Semaphore,
    ended: mpsc::Sender<Exchange>,
}

impl Dispatch {
    /// Blocks until `due`; returns whether the run goes on.
    fn wait_until(&self, due: Stamp) -> bool {
        let clock = &self.run.clock;
        let mut wake = clock.now();
        while wake < due && !self.stop.is_stopped() {
            wake = wake.plus_nanos(STOP_CHECK_PERIOD_NANOS).min(due);
            clock.sleep_until(wake);
        }
        !self.stop.is_stopped()
    }

    /// Sends a request that is due, or all turns of a conversation: each later turn is due when the reply before it has ended and
    /// the think time has passed.
    async fn serve(self: Arc<Dispatch>, number: u64, mut due: Stamp, mut body: Option<Bytes>) {
        let live = &self.live;
        let PreparedRun {
            plan,
            client,
            clock,
        } = &self.run;
        let mut prompt = None;
        for turn in 0..plan.turns(number) {
            live.count(|counts| counts.due += 1);
            let (slot, slot_nanos) = self.acquire_slot().await;
            let job = Job {
                req_id: plan.req_id(plan.request_index(number, turn)),
                endpoint: plan.args.backend.endpoint(),
                scheduled: Some(due),
                body: body.take().unwrap_or_else(|| plan.request(number)),
            };
            let Some(slot) = slot else {
                return self.finish(client.unsent(&job), slot_nanos);
            };
            let next = plan.follow_up(number, turn + 1);
            let mut reply = next.is_some().then(Reply::default);
            live.count(|counts| counts.in_flight += 1);
            let exchange = client.exchange(job, reply.as_mut(), self.stop.aborted());
            // Boxed, so that a task that waits for its slot is small.
            let exchange = Box::pin(exchange).await;
            live.count(|counts| counts.in_flight -= 1);
            drop(slot);
            let ended = clock.now();
            let reply = reply.filter(|_| exchange.outcome() == Outcome::Ok);
            self.finish(exchange, slot_nanos);
            let Some((next, reply)) = next.zip(reply.and_then(Reply::text)) else {
                return;
            };
            let prompt = prompt.get_or_insert_with(|| plan.prompt(number).0);
            next.append_to(prompt, &reply);
            body = Some(plan.body(prompt.clone(), next.output_length));
            due = ended.plus_nanos(next.think_ns);
            tokio::select! {
                () = clock.wait_until(due) => {}
                () = self.stop.stopped() => return,
            }
        }
    }

    /// Waits for a slot; `None` if the run is stopped. Also returns how long it waited, in nanoseconds: from this call on, not from
    /// when the request was due, as the time until this call is the generator's own lateness.
    async fn acquire_slot(&self) -> (Option<SemaphorePermit<'_>>, i64) {
        if self.stop.is_stopped() {
            return (None, 0);
        }
        if let Ok(slot) = self.slots.try_acquire() {
            return (Some(slot), 0);
        }
        let clock = &self.run.clock;
        let began = clock.now();
        let slot = tokio::select! {
            biased;
            () = self.stop.stopped() => None,
            slot = self.slots.acquire() => slot.ok(),
        };
        (slot, clock.now().nanos_since(began).max(0))
    }

    /// Counts a request that has ended, and hands it to the recorder.
    fn finish(&self, mut exchange: Exchange, slot_nanos: i64) {
        exchange.slot_nanos = slot_nanos;
        self.live.count(|counts| {
            counts.failed += usize::from(exchange.outcome() != Outcome::Ok);
            counts.done += 1;
        });
        // Fails only if the run was dropped.
        let _ = self.ended.send(exchange);
    }
}
