//! The open loop: a thread of its own waits for each request's time on an absolute timer and hands it to
//! the runtime, whatever became of the earlier ones.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::Method;
use tokio::runtime::Handle;
use tokio::sync::{SetOnce, mpsc, oneshot};

use crate::clock::{Clock, Stamp};
use crate::request::outcome::Outcome;
use crate::request::record::Record;

use super::client::{Client, Exchange, Job};
use super::ended::{Done, Ended, Files};
use super::error::Error;
use super::lag::Lag;
use super::plan::{Planned, RunPlan};
use super::slots::{Admission, Slots};
use super::stop::Stop;
use super::workload::{Backend, Workload};

/// A run about to begin: the target answers, the cache is flushed, the model known.
#[derive(Debug)]
pub struct Ready {
    plan: RunPlan,
    client: Arc<Client>,
    schedule: Arc<Vec<Planned>>,
    clock: Clock,
}

/// A run that is over, its requests still as they ended.
#[derive(Debug)]
pub(super) struct Driven {
    pub(super) started: Stamp,
    pub(super) ended: Stamp,
    pub(super) requests: Ended,
    pub(super) schedule: Arc<Vec<Planned>>,
    pub(super) stopped: bool,
}

/// A run that is over.
#[derive(Debug)]
pub struct Run {
    /// The moment that all scheduled offsets count from.
    pub started: Stamp,
    /// When the last request was done.
    pub ended: Stamp,
    /// A row for each request that was due (more where one generates several sequences), in order of
    /// arrival.
    pub records: Vec<Record>,
    /// The schedule, also of what was no longer sent.
    pub schedule: Arc<Vec<Planned>>,
    /// The generator's own lateness.
    pub lag: Lag,
    /// Whether it was stopped from outside.
    pub stopped: bool,
}

/// A run's progress, for who looks on.
#[derive(Debug, Default)]
pub struct Live {
    began: SetOnce<Stamp>,
    due: AtomicUsize,
    under_way: AtomicUsize,
    done: AtomicUsize,
    failed: AtomicUsize,
}

/// What [`Live`] says at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Requests whose time has come.
    pub due: usize,
    /// Requests sent and not yet answered whole.
    pub under_way: usize,
    /// Requests that have ended.
    pub done: usize,
    /// Of these, how many not well.
    pub failed: usize,
}

/// Drafts are made ahead of their time up to this many bytes, so that a request's making delays no sending.
const AHEAD_BYTES: usize = 64 << 20;
/// No draft is begun closer than this to the next sending.
const MAKING_NANOS: i64 = 2_000_000;
/// The pacing thread looks at least this often whether the run was stopped.
const LOOK_NANOS: i64 = 50_000_000;
/// The run begins this long after everything is ready, so that its first requests are not late already.
const LEAD_NANOS: i64 = 10_000_000;

/// Runs a plan, in the runtime of the caller. Dropping it ends the run.
///
/// # Errors
/// The plan makes no sense, the target does not answer, or a warm-up request fails. A failed request of the
/// run is no error but a row.
pub async fn drive(plan: RunPlan, clock: Clock, live: Arc<Live>, stop: Stop) -> Result<Run, Error> {
    let ready = Ready::prepare(plan, clock).await?;
    ready.warm_up(&stop).await?;
    let driven = ready.run(live, stop, None).await?;
    let mut records = Vec::new();
    let requests = &driven.requests;
    let clocks = requests.clocks();
    let kept =
        clocks.and_then(|clocks| requests.each(&clocks, |mut rows| records.append(&mut rows)));
    kept.map_err(|error| Error::Lost(error.to_string()))?;
    Ok(Run {
        started: driven.started,
        ended: driven.ended,
        records,
        lag: driven.requests.lag(),
        schedule: driven.schedule,
        stopped: driven.stopped,
    })
}

impl Ready {
    /// Makes ready: lays the schedule out, looks the target up and asks what must be known of it.
    ///
    /// # Errors
    /// As [`drive`].
    pub async fn prepare(mut plan: RunPlan, clock: Clock) -> Result<Ready, Error> {
        plan.workload.check()?;
        let schedule = Arc::new(plan.schedule()?);
        let target = plan.client.target.clone();
        let unreachable = |why: String| Error::Unreachable {
            url: target.to_string(),
            why,
        };
        let client = Client::new(plan.client.clone(), clock.clone()).await;
        let client = Arc::new(client.map_err(|error| unreachable(error.to_string()))?);
        if plan.check_target {
            client.preconnect().await.map_err(unreachable)?;
        }
        if plan.flush_cache {
            let flushed = client.ask(Method::POST, "/flush_cache").await;
            match flushed {
                Ok((200..=299, _)) => {}
                Ok((status, _)) => {
                    return Err(Error::Refused(format!(
                        "--flush-cache: {target} answered {status}: leave it out, or wait until the \
                         server is idle"
                    )));
                }
                Err(why) => return Err(unreachable(why)),
            }
        }
        if plan.workload.backend != Backend::Sglang && plan.workload.options.model.is_none() {
            let listed = client.ask(Method::GET, "/v1/models").await;
            let model = first_model(&listed.map_err(unreachable)?);
            let none = || {
                Error::Refused(format!(
                    "{target}/v1/models names no model: name one with --model"
                ))
            };
            plan.workload.options.model = Some(model.ok_or_else(none)?);
        }
        Ok(Ready {
            plan,
            client,
            schedule,
            clock,
        })
    }

