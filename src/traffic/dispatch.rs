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
use super::live::Live;
use super::plan::{Planned, RunPlan};
use super::rows::Done;
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

/// Hands each request over at its time.
pub(super) struct Pacer {
    dispatch: Arc<Dispatch>,
    runtime: Handle,
    /// Bodies that are made.
    drafts: VecDeque<Bytes>,
    bytes: usize,
    /// The place in the schedule of the next one to make.
    next: usize,
}

impl Pacer {
    /// In the runtime of the caller.
    pub(super) fn new(dispatch: Arc<Dispatch>) -> Pacer {
        Pacer {
            dispatch,
            runtime: Handle::current(),
            drafts: VecDeque::new(),
            bytes: 0,
            next: 0,
        }
    }

    /// Makes drafts while there is room and `time` allows.
    fn make(&mut self, time: impl Fn() -> bool) {
        let Ready { plan, schedule, .. } = &self.dispatch.ready;
        while let Some(planned) = schedule.get(self.next)
            && self.bytes < AHEAD_BYTES
            && time()
        {
            let draft = plan.request(planned.number);
            self.next += 1;
            self.bytes += draft.len();
            self.drafts.push_back(draft);
        }
    }

    /// The next draft, if it is made.
    fn take(&mut self) -> Option<Bytes> {
        let draft = self.drafts.pop_front();
        match &draft {
            Some(draft) => self.bytes -= draft.len(),
            None => self.next += 1,
        }
        draft
    }

    pub(super) fn run(mut self, started: oneshot::Sender<Stamp>) {
        // Else the kernel may wake this thread 50 µs late to save wake-ups; later is not wrong, only less exact, so a
        // refusal does not matter.
        let _ = nix::sys::prctl::set_timerslack(1);
        let dispatch = self.dispatch.clone();
        let Ready {
            clock,
            plan,
            schedule,
            ..
        } = &dispatch.ready;
        let is_far = |at: Stamp| at.nanos_since(clock.now()) > MAKING_NANOS;
        let is_time = || plan.args.start_at.is_none_or(is_far);
        self.make(is_time);
        let start = plan.args.start_at;
        let start = start.unwrap_or_else(|| clock.now().plus_nanos(LEAD_NANOS));
        let _ = started.send(start);
        for planned in schedule.iter() {
            let at = start.plus_nanos(planned.offset_nanos);
            let has_slots = || dispatch.slots.available_permits() > 0;
            self.make(|| is_far(at) && has_slots());
            if !dispatch.wait_until(at) {
                return;
            }
            let draft = self.take();
            let task = dispatch.clone().serve(planned.number, at, draft);
            self.runtime.spawn(task);
        }
    }
}

/// What the tasks of a run share.
pub(super) struct Dispatch {
    pub(super) ready: Ready,
    pub(super) stop: Stop,
    pub(super) live: Arc<Live>,
    /// Of `--max-concurrency`, given to requests in their order.
    pub(super) slots: Semaphore,
    pub(super) done: mpsc::Sender<Done>,
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
            let (slot, slot_nanos) = self.slot(&mut draft, turn).await;
            let job = Job {
                req_id: plan.req_id(plan.place(number, turn)),
                endpoint: plan.args.backend.endpoint(),
                scheduled: Some(due),
                body: draft.take().unwrap_or_else(|| plan.request(number)),
            };
            let Some(slot) = slot else {
                return self.end(due, slot_nanos, client.unsent(&job));
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
            self.end(due, slot_nanos, exchange);
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
    async fn slot(
        &self,
        draft: &mut Option<Bytes>,
        turn: usize,
    ) -> (Option<SemaphorePermit<'_>>, i64) {
        if self.stop.is_stopped() {
            return (None, 0);
        }
        if let Ok(slot) = self.slots.try_acquire() {
            return (Some(slot), 0);
        }
        // What waits does so without its body, which can be made again (but that of a later turn).
        draft.take_if(|_| turn == 0);
        let clock = &self.ready.clock;
        let came = clock.now();
        let slot = tokio::select! {
            biased;
            () = self.stop.stopped() => None,
            slot = self.slots.acquire() => slot.ok(),
        };
        (slot, clock.now().nanos_since(came).max(0))
    }

    fn end(&self, scheduled: Stamp, slot_nanos: i64, exchange: Exchange) {
        self.live.count(|counts| {
            counts.failed += usize::from(exchange.outcome() != Outcome::Ok);
            counts.done += 1;
        });
        // Nobody listens any more only when the run was dropped.
        let _ = self.done.send(Done {
            scheduled,
            slot_nanos,
            exchange,
        });
    }
}

/// Waits for a moment; not exactly, but never too short.
pub(super) async fn until(clock: &Clock, at: Stamp) {
    while let Ok(nanos @ 1..) = u64::try_from(at.nanos_since(clock.now())) {
        tokio::time::sleep(Duration::from_nanos(nanos)).await;
    }
}
