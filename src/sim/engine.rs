//! A model of continuous batching, stepped by its caller: no IO, no clock.
//!
//! `scheduler` decides what each step does, as SGLang's scheduler; this file decides when. The scheduler loops once a step: it
//! picks up new requests (until then they wait unseen), launches the next step, and processes the results of the step before,
//! which the GPU ran meanwhile. So a request that ends takes part in one more step, which generates nothing for it; and the
//! first of two prefills in a row returns its token only when the second was launched. Launching the prefill of a short prompt
//! takes the scheduler longer than it takes the GPU; during that of a long one, the scheduler admits the next requests.
//! With `--disable-overlap-schedule` a step ends before the next is decided. Differences from SGLang: docs/SIMULATOR.md.
//!
//! Timestamps depend on the submissions alone, not on when the caller advances the engine.

mod event;
mod memory;
mod profile;
mod radix;
mod scheduler;

use std::collections::VecDeque;
use std::collections::vec_deque::Drain;

use crate::clock::Stamp;

pub use event::{Event, EventKind, Load, Prompt, Request};
pub use profile::Profile;

use profile::nanos;
use scheduler::{Batch, BatchKind, Scheduler};

/// The model.
#[derive(Debug)]
pub struct Engine {
    scheduler: Scheduler,
    now: Stamp,
    /// Requests that the scheduler has not picked up yet, in order of arrival, which may lie ahead.
    inbox: VecDeque<(Stamp, Request)>,
    /// When the scheduler's next round begins; `None` when idle.
    round: Option<Stamp>,
    /// The step whose results that round processes.
    due: Option<Step>,
    /// The step launched after it.
    launched: Option<Step>,
    gpu_free: Stamp,
    /// The number of prefills launched so far.
    prefills: u64,
}

#[derive(Debug)]
struct Step {
    batch: Batch,
    ends: Stamp,
}

impl Engine {
    /// An idle engine whose time is `now`.
    pub fn new(profile: Profile, now: Stamp) -> Engine {
        Engine {
            scheduler: Scheduler::new(profile),
            now,
            inbox: VecDeque::new(),
            round: None,
            due: None,
            launched: None,
            gpu_free: now,
            prefills: 0,
        }
    }

    /// The same engine, reporting only the first and the last token of each request.
    pub fn brief(mut self) -> Engine {
        self.scheduler.is_brief = true;
        self
    }

    /// The same engine, decoding what another server prefills. It reserves memory for as many requests as may run, and `extra` more.
    pub fn decode_only(mut self, extra: usize) -> Engine {
        self.scheduler.extra_slots = Some(extra);
        self
    }

    /// Ends a request's wait for its KV cache on the decode server of a pair.
    pub fn arrive(&mut self, id: u64, now: Stamp) {
        self.run(now);
        self.scheduler.arrive(id, self.now);
        self.round.get_or_insert(self.now);
    }

    /// Adds a request that arrives at `at`, or at the engine's time if that is later. The scheduler picks it up in its next
    /// round; if idle, in the next [`Engine::advance`] that reaches that time, so requests of one time start as one batch.
    pub fn submit(&mut self, request: Request, at: Stamp) {
        let at = self.now.max(at);
        let index = self.inbox.partition_point(|(arrived, _)| *arrived <= at);
        self.inbox.insert(index, (at, request));
    }

    /// Aborts a request at `now`, wherever it is. Returns whether it was still there.
    /// The step in progress keeps its length, as on a real engine.
    pub fn abort(&mut self, id: u64, now: Stamp) -> bool {
        self.run(now);
        let before = self.inbox.len();
        self.inbox.retain(|(_, new)| new.id != id);
        if self.inbox.len() == before {
            if !self.scheduler.abort(id) {
                return false;
            }
            // Its memory may be enough for one that waits for it.
            self.round.get_or_insert(self.now);
            let events = &mut self.scheduler.events;
            events.retain(|event| event.id != id || event.at <= self.now);
        }
        self.scheduler.emit(id, self.now, EventKind::Aborted);
        true
    }

    /// When the next event is due unless requests are added or aborted before; `None` when idle. Lies in the past if the
    /// caller has not advanced so far yet.
    pub fn next_event_at(&self) -> Option<Stamp> {
        let emitted = self.scheduler.events.front().map(|event| event.at);
        [self.next_round(), emitted].into_iter().flatten().min()
    }

    /// Runs the model up to and including `now` and returns the events since the last call, in order of time.
    /// A `now` before the last one changes nothing.
    pub fn advance(&mut self, now: Stamp) -> Drain<'_, Event> {
        self.run(now);
        let events = &mut self.scheduler.events;
        let until = events.partition_point(|event| event.at <= self.now);
        events.drain(..until)
    }

    /// Empties the prefix cache, unless a request runs or waits. Returns whether it did.
    pub fn flush(&mut self, now: Stamp) -> bool {
        self.run(now);
        self.inbox.is_empty() && self.scheduler.flush()
    }

    /// The load at the time last advanced to.
    pub fn load(&self) -> Load {
        let mut load = self.scheduler.load();
        for (_, new) in &self.inbox {
            load.waiting += 1;
            load.waiting_tokens += new.prompt.tokens();
        }
        load
    }

    fn next_round(&self) -> Option<Stamp> {
        let arrived = self.inbox.front().map(|(at, _)| self.now.max(*at));
        self.round.or(arrived)
    }

    /// Runs the rounds up to and including `until`.
    fn run(&mut self, until: Stamp) {
        while let Some(at) = self.next_round().filter(|at| *at <= until) {
            self.now = at;
            if let Some(step) = self.due.take() {
                self.scheduler.complete(step.batch, at);
            }
            self.run_round(at);
        }
        self.now = self.now.max(until);
    }

    /// One round of the scheduler: picks requests up, decides the next step, launches it, and sets the time of the next round.
    fn run_round(&mut self, at: Stamp) {
        let arrived = self.inbox.partition_point(|(arrived, _)| *arrived <= at);
        for (_, request) in self.inbox.drain(..arrived) {
            self.scheduler.enqueue(request, at);
        }
        let starts = at.plus_nanos(nanos(self.scheduler.profile.schedule_ms));
        let next = self.scheduler.next_batch(at, starts);
        let profile = &self.scheduler.profile;
        let mut launched_at = at;
        let mut next = next.map(|batch| {
            let free = self.gpu_free.plus_nanos(nanos(profile.step_gap_ms));
            // A decode step is one CUDA graph and starts when it is launched. A prefill's kernels run while the scheduler
            // launches them, and the GPU waits where it is the faster of the two.
            let ends = match batch.kind {
                BatchKind::Decode => {
                    launched_at = starts.plus_nanos(nanos(profile.decode_launch_ms));
                    launched_at.max(free).plus_nanos(batch.nanos)
                }
                BatchKind::Prefill => {
                    let launch = profile.prefill_launch_nanos(self.prefills);
                    self.prefills += 1;
                    launched_at = starts.plus_nanos(launch);
                    starts.max(free).plus_nanos(batch.nanos).max(launched_at)
                }
            };
            self.gpu_free = ends;
            Step { batch, ends }
        });
        self.due = if profile.disable_overlap_schedule {
            next.take()
        } else {
            std::mem::replace(&mut self.launched, next.take())
        };
        let ends = self.due.as_ref().map(|due| due.ends.max(launched_at));
        self.round = ends.or(self.launched.as_ref().map(|_| launched_at));
    }
}

#[cfg(test)]
mod tests;