    /// The schedule to come.
    pub fn schedule(&self) -> &[Planned] {
        &self.schedule
    }

    /// The plan, with what the target was asked for filled in.
    pub fn plan(&self) -> &RunPlan {
        &self.plan
    }

    /// Runs the schedule. What ends goes to `files`, else stays in memory.
    ///
    /// # Errors
    /// As [`drive`].
    pub(super) async fn run(
        self,
        live: Arc<Live>,
        stop: Stop,
        files: Option<Files>,
    ) -> Result<Driven, Error> {
        let guard = AbortOnDrop(stop.clone());
        let (done, finished) = mpsc::unbounded_channel();
        let (started, start) = oneshot::channel();
        let dispatch = Arc::new(Dispatch {
            client: self.client.clone(),
            clock: self.clock.clone(),
            stop: stop.clone(),
            live,
            slots: Slots::new(self.plan.max_concurrency),
            plan: self.plan,
            schedule: self.schedule.clone(),
            start: OnceLock::new(),
            done,
        });
        let pacer = Pacer {
            drafts: Drafts::new(self.schedule.len()),
            dispatch: dispatch.clone(),
            runtime: Handle::current(),
        };
        let thread = std::thread::Builder::new().name("pacer".to_owned());
        let spawned = thread.spawn(move || pacer.run(started));
        spawned.map_err(Error::thread)?;
        let started = start.await.unwrap_or_else(|_| self.clock.now());
        // Told once: this is the run's only beginning.
        let _ = dispatch.live.began.set(started);

        let ended = Ended::new(self.clock.name(), started, files);
        let mut taken = tokio::task::spawn_blocking(move || ended.take_all(finished));
        let drain_timeout = dispatch.plan.drain_timeout;
        let gives_up = Arc::downgrade(&dispatch);
        drop(dispatch);
        let drained = async {
            stop.stopped().await;
            if let Some(dispatch) = gives_up.upgrade() {
                dispatch.give_up_waiting();
            }
            tokio::time::sleep(drain_timeout).await;
            stop.abort();
            std::future::pending().await
        };
        let requests = tokio::select! {
            taken = &mut taken => taken,
            never = drained => never,
        };
        let requests = requests.map_err(Error::thread)?;
        let ended = self.clock.now();
        let stopped = stop.is_stopped();
        drop(guard);
        Ok(Driven {
            started,
            ended,
            requests,
            schedule: self.schedule,
            stopped,
        })
    }

    /// Sends the warm-up requests; stopped, it sends no more of them.
    ///
    /// # Errors
    /// [`Error::Warmup`].
    pub async fn warm_up(&self, stop: &Stop) -> Result<(), Error> {
        for index in 0..self.plan.warmup_requests {
            let job = Job {
                req_id: format!("{}-warmup-{index}", self.plan.request_id_prefix),
                endpoint: self.plan.workload.backend.endpoint(),
                scheduled: None,
                body: self.plan.workload.warmup(index as u64),
            };
            let exchange = self.client.exchange(job, stop.stopped()).await;
            if stop.is_stopped() {
                return Ok(());
            }
            if exchange.observed.outcome() != Outcome::Ok {
                let record = exchange.observed.into_records(None).into_iter().next();
                let why = record.map_or_else(String::new, |record| record.facts.error);
                return Err(Error::Warmup(why));
            }
        }
        Ok(())
    }
}

/// The id of the first model in the answer of `/v1/models`.
fn first_model((status, body): &(u16, Bytes)) -> Option<String> {
    if *status != 200 {
        return None;
    }
    let listed: serde_json::Value = serde_json::from_slice(body).ok()?;
    let model = listed.get("data")?.get(0)?.get("id")?.as_str()?;
    Some(model.to_owned())
}

impl Live {
    /// The moment that all scheduled offsets count from, when it has come.
    pub async fn began(&self) -> Stamp {
        *self.began.wait().await
    }

    /// The present counts.
    pub fn counts(&self) -> Progress {
        let read = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        Progress {
            due: read(&self.due),
            under_way: read(&self.under_way),
            done: read(&self.done),
            failed: read(&self.failed),
        }
    }
}

/// Ends the requests of a run whose driver was dropped.
struct AbortOnDrop(Stop);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Request bodies, made ahead of their time.
struct Drafts {
    ahead: VecDeque<Bytes>,
    bytes: usize,
    next: usize,
    count: usize,
}

impl Drafts {
    fn new(count: usize) -> Drafts {
        Drafts {
            ahead: VecDeque::new(),
            bytes: 0,
            next: 0,
            count,
        }
    }

