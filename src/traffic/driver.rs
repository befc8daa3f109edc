//! The open loop: a thread of its own waits for each request's time on an absolute timer and hands it to
//! the runtime, whatever became of the earlier ones.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Method;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::clock::{Clock, Stamp};
use crate::request::outcome::Outcome;
use crate::request::record::Record;
use crate::request::timeline::Moment;

use super::Error;
use super::client::{Client, Exchange, Job};
use super::clocks;
use super::lag::Lag;
use super::plan::{Plan, Planned};
use super::stop::Stop;
use super::workload::{Backend, Workload};

/// A run about to begin: the target answers, the cache is flushed, the model known.
#[derive(Debug)]
pub struct Ready {
    plan: Plan,
    client: Arc<Client>,
    schedule: Arc<Vec<Planned>>,
    clock: Clock,
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
    due: AtomicUsize,
    under_way: AtomicUsize,
    done: AtomicUsize,
    failed: AtomicUsize,
}

/// What [`Live`] says at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
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
pub async fn drive(plan: Plan, clock: Clock, live: Arc<Live>, stop: Stop) -> Result<Run, Error> {
    Ready::prepare(plan, clock).await?.run(live, stop).await
}

impl Ready {
    /// Makes ready: lays the schedule out, looks the target up and asks what must be known of it.
    ///
    /// # Errors
    /// As [`drive`].
    pub async fn prepare(mut plan: Plan, clock: Clock) -> Result<Ready, Error> {
        plan.check()?;
        let schedule = Arc::new(plan.schedule()?);
        let target = plan.client.target.clone();
        let unreachable = |why: String| Error::Unreachable {
            url: target.to_string(),
            why,
        };
        let client = Client::new(plan.client.clone(), clock.clone()).await;
        let client = Arc::new(client.map_err(|error| unreachable(error.to_string()))?);
        if plan.check_target {
            client.knock().await.map_err(unreachable)?;
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
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Sends the warm-up requests, then runs the schedule.
    ///
    /// # Errors
    /// As [`drive`].
    pub async fn run(self, live: Arc<Live>, stop: Stop) -> Result<Run, Error> {
        self.warm_up(&stop).await?;
        let guard = AbortOnDrop(stop.clone());
        let (done, mut finished) = mpsc::unbounded_channel();
        let (started, start) = oneshot::channel();
        let limit = self.plan.max_concurrency;
        let lane = Arc::new(Dispatch {
            client: self.client.clone(),
            clock: self.clock.clone(),
            stop: stop.clone(),
            live,
            slots: limit.map(|limit| Semaphore::new(limit.min(Semaphore::MAX_PERMITS))),
        });
        let pacer = Pacer {
            dispatch: lane,
            schedule: self.schedule.clone(),
            drafts: Drafts::new(self.plan.workload.clone(), self.schedule.len()),
            endpoint: self.plan.workload.backend.endpoint(),
            runtime: Handle::current(),
            done,
        };
        let thread = std::thread::Builder::new().name("pacer".to_owned());
        let spawned = thread.spawn(move || pacer.run(started));
        spawned.map_err(|error| Error::Thread(error.to_string()))?;

        let mut all: Vec<Done> = Vec::with_capacity(self.schedule.len());
        let drained = async {
            stop.stopped().await;
            tokio::time::sleep(self.plan.drain_timeout).await;
            stop.abort();
            std::future::pending::<()>().await
        };
        tokio::select! {
            () = async { while let Some(done) = finished.recv().await { all.push(done); } } => {}
            () = drained => {}
        }
        let ended = self.clock.now();
        let stopped = stop.is_stopped();
        drop(guard);
        let started = start.await.unwrap_or(ended);
        all.sort_by_key(|done| done.index);
        let lag = Lag::of(all.iter().filter_map(Done::lateness));
        let exchanges = all.into_iter().map(|done| done.exchange).collect();
        let mut records = clocks::relate(exchanges, &self.clock.name());
        records.sort_by_key(|record| {
            let arrived = record.timeline.time(Moment::Arrival);
            arrived.or_else(|| record.timeline.raw(Moment::Scheduled))
        });
        Ok(Run {
            started,
            ended,
            records,
            schedule: self.schedule,
            lag,
            stopped,
        })
    }

    async fn warm_up(&self, stop: &Stop) -> Result<(), Error> {
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
    /// The present counts.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        Counts {
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

/// A request that has ended.
struct Done {
    index: usize,
    scheduled: Stamp,
    slot_nanos: i64,
    exchange: Exchange,
}

impl Done {
    /// How late it was sent by the generator's own fault, nanoseconds, and its wait for a slot.
    fn lateness(&self) -> Option<(i64, i64)> {
        let late = self.exchange.sent?.nanos_since(self.scheduled);
        let own = late - self.slot_nanos - self.exchange.connect_nanos;
        Some((own.max(0), self.slot_nanos))
    }
}

/// Request bodies, made ahead of their time.
struct Drafts {
    workload: Workload,
    ahead: VecDeque<Bytes>,
    bytes: usize,
    next: usize,
    count: usize,
}

impl Drafts {
    fn new(workload: Workload, count: usize) -> Drafts {
        Drafts {
            workload,
            ahead: VecDeque::new(),
            bytes: 0,
            next: 0,
            count,
        }
    }

    /// Makes drafts while there is room and `time` allows.
    fn make(&mut self, time: impl Fn() -> bool) {
        while self.next < self.count && self.bytes < AHEAD_BYTES && time() {
            let draft = self.workload.request(self.next as u64);
            self.next += 1;
            self.bytes += draft.len();
            self.ahead.push_back(draft);
        }
    }

    fn take(&mut self) -> Bytes {
        match self.ahead.pop_front() {
            Some(draft) => {
                self.bytes -= draft.len();
                draft
            }
            None => {
                let draft = self.workload.request(self.next as u64);
                self.next += 1;
                draft
            }
        }
    }
}

/// Hands each request over at its time.
struct Pacer {
    dispatch: Arc<Dispatch>,
    schedule: Arc<Vec<Planned>>,
    drafts: Drafts,
    endpoint: crate::request::endpoint::Endpoint,
    runtime: Handle,
    done: mpsc::UnboundedSender<Done>,
}

impl Pacer {
    fn run(mut self, started: oneshot::Sender<Stamp>) {
        // Else the kernel may wake this thread 50 µs late to save wake-ups; later is not wrong, only less
        // exact, so a refusal does not matter.
        let _ = nix::sys::prctl::set_timerslack(1);
        let clock = self.dispatch.clock.clone();
        self.drafts.make(|| true);
        let start = clock.now().plus_nanos(LEAD_NANOS);
        let _ = started.send(start);
        for (index, planned) in self.schedule.iter().enumerate() {
            let due = start.plus_nanos(planned.offset_nanos);
            self.drafts
                .make(|| due.nanos_since(clock.now()) > MAKING_NANOS);
            if !self.dispatch.wait_until(due) {
                return;
            }
            let job = Job {
                req_id: planned.req_id.clone(),
                endpoint: self.endpoint,
                scheduled: Some(due),
                body: self.drafts.take(),
            };
            self.dispatch.live.due.fetch_add(1, Ordering::Relaxed);
            let (dispatch, done) = (self.dispatch.clone(), self.done.clone());
            self.runtime.spawn(async move {
                // The driver stops listening only when the run was dropped.
                let _ = done.send(dispatch.send(index, due, job).await);
            });
        }
    }
}

/// What the tasks of a run share.
struct Dispatch {
    client: Arc<Client>,
    clock: Clock,
    stop: Stop,
    live: Arc<Live>,
    slots: Option<Semaphore>,
}

impl Dispatch {
    /// Waits, and says whether the run goes on.
    fn wait_until(&self, due: Stamp) -> bool {
        let mut wake = self.clock.now();
        while wake < due && !self.stop.is_stopped() {
            wake = wake.plus_nanos(LOOK_NANOS).min(due);
            self.clock.sleep_until(wake);
        }
        !self.stop.is_stopped()
    }

    async fn send(&self, index: usize, scheduled: Stamp, job: Job) -> Done {
        let (exchange, slot_nanos) = match self.slot(scheduled).await {
            None => (self.client.unsent(&job), 0),
            Some((_permit, waited)) => {
                self.live.under_way.fetch_add(1, Ordering::Relaxed);
                let exchange = self.client.exchange(job, self.stop.aborted()).await;
                self.live.under_way.fetch_sub(1, Ordering::Relaxed);
                (exchange, waited)
            }
        };
        if exchange.observed.outcome() != Outcome::Ok {
            self.live.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.live.done.fetch_add(1, Ordering::Relaxed);
        Done {
            index,
            scheduled,
            slot_nanos,
            exchange,
        }
    }

    /// Waits for a slot, and says how long that took; `None` when the run was stopped meanwhile.
    async fn slot(
        &self,
        scheduled: Stamp,
    ) -> Option<(Option<tokio::sync::SemaphorePermit<'_>>, i64)> {
        let Some(slots) = &self.slots else {
            return Some((None, 0));
        };
        if let Ok(permit) = slots.try_acquire() {
            return Some((Some(permit), 0));
        }
        tokio::select! {
            biased;
            () = self.stop.stopped() => None,
            // The semaphore is never closed.
            permit = slots.acquire() => {
                let waited = self.clock.now().nanos_since(scheduled).max(0);
                permit.ok().map(|permit| (Some(permit), waited))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::endpoint::Endpoint;
    use crate::request::observer::{End, Observer};
    use crate::request::timeline::Side;

    #[test]
    fn waiting_for_a_slot_or_a_connection_is_not_the_generators_own_lateness() {
        let scheduled = Stamp::from_nanos(1_000);
        let lateness = |sent: Option<i64>| {
            let observer = Observer::new(Side::Traffic, Endpoint::Generate, "r".into());
            let exchange = Exchange {
                observed: observer.finish(End::Complete, scheduled),
                stamps: None,
                sent: sent.map(|nanos| scheduled.plus_nanos(nanos)),
                response_head: None,
                connect_nanos: 30,
            };
            let done = Done {
                index: 0,
                scheduled,
                slot_nanos: 200,
                exchange,
            };
            done.lateness()
        };
        assert_eq!(lateness(Some(237)), Some((7, 200)));
        assert_eq!(lateness(Some(229)), Some((0, 200)));
        assert_eq!(lateness(None), None);
    }
}
