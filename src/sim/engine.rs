//! A model of continuous batching, stepped by its caller: no IO, no clock.
//!
//! The `scheduler` decides what each step does, as SGLang's; here time passes. As on the real one, the
//! scheduler goes round once a step: it picks up what has come since (a request waits unseen until then),
//! launches the next step, and takes in the results of the one before, which the GPU ran meanwhile. So a
//! request that ends takes part in one step more, which makes nothing; and of two prefills in a row the
//! first tells its token only when the second was launched. Launching a prefill takes the scheduler longer
//! than the GPU needs for a short prompt; for a long one it comes round, and lets others in, before it ends. `--disable-overlap-schedule` lets a step end
//! before the next is decided. docs/SIMULATOR.md tells where the model departs from the real one.
//!
//! Moments depend on the submissions alone, however late the caller looks.

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
    profile: Profile,
    scheduler: Scheduler,
    now: Stamp,
    /// What the scheduler has not picked up yet, or is yet to come, in order of coming.
    inbox: VecDeque<(Stamp, Request)>,
    /// When the scheduler comes round again; `None` when idle.
    round: Option<Stamp>,
    /// The step whose results are taken in then.
    due: Option<Step>,
    /// The step launched after it.
    launched: Option<Step>,
    gpu_free: Stamp,
    /// Prefills launched so far.
    prefills: u64,
}

/// When a request comes that waits for another server: not before [`Engine::arrive`].
pub const HELD: Stamp = Stamp::from_nanos(i64::MAX);

#[derive(Debug)]
struct Step {
    batch: Batch,
    ends: Stamp,
}

impl Engine {
    /// An idle engine whose time is `now`.
    pub fn new(profile: Profile, now: Stamp) -> Engine {
        Engine {
            scheduler: Scheduler::new(profile.clone(), None),
            profile,
            now,
            inbox: VecDeque::new(),
            round: None,
            due: None,
            launched: None,
            gpu_free: now,
            prefills: 0,
        }
    }

    /// The same, which tells of a request's tokens the first and the last alone.
    pub fn brief(mut self) -> Engine {
        self.scheduler.is_brief = true;
        self
    }

    /// One that decodes what another server prefills: as many requests as run may have room, and `extra` more.
    pub fn decode_only(profile: Profile, extra: usize, now: Stamp) -> Engine {
        Engine {
            scheduler: Scheduler::new(profile.clone(), Some(extra)),
            ..Engine::new(profile, now)
        }
    }

    /// What a request waited for of another server is there at `now`: its place to decode ([`HELD`]), or what was prefilled.
    pub fn arrive(&mut self, id: u64, now: Stamp) {
        self.run(now, true);
        match self.take_back(id) {
            Some(request) => self.submit(request, now),
            None => {
                self.scheduler.arrive(id, self.now);
                self.round.get_or_insert(self.now);
            }
        }
    }

    /// Hands a request over that comes at `at`, or at the engine's own time where that is later. The scheduler picks
    /// it up when it next comes round; if idle, in the next [`Engine::advance`] that reaches that time, so
    /// requests that come at one moment start as one batch.
    pub fn submit(&mut self, request: Request, at: Stamp) {
        let at = self.now.max(at);
        let place = self.inbox.partition_point(|(came, _)| *came <= at);
        self.inbox.insert(place, (at, request));
    }

    /// Takes a request out that was not picked up.
    fn take_back(&mut self, id: u64) -> Option<Request> {
        let place = self.inbox.iter().position(|(_, new)| new.id == id)?;
        self.inbox.remove(place).map(|(_, request)| request)
    }

