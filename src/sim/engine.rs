//! A model of continuous batching, stepped by its caller: no IO, no clock.
//!
//! `scheduler` holds what each step does, as SGLang's scheduler; this file when. The scheduler loops once a step: it
//! picks up new requests (until then they wait unseen), launches the next step, and processes the results of the step before,
//! which the GPU ran meanwhile. So a request that ends takes part in one more step, which generates nothing for it; and the
//! first of two prefills in a row returns its token only when the second was launched. Launching the prefill of a short prompt
//! takes the scheduler longer than it takes the GPU; during that of a long one, the scheduler admits the next requests.
//! With `--disable-overlap-schedule` a step ends before the next is decided. Differences from SGLang: docs/SIMULATOR.md.
//!
//! Timestamps depend on the submissions alone, not on when the caller advances the engine.

mod memory;
mod profile;
mod radix;
mod scheduler;

use std::collections::vec_deque::Drain;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::clock::Stamp;

pub use profile::Profile;

use memory::Memory;
use profile::nanos;
use scheduler::{Batch, Task};

/// A request as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Chosen by the caller; never used twice.
    pub id: u64,
    /// Its prompt.
    pub prompt: Prompt,
    /// Tokens to generate; 0 counts as 1, since a prefill ends with a token.
    pub output_tokens: u32,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Its token ids; prompts with a common prefix share its KV cache.
    Tokens(Arc<[u32]>),
    /// A prompt known only by its length, as recorded rows hold no prompts.
    Counted {
        /// The number of its tokens.
        tokens: u32,
        /// How many of them the prefix cache has, unless it is off.
        cached: u32,
    },
}

impl Prompt {
    /// The number of its tokens.
    pub fn tokens(&self) -> u64 {
        match self {
            Prompt::Tokens(tokens) => tokens.len() as u64,
            Prompt::Counted { tokens, .. } => u64::from(*tokens),
        }
    }
}

/// A change of a request's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The request's id.
    pub id: u64,
    /// When it happened.
    pub at: Stamp,
    /// What happened.
    pub kind: EventKind,
}

/// What can happen to a request, in this order. After a retraction it is admitted again and goes on with [`EventKind::Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The scheduler picked it up and put it into the waiting queue.
    Queued,
    /// The queue was full, or the request could never fit into the KV cache. Ends it.
    Rejected,
    /// Decode server of a pair: memory in the KV cache was reserved.
    Reserved,
    /// Decode server of a pair: the KV cache has arrived, and the request waits for a slot.
    Arrived,
    /// It left the queue: its prefill began, or, on a decode server, its decode.
    Admitted {
        /// Prompt tokens found in the prefix cache.
        cached: u32,
    },
    /// A token was generated, the first at the end of prefill.
    Token {
        /// Whether it is the last one, which ends the request.
        last: bool,
    },
    /// The KV cache ran out during decode: the request went back into the queue, and its tokens are prefilled again.
    Retracted,
    /// The KV cache of the prefill server never arrived. Ends it. Reported by `handover`, not by the engine.
    Lost,
    /// It was aborted. Ends it.
    Aborted,
}

impl EventKind {
    /// Whether the request ends with it.
    pub fn is_end(self) -> bool {
        matches!(
            self,
            EventKind::Rejected
                | EventKind::Token { last: true }
                | EventKind::Lost
                | EventKind::Aborted
        )
    }
}

/// The engine's load at one point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests in prefill or decode.
    pub running: usize,
    /// Requests in the waiting queue, and those that the scheduler has not picked up yet.
    pub waiting: usize,
    /// Decode server of a pair: requests that wait for memory.
    pub unreserved: usize,
    /// Decode server of a pair: requests with memory whose KV cache has not arrived.
    pub in_transfer: usize,
    /// Tokens that the waiting requests have to prefill.
    pub waiting_tokens: u64,
    /// Tokens of the KV cache that running requests hold.
    pub used_tokens: u64,
    /// Tokens of the KV cache that only the prefix cache holds: they are evicted when memory is needed.
    pub evictable_tokens: u64,
    /// The share of its tokens that the last prefill batch found in the prefix cache.
    pub cache_hit_rate: f64,
    /// Tokens a second of the last decode step; 0 when idle.
    pub gen_throughput: f64,
}

/// The model.
#[derive(Debug)]
pub struct Engine {
    profile: Profile,
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
    memory: Memory,
    /// The requests that were picked up and have not ended.
    tasks: HashMap<u64, Task, ahash::RandomState>,
    /// The waiting queue; on a decode server of a pair, the queue for memory.
    waiting: VecDeque<u64>,
    running: Vec<u64>,
    /// Decode server of a pair: how many requests may have memory beside those that run.
    extra_slots: Option<usize>,
    /// Decode server of a pair: requests with memory whose KV cache has not arrived yet.
    in_transfer: Vec<u64>,
    /// Decode server of a pair: requests that wait for a slot.
    ready: VecDeque<u64>,
    /// The running request whose prompt is prefilled in chunks.
    chunked: Option<u64>,
    new_token_ratio: f64,
    /// Whether the first of the queue did not fit. None is tried until a running one has left.
    is_full: bool,
    /// [`Load::cache_hit_rate`].
    cache_hit_rate: f64,
    /// When the last decode step ended.
    decoded_at: Option<Stamp>,
    /// [`Load::gen_throughput`].
    gen_throughput: f64,
    /// Events that the caller has not taken yet, in order of time.
    events: VecDeque<Event>,
    /// Whether only the first and the last token of a request are reported.
    is_brief: bool,
}

/// A step of the GPU, and when it ends.
type Step = (Batch, Stamp);

