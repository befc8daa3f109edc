//! The open loop: a thread waits for each request's scheduled time and spawns the task that sends it; and what these tasks share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::{Clock, Stamp};
use crate::request::outcome::Outcome;

use super::client::{Client, Exchange, Job, Reply};
use super::plan::RunPlan;
use super::progress::LiveProgress;
use super::stop::Stop;

/// A body is built ahead of time only if the next request is due later than this.
const MIN_BUILD_NANOS: i64 = 2_000_000;
/// The pacing thread checks at least this often whether the run was stopped.
const STOP_CHECK_PERIOD_NANOS: i64 = 50_000_000;
/// Bodies are built ahead of time, so that building one does not delay a send, until they have this many bytes.
const MAX_PREBUILT_BYTES: usize = 64 << 20;

/// A run about to begin: the target is reachable, the cache is flushed, the model is known.
#[derive(Clone, Debug)]
pub struct PreparedRun {
    pub(super) plan: Arc<RunPlan>,
    pub(super) client: Arc<Client>,
    pub(super) clock: Clock,
}

/// Spawns the task of each request at its time. `start` is the time that the schedule's offsets count from.
pub(super) fn pace(dispatch: &Arc<Dispatch>, runtime: &Handle, start: Stamp) {
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
pub(super) struct Dispatch {
    pub(super) run: PreparedRun,
    pub(super) stop: Stop,
    pub(super) live: Arc<LiveProgress>,
    /// The slots of `--max-concurrency`. The semaphore is fair: requests get them in their order.
    pub(super) slots: Semaphore,
    pub(super) ended: mpsc::Sender<Exchange>,
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
