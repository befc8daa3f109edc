//! A model of continuous batching, stepped by hand: no IO, no clock.
//!
//! It does what SGLang's scheduler loop does, prefill first: whenever a step ends, waiting requests are
//! taken in order of arrival while slots are free and their prompts are prefilled as one batch, during
//! which nothing decodes; only when none can be taken does a decode step give every running request one
//! token. A prefill ends with the first token. Not modelled: the KV cache (so no retraction, no prefix
//! hits), chunked prefill, and the overlap of the scheduler's own work with the forward pass.
//!
//! A step begins the moment the last one ended, however late the caller looks: moments depend on the
//! submissions alone.

use std::collections::VecDeque;
use std::collections::vec_deque::Drain;

use crate::clock::{NANOS, Stamp};

/// How fast the engine is, and how much it takes at once.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Profile {
    /// Requests that run at once; the others wait in order of arrival
    #[arg(long, value_name = "N", default_value_t = Profile::default().max_running_requests)]
    pub max_running_requests: usize,
    /// Requests that may wait; more are rejected with 503 [default: no limit]
    #[arg(long, value_name = "N")]
    pub max_queued_requests: Option<usize>,
    /// Prompt tokens in one prefill batch; a longer prompt goes alone
    #[arg(long, value_name = "N", default_value_t = Profile::default().max_prefill_tokens)]
    #[arg(help_heading = "How fast it is")]
    pub max_prefill_tokens: u64,
    /// Prompt tokens prefilled in a second
    #[arg(long, value_name = "RATE", default_value_t = Profile::default().prefill_tokens_per_s)]
    #[arg(help_heading = "How fast it is")]
    pub prefill_tokens_per_s: f64,
    /// Time of a decode step without what its requests add, milliseconds
    #[arg(long, value_name = "MS", default_value_t = Profile::default().decode_step_ms)]
    #[arg(help_heading = "How fast it is")]
    pub decode_step_ms: f64,
    /// What each running request adds to a decode step, milliseconds
    #[arg(long, value_name = "MS", default_value_t = Profile::default().decode_step_per_seq_ms)]
    #[arg(help_heading = "How fast it is")]
    pub decode_step_per_seq_ms: f64,
}

/// A request as the engine sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whatever the caller tells it by; unique among the requests alive.
    pub id: u64,
    /// Tokens to prefill.
    pub prompt_tokens: u32,
    /// Tokens to make; 0 counts as 1, since a prefill ends with a token.
    pub output_tokens: u32,
}

/// Something that happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The request's id.
    pub id: u64,
    /// When.
    pub at: Stamp,
    /// What.
    pub kind: EventKind,
}

/// What can happen to a request, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It left the queue: its prefill began.
    Admitted,
    /// Its prefill ended with the first token.
    Prefilled,
    /// A further token.
    Token,
    /// The last token was made; at the same moment as [`EventKind::Prefilled`] or [`EventKind::Token`].
    Finished,
}

/// The queue is at its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("The request queue is full.")]
pub struct QueueFull;

/// Where an aborted request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aborted {
    /// In the waiting queue.
    Waiting,
    /// In prefill or decode.
    Running,
}

/// The engine's load at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in prefill or decode.
    pub running: usize,
    /// Requests in the waiting queue.
    pub waiting: usize,
    /// Prompt tokens of the waiting requests.
    pub waiting_tokens: u64,
    /// Prompt and output tokens held by the running requests.
    pub used_tokens: u64,
}

/// The model.
#[derive(Debug)]
pub struct Engine {
    profile: Profile,
    now: Stamp,
    waiting: VecDeque<Waiting>,
    prefilling: Vec<Running>,
    decoding: Vec<Running>,
    step: Option<Step>,
    events: VecDeque<Event>,
}

#[derive(Debug)]
struct Waiting {
    request: Request,
    since: Stamp,
}

#[derive(Debug)]
struct Running {
    id: u64,
    prompt_tokens: u32,
    made: u32,
    wanted: u32,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    kind: StepKind,
    ends: Stamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepKind {
    Prefill,
    Decode,
}

impl Engine {
    /// An idle engine whose time is `now`.
    pub fn new(profile: Profile, now: Stamp) -> Engine {
        Engine {
            profile,
            now,
            waiting: VecDeque::new(),
            prefilling: Vec::new(),
            decoding: Vec::new(),
            step: None,
            events: VecDeque::new(),
        }
    }

    /// Puts a request into the waiting queue at `now`, or at the engine's own time where that is later,
    /// and returns which it was. It is scheduled by the next [`Engine::advance`] that reaches that time,
    /// so requests submitted at one moment start as one batch.
    ///
    /// # Errors
    /// [`QueueFull`] when the queue is at its limit.
    pub fn submit(&mut self, request: Request, now: Stamp) -> Result<Stamp, QueueFull> {
        self.run(now, false);
        let since = self.now.max(now);
        let limit = self.profile.max_queued_requests.unwrap_or(usize::MAX);
        if self.waiting.len() >= limit {
            return Err(QueueFull);
        }
        self.waiting.push_back(Waiting { request, since });
        Ok(since)
    }