    /// Takes a request out at `now`, wherever it is, and tells that as its end; says whether it was there (still).
    /// The step under way keeps its length, as on a real engine.
    pub fn abort(&mut self, id: u64, now: Stamp) -> bool {
        self.run(now, true);
        if self.take_back(id).is_none() {
            if !self.scheduler.abort(id) {
                return false;
            }
            if self.scheduler.load().unreserved > 0 {
                // There may be room now for one that waits for it.
                self.round.get_or_insert(self.now);
            }
            let events = &mut self.scheduler.events;
            events.retain(|event| event.id != id || event.at <= self.now);
        }
        self.scheduler.tell(id, self.now, EventKind::Aborted);
        true
    }

    /// When something will happen next unless a request comes or goes before; `None` when idle. May lie
    /// in the past, if the caller has not yet advanced so far.
    pub fn next_event_at(&self) -> Option<Stamp> {
        let told = self.scheduler.events.front().map(|event| event.at);
        [self.next_round(), told].into_iter().flatten().min()
    }

    /// Runs the model up to and including `now` and hands out what happened since the last call, in
    /// order of time. A `now` before the last one changes nothing.
    pub fn advance(&mut self, now: Stamp) -> Drain<'_, Event> {
        self.run(now, true);
        let events = &mut self.scheduler.events;
        let until = events.partition_point(|event| event.at <= self.now);
        events.drain(..until)
    }

    /// Empties the prefix cache, unless a request runs or waits; says whether it did.
    pub fn flush(&mut self, now: Stamp) -> bool {
        self.run(now, true);
        self.inbox.is_empty() && self.scheduler.flush()
    }

    /// The load at the moment last advanced to.
    pub fn load(&self) -> Load {
        let mut load = self.scheduler.load();
        for (_, new) in self.inbox.iter().filter(|(at, _)| *at < HELD) {
            load.waiting += 1;
            load.waiting_tokens += new.prompt.tokens();
        }
        load
    }

    fn next_round(&self) -> Option<Stamp> {
        let new = || self.inbox.front().map(|(came, _)| (*came).max(self.now));
        self.round.or_else(new)
    }

    fn run(&mut self, until: Stamp, inclusive: bool) {
        while let Some(at) = self.next_round() {
            if at > until || (at == until && !inclusive) {
                break;
            }
            self.now = at;
            if let Some(step) = self.due.take() {
                self.scheduler.finish(step.batch, at);
            }
            self.go_round(at);
        }
        self.now = self.now.max(until);
    }

    /// One round of the scheduler: picks up, decides, launches; says when the next one is.
    fn go_round(&mut self, at: Stamp) {
        let came = self.inbox.partition_point(|(came, _)| *came <= at);
        for (_, request) in self.inbox.drain(..came) {
            self.scheduler.receive(request, at);
        }
        let starts = at.plus_nanos(nanos(self.profile.schedule_ms));
        let next = self.scheduler.next_batch(at, starts);
        let mut launched_at = at;
        let mut next = next.map(|batch| {
            let free = self.gpu_free.plus_nanos(nanos(self.profile.step_gap_ms));
            // A decode step is one graph, which is launched at the end; a prefill's kernels run while the
            // scheduler launches them, and the GPU waits where it is the faster of the two.
            let ends = match batch.kind {
                BatchKind::Decode => {
                    launched_at = starts.plus_nanos(nanos(self.profile.decode_launch_ms));
                    launched_at.max(free).plus_nanos(batch.nanos)
                }
                BatchKind::Prefill => {
                    let launch = self.profile.prefill_launch_nanos(self.prefills);
                    self.prefills += 1;
                    launched_at = starts.plus_nanos(launch);
                    starts.max(free).plus_nanos(batch.nanos).max(launched_at)
                }
            };
            self.gpu_free = ends;
            Step { batch, ends }
        });
        self.due = if self.profile.disable_overlap_schedule {
            next.take()
        } else {
            std::mem::replace(&mut self.launched, next.take())
        };
        self.round = match (&self.due, &self.launched) {
            (Some(due), _) => Some(due.ends.max(launched_at)),
            (None, Some(_)) => Some(launched_at),
            (None, None) => None,
        };
    }
}

#[cfg(test)]
mod tests;