impl Engine {
    /// An idle engine whose time is `now`.
    pub fn new(profile: Profile, now: Stamp) -> Engine {
        Engine {
            memory: Memory::new(profile.max_total_tokens, !profile.disable_radix_cache),
            new_token_ratio: profile.initial_token_ratio(),
            profile,
            now,
            inbox: VecDeque::new(),
            round: None,
            due: None,
            launched: None,
            gpu_free: now,
            prefills: 0,
            tasks: HashMap::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            extra_slots: None,
            in_transfer: Vec::new(),
            ready: VecDeque::new(),
            chunked: None,
            is_full: false,
            cache_hit_rate: 0.0,
            decoded_at: None,
            gen_throughput: 0.0,
            events: VecDeque::new(),
            is_brief: false,
        }
    }

    /// The same engine, reporting only the first and the last token of each request.
    pub fn brief(mut self) -> Engine {
        self.is_brief = true;
        self
    }

    /// The same engine, decoding what another server prefills. It reserves memory for as many requests as may run, and `extra` more.
    pub fn decode_only(mut self, extra: usize) -> Engine {
        self.extra_slots = Some(extra);
        self
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
            self.waiting.retain(|waiting| *waiting != id);
            self.in_transfer.retain(|waiting| *waiting != id);
            self.ready.retain(|waiting| *waiting != id);
            if !self.remove(id) {
                return false;
            }
            // Its memory may be enough for one that waits for it.
            self.round.get_or_insert(self.now);
            self.events
                .retain(|event| event.id != id || event.at <= self.now);
        }
        self.emit(id, self.now, EventKind::Aborted);
        true
    }

    /// When the next event is due unless requests are added or aborted before; `None` when idle. Lies in the past if the
    /// caller has not advanced so far yet.
    pub fn next_event_at(&self) -> Option<Stamp> {
        let emitted = self.events.front().map(|event| event.at);
        [self.next_round(), emitted].into_iter().flatten().min()
    }

    /// Runs the model up to and including `now` and returns the events since the last call, in order of time.
    /// A `now` before the last one changes nothing.
    pub fn advance(&mut self, now: Stamp) -> Drain<'_, Event> {
        self.run(now);
        let until = self.events.partition_point(|event| event.at <= self.now);
        self.events.drain(..until)
    }

    /// Empties the prefix cache, unless a request runs or waits. Returns whether it did.
    pub fn flush(&mut self, now: Stamp) -> bool {
        self.run(now);
        let is_idle = self.inbox.is_empty() && self.tasks.is_empty();
        if is_idle {
            self.memory.flush();
        }
        is_idle
    }

    /// The load at the time last advanced to.
    pub fn load(&self) -> Load {
        let (queue, unreserved) = match self.extra_slots {
            Some(_) => (&self.ready, self.waiting.len()),
            None => (&self.waiting, 0),
        };
        let waiting = queue.iter().filter_map(|id| self.tasks.get(id));
        let queued: u64 = waiting.map(Task::tokens).sum();
        let new = self.inbox.iter().map(|(_, new)| new.prompt.tokens());
        Load {
            running: self.running.len(),
            waiting: queue.len() + self.inbox.len(),
            unreserved,
            in_transfer: self.in_transfer.len(),
            waiting_tokens: queued + new.sum::<u64>(),
            used_tokens: self.memory.used(),
            evictable_tokens: self.memory.evictable(),
            cache_hit_rate: self.cache_hit_rate,
            gen_throughput: self.gen_throughput,
        }
    }

    fn next_round(&self) -> Option<Stamp> {
        let arrived = self.inbox.front().map(|(at, _)| self.now.max(*at));
        self.round.or(arrived)
    }

    /// Runs the rounds up to and including `until`.
    fn run(&mut self, until: Stamp) {
        while let Some(at) = self.next_round().filter(|at| *at <= until) {
            self.now = at;
            if let Some((batch, _)) = self.due.take() {
                self.complete(batch, at);
            }
            self.run_round(at);
        }
        self.now = self.now.max(until);
    }

    /// One round of the scheduler: picks requests up, decides the next step, launches it, and sets the time of the next round.
    fn run_round(&mut self, at: Stamp) {
        let is_here = |(arrived, _): &(Stamp, Request)| *arrived <= at;
        while self.inbox.front().is_some_and(is_here)
            && let Some((_, request)) = self.inbox.pop_front()
        {
            self.enqueue(request, at);
        }
        let starts = at.plus_nanos(nanos(self.profile.schedule_ms));
        let mut launched_at = at;
        let next = self.next_batch(at, starts).map(|batch| {
            let free = self.gpu_free.plus_nanos(nanos(self.profile.step_gap_ms));
            // A decode step is one CUDA graph and starts when it is launched. A prefill's kernels run while the scheduler
            // launches them, and the GPU waits where it is the faster of the two.
            let ends = match batch.is_prefill {
                false => {
                    launched_at = starts.plus_nanos(nanos(self.profile.decode_launch_ms));
                    launched_at.max(free).plus_nanos(batch.nanos)
                }
                true => {
                    let launch = self.profile.prefill_launch_nanos(self.prefills);
                    self.prefills += 1;
                    launched_at = starts.plus_nanos(launch);
                    starts.max(free).plus_nanos(batch.nanos).max(launched_at)
                }
            };
            self.gpu_free = ends;
            (batch, ends)
        });
        self.due = match self.profile.disable_overlap_schedule {
            true => next,
            false => std::mem::replace(&mut self.launched, next),
        };
        let ends = self.due.as_ref().map(|(_, ends)| launched_at.max(*ends));
        self.round = ends.or(self.launched.as_ref().map(|_| launched_at));
    }
}

#[cfg(test)]
mod tests;
