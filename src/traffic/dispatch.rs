//! What the tasks of a run share, and the threads that hand each request over at its time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::clock::{Clock, Stamp};
use crate::request::outcome::Outcome;

use super::client::{Client, Exchange, Job, Reply};
use super::drafts::Drafts;
use super::ended::Done;
use super::live::Live;
use super::plan::{Planned, RunPlan};
use super::slots::{Admission, Due, Slots};
use super::stop::Stop;
use super::turns::Turns;
use super::workload::conversation::{FollowUp, next_body};

/// No draft is begun closer than this to the next sending.
const MAKING_NANOS: i64 = 2_000_000;
/// The pacing thread looks at least this often whether the run was stopped.
const LOOK_NANOS: i64 = 50_000_000;
/// The run begins this long after everything is ready, so that its first requests are not late already.
const LEAD_NANOS: i64 = 10_000_000;

/// Hands each request over at its time.
pub(super) struct Pacer {
    pub(super) dispatch: Arc<Dispatch>,
    pub(super) drafts: Drafts,
    pub(super) runtime: Handle,
}

impl Pacer {
    pub(super) fn run(mut self, started: oneshot::Sender<Stamp>) {
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
pub(super) struct Dispatch {
    pub(super) client: Arc<Client>,
    pub(super) clock: Clock,
    pub(super) stop: Stop,
    pub(super) live: Arc<Live>,
    pub(super) slots: Slots,
    pub(super) plan: Arc<RunPlan>,
    pub(super) schedule: Arc<Vec<Planned>>,
    /// Of a run of conversations.
    pub(super) turns: Option<Arc<Turns>>,
    pub(super) done: mpsc::UnboundedSender<Done>,
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
        let (number, turn) = self.plan.at_place(due.place);
        if let Some(turns) = &self.turns {
            let begun = (turn == 0).then(|| self.plan.workload.turns(number));
            turns.handed_over(begun.unwrap_or(0));
        }
        match self.slots.enter(due, turn > 0, self.clock.now()) {
            Admission::Slot(due) => {
                runtime.spawn(self.clone().serve(due));
            }
            Admission::Waits => {}
            Admission::Closed(due) => self.give_up(due),
        }
    }

    /// Hands over the later turns of conversations, each at its time.
    pub(super) fn pace_turns(self: &Arc<Dispatch>, turns: &Turns, runtime: &Handle) {
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
            next = self.slots.next(self.clock.now());
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
            let body = next_body(sent, &reply.text()?, &next)?;
            Some((ended.plus_nanos(next.think_ns), body))
        });
        match body {
            Some((at, body)) => turns.add(at, place + 1, body),
            None => turns.over(),
        }
    }

    /// Ends the requests that still wait for a slot.
    pub(super) fn give_up_waiting(&self) {
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
