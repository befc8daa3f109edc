//! The open loop: a thread of its own waits for each request's time on an absolute timer and hands it to
//! the runtime, whatever became of the earlier ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Method;
use tokio::runtime::Handle;
use tokio::sync::{SetOnce, mpsc, oneshot};

use crate::clock::{Clock, Stamp};
use crate::request::outcome::Outcome;
use crate::request::record::Record;

use super::client::{Client, Exchange, Job, Reply};
use super::drafts::Drafts;
use super::ended::{Done, Ended, Files};
use super::error::Error;
use super::lag::Lag;
use super::plan::{Planned, RunPlan};
use super::slots::{Admission, Due, Slots};
use super::stop::Stop;
use super::turns::Turns;
use super::workload::Backend;
use super::workload::conversation::{FollowUp, next_body};

/// A run about to begin: the target answers, the cache is flushed, the model known.
#[derive(Debug)]
pub struct Ready {
    plan: Arc<RunPlan>,
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
    pub(super) plan: Arc<RunPlan>,
    /// Turns of conversations that were not sent, as one before them went wrong.
    pub(super) turns_not_sent: usize,
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
        lag: Lag::of(driven.requests.sendings()),
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
            plan: Arc::new(plan),
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
        if let Some(at) = self.plan.start_at {
            Error::if_past(at, self.clock.now())?;
        }
        let guard = AbortOnDrop(stop.clone());
        let (done, finished) = mpsc::unbounded_channel();
        let (started, start) = oneshot::channel();
        let has_turns = self.plan.workload.most_turns() > 1;
        let turns = has_turns.then(|| Arc::new(Turns::new(self.schedule.len())));
        let dispatch = Arc::new(Dispatch {
            client: self.client.clone(),
            clock: self.clock.clone(),
            stop: stop.clone(),
            live,
            slots: Slots::new(self.plan.max_concurrency),
            turns: turns.clone(),
            plan: self.plan.clone(),
            schedule: self.schedule.clone(),
            done,
        });
        let pacer = Pacer {
            drafts: Drafts::new(self.schedule.clone()),
            dispatch: dispatch.clone(),
            runtime: Handle::current(),
        };
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        if let Some(turns) = turns.clone() {
            let (dispatch, runtime) = (dispatch.clone(), Handle::current());
            let spawned = thread("turns").spawn(move || dispatch.pace_turns(&turns, &runtime));
            spawned.map_err(Error::thread)?;
        }
        let spawned = thread("pacer").spawn(move || pacer.run(started));
        spawned.map_err(Error::thread)?;
        let started = start.await.unwrap_or_else(|_| self.clock.now());
        // Told once: this is the run's only beginning.
        let _ = dispatch.live.began.set(started);

        let ended = Ended::new(self.clock.name(), started, files);
        let mut taken = tokio::task::spawn_blocking(move || ended.take_all(finished));
        let drain_timeout = self.plan.drain_timeout;
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
            plan: self.plan,
            turns_not_sent: turns.map_or(0, |turns| turns.not_sent()),
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
            let exchange = self.client.exchange(job, None, stop.stopped()).await;
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

/// Hands each request over at its time.
struct Pacer {
    dispatch: Arc<Dispatch>,
    drafts: Drafts,
    runtime: Handle,
}

impl Pacer {
    fn run(mut self, started: oneshot::Sender<Stamp>) {
        exact_timers();
        let dispatch = self.dispatch.clone();
        let (clock, plan) = (&dispatch.clock, &dispatch.plan);
        let is_far = |at: Stamp| at.nanos_since(clock.now()) > MAKING_NANOS;
        let is_time = || plan.start_at.is_none_or(is_far);
        self.drafts.make(&plan.workload, is_time);
        let start = plan.start_at;
        let start = start.unwrap_or_else(|| clock.now().plus_nanos(LEAD_NANOS));
        let _ = started.send(start);
        let schedule = dispatch.schedule.clone();
        for planned in schedule.iter() {
            let at = start.plus_nanos(planned.offset_nanos);
            self.drafts
                .make(&plan.workload, || is_far(at) && !dispatch.slots.is_full());
            if !dispatch.wait_until(at) {
                return;
            }
            let draft = self.drafts.take();
            let place = plan.place(planned.number, 0);
            dispatch.hand_over(Due { place, at, draft }, &self.runtime);
        }
    }
}

/// Else the kernel may wake this thread 50 µs late to save wake-ups; later is not wrong, only less exact, so a refusal
/// does not matter.
fn exact_timers() {
    let _ = nix::sys::prctl::set_timerslack(1);
}

/// What the tasks of a run share.
struct Dispatch {
    client: Arc<Client>,
    clock: Clock,
    stop: Stop,
    live: Arc<Live>,
    slots: Slots,
    plan: Arc<RunPlan>,
    schedule: Arc<Vec<Planned>>,
    /// Of a run of conversations.
    turns: Option<Arc<Turns>>,
    done: mpsc::UnboundedSender<Done>,
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