    /// Takes a request out at `now`, wherever it is; `None` when it is not there (any more). The step
    /// under way keeps its length, as on a real engine; the slot is free at its end.
    pub fn abort(&mut self, id: u64, now: Stamp) -> Option<Aborted> {
        self.run(now, true);
        if let Some(place) = self.waiting.iter().position(|w| w.request.id == id) {
            self.waiting.remove(place);
            return Some(Aborted::Waiting);
        }
        for batch in [&mut self.prefilling, &mut self.decoding] {
            if let Some(place) = batch.iter().position(|r| r.id == id) {
                batch.remove(place);
                return Some(Aborted::Running);
            }
        }
        None
    }

    /// When something will happen next unless a request comes or goes before; `None` when idle. May lie
    /// in the past, if the caller has not yet advanced so far.
    pub fn next_event_at(&self) -> Option<Stamp> {
        match self.step {
            Some(step) => Some(step.ends),
            None => self.waiting.front().map(|first| first.since.max(self.now)),
        }
    }

    /// Runs the model up to and including `now` and hands out what happened since the last call, in
    /// order of time. A `now` before the last one changes nothing.
    pub fn advance(&mut self, now: Stamp) -> Drain<'_, Event> {
        self.run(now, true);
        self.events.drain(..)
    }

    /// The load at the moment last advanced to.
    pub fn load(&self) -> Load {
        let running = || self.prefilling.iter().chain(&self.decoding);
        Load {
            running: running().count(),
            waiting: self.waiting.len(),
            waiting_tokens: self
                .waiting
                .iter()
                .map(|w| u64::from(w.request.prompt_tokens))
                .sum(),
            used_tokens: running()
                .map(|r| u64::from(r.prompt_tokens) + u64::from(r.made))
                .sum(),
        }
    }

    fn run(&mut self, until: Stamp, inclusive: bool) {
        while let Some(at) = self.next_event_at() {
            if at > until || (at == until && !inclusive) {
                break;
            }
            self.now = at;
            if let Some(step) = self.step.take() {
                self.end(step.kind, at);
            }
            self.begin(at);
        }
        self.now = self.now.max(until);
    }

    fn end(&mut self, kind: StepKind, at: Stamp) {
        let kind = match kind {
            StepKind::Prefill => {
                let mut batch = std::mem::take(&mut self.prefilling);
                self.give_tokens(&mut batch, EventKind::Prefilled, at);
                self.decoding.append(&mut batch);
                return;
            }
            StepKind::Decode => EventKind::Token,
        };
        let mut batch = std::mem::take(&mut self.decoding);
        self.give_tokens(&mut batch, kind, at);
        self.decoding = batch;
    }

    fn give_tokens(&mut self, batch: &mut Vec<Running>, kind: EventKind, at: Stamp) {
        let events = &mut self.events;
        batch.retain_mut(|running| {
            let id = running.id;
            running.made += 1;
            events.push_back(Event { id, at, kind });
            let finished = running.made >= running.wanted;
            if finished {
                let kind = EventKind::Finished;
                events.push_back(Event { id, at, kind });
            }
            !finished
        });
    }

    fn begin(&mut self, at: Stamp) {
        let tokens = self.admit(at);
        let (kind, seconds) = if !self.prefilling.is_empty() {
            let seconds = tokens as f64 / self.profile.prefill_tokens_per_s;
            (StepKind::Prefill, seconds)
        } else if !self.decoding.is_empty() {
            let batch = self.decoding.len() as f64;
            let ms = self.profile.decode_step_ms + self.profile.decode_step_per_seq_ms * batch;
            (StepKind::Decode, ms / 1e3)
        } else {
            return;
        };
        let nanos = (seconds * NANOS as f64).round() as i64;
        let ends = at.plus_nanos(nanos.max(0));
        self.step = Some(Step { kind, ends });
    }

    /// Moves waiting requests into the prefill batch; returns the tokens to prefill.
    fn admit(&mut self, at: Stamp) -> u64 {
        let mut tokens = 0;
        while self.decoding.len() + self.prefilling.len() < self.profile.max_running_requests {
            let Some(first) = self.waiting.front().filter(|first| first.since <= at) else {
                break;
            };
            let more = tokens + u64::from(first.request.prompt_tokens);
            if more > self.profile.max_prefill_tokens && !self.prefilling.is_empty() {
                break;
            }
            let request = first.request;
            self.waiting.pop_front();
            tokens = more;
            self.events.push_back(Event {
                id: request.id,
                at,
                kind: EventKind::Admitted,
            });
            self.prefilling.push(Running {
                id: request.id,
                prompt_tokens: request.prompt_tokens,
                made: 0,
                wanted: request.output_tokens.max(1),
            });
        }
        tokens
    }
}

impl Default for Profile {
    /// About one data-centre GPU with an 8B model: no measurement, only a sane order of magnitude.
    fn default() -> Profile {
        Profile {
            max_running_requests: 32,
            max_queued_requests: None,
            max_prefill_tokens: 16_384,
            prefill_tokens_per_s: 20_000.0,
            decode_step_ms: 6.0,
            decode_step_per_seq_ms: 0.1,
        }
    }
}

#[cfg(test)]
mod tests;
