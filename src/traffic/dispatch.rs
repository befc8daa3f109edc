//! What the tasks of a run share, and the thread that hands each request over at its time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::clock::{Clock, Stamp};
use crate::request::outcome::Outcome;

use super::client::{Client, Exchange, Job, Reply};
use super::plan::{Planned, RunPlan};
use super::progress::Live;
use super::stop::Stop;
use super::workload::conversation::next_body;

/// No draft is begun closer than this to the next sending.
const MAKING_NANOS: i64 = 2_000_000;
/// The pacing thread looks at least this often whether the run was stopped.
const LOOK_NANOS: i64 = 50_000_000;
/// The run begins this long after everything is ready, so that its first requests are not late already.
const LEAD_NANOS: i64 = 10_000_000;

/// Request bodies are made ahead of their time up to this many bytes, so that a request's making delays no sending.
const AHEAD_BYTES: usize = 64 << 20;

/// A run about to begin: the target answers, the cache is flushed, the model known.
#[derive(Clone, Debug)]
pub struct Ready {
    pub(super) plan: Arc<RunPlan>,
    pub(super) client: Arc<Client>,
    pub(super) schedule: Arc<Vec<Planned>>,
    pub(super) clock: Clock,
}

/// Bodies that are made, and their size.
#[derive(Default)]
struct Drafts {
    made: VecDeque<Bytes>,
    bytes: usize,
}

impl Drafts {
    /// Makes those of the schedule from a place on while there is room and `time` allows.
    fn make(&mut self, Ready { plan, schedule, .. }: &Ready, from: usize, time: impl Fn() -> bool) {
        while let Some(planned) = schedule.get(from + self.made.len())
            && self.bytes < AHEAD_BYTES
            && time()
        {
            let draft = plan.request(planned.number);
            self.bytes += draft.len();
            self.made.push_back(draft);
        }
    }

    /// The next one, if it is made.
    fn take(&mut self) -> Option<Bytes> {
        let draft = self.made.pop_front();
        self.bytes -= draft.as_ref().map_or(0, Bytes::len);
        draft
    }
}

/// Hands each request over at its time, and says when that began.
pub(super) fn pace(dispatch: &Arc<Dispatch>, runtime: &Handle, started: oneshot::Sender<Stamp>) {
    // Else the kernel may wake this thread 50 µs late to save wake-ups; later is not wrong, only less exact, so a
    // refusal does not matter.
    let _ = nix::sys::prctl::set_timerslack(1);
    let (ready, mut drafts) = (&dispatch.ready, Drafts::default());
    let (clock, start) = (&ready.clock, ready.plan.args.start_at);
    let is_far = |at: Stamp| at.nanos_since(clock.now()) > MAKING_NANOS;
    drafts.make(ready, 0, || start.is_none_or(is_far));
    let start = start.unwrap_or_else(|| clock.now().plus_nanos(LEAD_NANOS));
    let _ = started.send(start);
    for (place, planned) in ready.schedule.iter().enumerate() {
        let at = start.plus_nanos(planned.offset_nanos);
        let has_slots = || dispatch.slots.available_permits() > 0;
        drafts.make(ready, place, || is_far(at) && has_slots());
        if !dispatch.wait_until(at) {
            return;
        }
        let task = dispatch.clone().serve(planned.number, at, drafts.take());
        runtime.spawn(task);
    }
}

/// What the tasks of a run share.
pub(super) struct Dispatch {
    pub(super) ready: Ready,
    pub(super) stop: Stop,
    pub(super) live: Arc<Live>,
    /// Of `--max-concurrency`, given to requests in their order.
    pub(super) slots: Semaphore,
    pub(super) done: mpsc::Sender<Exchange>,
}

impl Dispatch {
    /// Waits, and says whether the run goes on.
    fn wait_until(&self, due: Stamp) -> bool {
        let clock = &self.ready.clock;
        let mut wake = clock.now();
        while wake < due && !self.stop.is_stopped() {
            wake = wake.plus_nanos(LOOK_NANOS).min(due);
            clock.sleep_until(wake);
        }
        !self.stop.is_stopped()
    }

    /// Sends a request that is due, or one after the other all turns of a conversation: each is due once the reply before
    /// it has ended and been thought about.
    async fn serve(self: Arc<Dispatch>, number: u64, mut due: Stamp, mut draft: Option<Bytes>) {
        let live = &self.live;
        let Ready {
            plan,
            client,
            clock,
            ..
        } = &self.ready;
        let turns = plan.turns(number);
        live.count(|counts| counts.turns_to_come += turns);
        for turn in 0..turns {
            live.count(|counts| {
                counts.due += 1;
                counts.turns_to_come -= 1;
            });
            let (slot, slot_nanos) = self.slot().await;
            let job = Job {
                req_id: plan.req_id(plan.place(number, turn)),
                endpoint: plan.args.backend.endpoint(),
                scheduled: Some(due),
                body: draft.take().unwrap_or_else(|| plan.request(number)),
            };
            let Some(slot) = slot else {
                return self.end(client.unsent(&job), slot_nanos);
            };
            let sent = job.body.clone();
            let next = plan.follow_up(number, turn + 1);
            let mut reply = next.is_some().then(Reply::default);
            live.count(|counts| counts.under_way += 1);
            let exchange = client.exchange(job, reply.as_mut(), self.stop.aborted());
            // Apart, so that a task that waits for its slot is small.
            let exchange = Box::pin(exchange).await;
            live.count(|counts| counts.under_way -= 1);
            drop(slot);
            let ended = clock.now();
            let reply = reply.filter(|_| exchange.outcome() == Outcome::Ok);
            self.end(exchange, slot_nanos);
            let said = next.zip(reply.and_then(Reply::text));
            let Some((next, reply)) = said else { return };
            draft = next_body(&sent, &reply, &next);
            if draft.is_none() {
                return;
            }
            due = ended.plus_nanos(next.think_ns);
            tokio::select! {
                () = until(clock, due) => {}
                () = self.stop.stopped() => return,
            }
        }
    }

    /// Waits for a slot, in order; with how long, nanoseconds. That counts from when the request came, not from when it
    /// was due: to come late was the generator's own doing. No slot once the run is stopped.
    async fn slot(&self) -> (Option<SemaphorePermit<'_>>, i64) {
        if self.stop.is_stopped() {
            return (None, 0);
        }
        if let Ok(slot) = self.slots.try_acquire() {
            return (Some(slot), 0);
        }
        let clock = &self.ready.clock;
        let came = clock.now();
        let slot = tokio::select! {
            biased;
            () = self.stop.stopped() => None,
            slot = self.slots.acquire() => slot.ok(),
        };
        (slot, clock.now().nanos_since(came).max(0))
    }

    fn end(&self, mut exchange: Exchange, slot_nanos: i64) {
        exchange.slot_nanos = slot_nanos;
        self.live.count(|counts| {
            counts.failed += usize::from(exchange.outcome() != Outcome::Ok);
            counts.done += 1;
        });
        // Nobody listens any more only when the run was dropped.
        let _ = self.done.send(exchange);
    }
}

/// Waits for a moment; not exactly, but never too short.
pub(super) async fn until(clock: &Clock, at: Stamp) {
    while let Ok(nanos @ 1..) = u64::try_from(at.nanos_since(clock.now())) {
        tokio::time::sleep(Duration::from_nanos(nanos)).await;
    }
}