    /// A request's time has come.
    fn hand_over(self: &Arc<Dispatch>, due: Due, runtime: &Handle) {
        self.live.due.fetch_add(1, Ordering::Relaxed);
        let (_, turn) = self.plan.at_place(due.place);
        match self.slots.enter(due, turn > 0) {
            Admission::Slot(due) => {
                runtime.spawn(self.clone().serve(due));
            }
            Admission::Waits => {}
            Admission::Closed(due) => self.give_up(due),
        }
    }

    /// Hands over the later turns of conversations, each at its time.
    fn pace_turns(self: &Arc<Dispatch>, turns: &Turns, runtime: &Handle) {
        exact_timers();
        while let Some(due) = turns.next(&self.clock, || self.stop.is_stopped()) {
            self.hand_over(due, runtime);
        }
    }

    /// Sends the request, which has a slot, and then those that wait for it, one after the other.
    async fn serve(self: Arc<Dispatch>, due: Due) {
        let mut next = Some((due, 0));
        while let Some((due, slot_nanos)) = next {
            let (place, at) = (due.place, due.at);
            let (job, later) = (self.job(due), self.later(place));
            let sent = job.body.clone();
            let mut reply = later.is_some().then(Reply::default);
            self.live.under_way.fetch_add(1, Ordering::Relaxed);
            let exchange = self
                .client
                .exchange(job, reply.as_mut(), self.stop.aborted())
                .await;
            self.live.under_way.fetch_sub(1, Ordering::Relaxed);
            let reply = reply.filter(|_| exchange.observed.outcome() == Outcome::Ok);
            self.go_on(place, &sent, later.zip(reply));
            self.end(place, at, slot_nanos, exchange);
            next = self.slots.next().map(|due| {
                let waited = self.clock.now().nanos_since(due.at);
                (due, waited.max(0))
            });
        }
    }

    /// The turn after the one at this place, if there is one.
    fn later(&self, place: usize) -> Option<FollowUp> {
        let (number, turn) = self.plan.at_place(place);
        self.plan.workload.follow_up(number, turn + 1)
    }

    /// The turn at this place has ended: the next one is due once its reply has been thought about.
    fn go_on(&self, place: usize, sent: &[u8], next: Option<(FollowUp, Reply)>) {
        let Some(turns) = &self.turns else { return };
        let ended = self.clock.now();
        let body = next.and_then(|(next, reply)| {
            let body = next_body(sent, &reply.text(), &next)?;
            Some((ended.plus_nanos(next.think_ns), body))
        });
        match body {
            Some((at, body)) => turns.add(at, place + 1, body),
            None => {
                let (number, turn) = self.plan.at_place(place);
                turns.over(self.plan.workload.turns(number) - turn - 1);
            }
        }
    }

    /// Ends the requests that still wait for a slot.
    fn give_up_waiting(&self) {
        for due in self.slots.close() {
            self.give_up(due);
        }
    }

    /// Ends a request that was due, but never sent.
    fn give_up(&self, due: Due) {
        let (place, at) = (due.place, due.at);
        let exchange = self.client.unsent(&self.job(due));
        self.end(place, at, 0, exchange);
    }

    fn job(&self, due: Due) -> Job {
        let workload = &self.plan.workload;
        let body = || workload.request(self.plan.at_place(due.place).0);
        Job {
            req_id: self.plan.req_id(due.place),
            endpoint: workload.backend.endpoint(),
            scheduled: Some(due.at),
            body: due.draft.unwrap_or_else(body),
        }
    }

    fn end(&self, place: usize, scheduled: Stamp, slot_nanos: i64, exchange: Exchange) {
        if exchange.observed.outcome() != Outcome::Ok {
            self.live.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.live.done.fetch_add(1, Ordering::Relaxed);
        // Nobody listens any more only when the run was dropped.
        let _ = self.done.send(Done {
            place,
            scheduled,
            slot_nanos,
            exchange,
        });
    }
}