    /// Makes drafts while there is room and `time` allows.
    fn make(&mut self, workload: &Workload, time: impl Fn() -> bool) {
        while self.next < self.count && self.bytes < AHEAD_BYTES && time() {
            let draft = workload.request(self.next as u64);
            self.next += 1;
            self.bytes += draft.len();
            self.ahead.push_back(draft);
        }
    }

    /// The next one, if it is made.
    fn take(&mut self) -> Option<Bytes> {
        let draft = self.ahead.pop_front();
        match &draft {
            Some(draft) => self.bytes -= draft.len(),
            None => self.next += 1,
        }
        draft
    }
}

/// Hands each request over at its time.
struct Pacer {
    dispatch: Arc<Dispatch>,
    drafts: Drafts,
    runtime: Handle,
}

impl Pacer {
    fn run(mut self, started: oneshot::Sender<Stamp>) {
        // Else the kernel may wake this thread 50 µs late to save wake-ups; later is not wrong, only less
        // exact, so a refusal does not matter.
        let _ = nix::sys::prctl::set_timerslack(1);
        let dispatch = self.dispatch.clone();
        let (clock, workload) = (&dispatch.clock, &dispatch.plan.workload);
        self.drafts.make(workload, || true);
        let start = *dispatch
            .start
            .get_or_init(|| clock.now().plus_nanos(LEAD_NANOS));
        let _ = started.send(start);
        for index in 0..dispatch.schedule.len() {
            let due = dispatch.due(index);
            self.drafts.make(workload, || {
                due.nanos_since(clock.now()) > MAKING_NANOS && !dispatch.slots.is_full()
            });
            if !dispatch.wait_until(due) {
                return;
            }
            let draft = self.drafts.take();
            dispatch.live.due.fetch_add(1, Ordering::Relaxed);
            match dispatch.slots.enter(index) {
                Admission::Slot => {
                    self.runtime.spawn(dispatch.clone().serve(index, draft));
                }
                Admission::Waits => {}
                Admission::Closed => dispatch.give_up(index),
            }
        }
    }
}

/// What the tasks of a run share.
struct Dispatch {
    client: Arc<Client>,
    clock: Clock,
    stop: Stop,
    live: Arc<Live>,
    slots: Slots,
    plan: RunPlan,
    schedule: Arc<Vec<Planned>>,
    start: OnceLock<Stamp>,
    done: mpsc::UnboundedSender<Done>,
}

impl Dispatch {
    /// When the request at this place of the schedule is due.
    fn due(&self, index: usize) -> Stamp {
        let start = self.start.get().copied();
        let start = start.unwrap_or_else(|| self.clock.now());
        let planned = self.schedule.get(index);
        start.plus_nanos(planned.map_or(0, |planned| planned.offset_nanos))
    }

    /// Waits, and says whether the run goes on.
    fn wait_until(&self, due: Stamp) -> bool {
        let mut wake = self.clock.now();
        while wake < due && !self.stop.is_stopped() {
            wake = wake.plus_nanos(LOOK_NANOS).min(due);
            self.clock.sleep_until(wake);
        }
        !self.stop.is_stopped()
    }

    /// Sends the request, which has a slot, and then those that wait for it, one after the other.
    async fn serve(self: Arc<Dispatch>, index: usize, draft: Option<Bytes>) {
        let mut next = Some((index, draft, 0));
        while let Some((index, draft, slot_nanos)) = next {
            let body = draft.unwrap_or_else(|| self.plan.workload.request(index as u64));
            let job = self.job(index, body);
            self.live.under_way.fetch_add(1, Ordering::Relaxed);
            let exchange = self.client.exchange(job, self.stop.aborted()).await;
            self.live.under_way.fetch_sub(1, Ordering::Relaxed);
            self.end(index, slot_nanos, exchange);
            next = self.slots.next().map(|index| {
                let waited = self.clock.now().nanos_since(self.due(index));
                (index, None, waited.max(0))
            });
        }
    }

    /// Ends the requests that still wait for a slot.
    fn give_up_waiting(&self) {
        for index in self.slots.close() {
            self.give_up(index);
        }
    }

    /// Ends a request that was due, but never sent.
    fn give_up(&self, index: usize) {
        let body = self.plan.workload.request(index as u64);
        let exchange = self.client.unsent(&self.job(index, body));
        self.end(index, 0, exchange);
    }

    fn job(&self, index: usize, body: Bytes) -> Job {
        Job {
            req_id: self.plan.req_id(index),
            endpoint: self.plan.workload.backend.endpoint(),
            scheduled: Some(self.due(index)),
            body,
        }
    }

    fn end(&self, index: usize, slot_nanos: i64, exchange: Exchange) {
        if exchange.observed.outcome() != Outcome::Ok {
            self.live.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.live.done.fetch_add(1, Ordering::Relaxed);
        // Nobody listens any more only when the run was dropped.
        let _ = self.done.send(Done {
            index,
            scheduled: self.due(index),
            slot_nanos,
            exchange,
        });
    }
}
