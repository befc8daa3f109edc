//! Which requests the next step takes: SGLang's scheduler, without the time that steps last.
//!
//! Prefill first: whenever waiting requests fit, they are the next batch, and nothing decodes meanwhile. A
//! request fits when a slot is free and the KV cache has room for its prompt, for all that it may make, and
//! for a share (`ratio`) of what the running ones may yet make. The share falls from step to step and jumps
//! up when it was too small: when decode runs out of room, those that have made least are retracted.

use std::collections::{HashMap, VecDeque};

use crate::clock::Stamp;

use super::event::{Event, EventKind, Load, Prompt, Request};
use super::memory::{Hold, Memory};
use super::profile::Profile;

mod prefilled;

use prefilled::Prefilled;

/// Of what a request may make, this much counts when room is kept (`SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`).
const CLIP: u64 = 4_096;
/// `SGLANG_INIT_NEW_TOKEN_RATIO`, `..._MIN_..._FACTOR` and `..._DECAY_STEPS`.
const INITIAL_RATIO: f64 = 0.7;
const LEAST_OF_INITIAL: f64 = 0.14;
const DECAY_STEPS: f64 = 600.0;
/// Steps that are to have room after a retraction (`SGLANG_RETRACT_DECODE_STEPS`).
const ROOM_STEPS: u64 = 20;

/// The queue, the running requests and the KV cache.
#[derive(Debug)]
pub(super) struct Scheduler {
    profile: Profile,
    memory: Memory,
    tasks: HashMap<u64, Task, ahash::RandomState>,
    /// The queue; of a server that decodes only, that for memory.
    waiting: VecDeque<u64>,
    running: Vec<u64>,
    /// Of a server that decodes only: what has memory and does not run.
    prefilled: Option<Prefilled>,
    /// The running one whose prompt is prefilled piece by piece.
    chunked: Option<u64>,
    ratio: f64,
    /// The first of the queue did not fit: none is tried until a running one has gone.
    is_full: bool,
    hit_tokens: u64,
    computed_tokens: u64,
    decoding: Decoding,
    pub(super) events: VecDeque<Event>,
    /// Of a request's tokens only the first and the last are told.
    pub(super) is_brief: bool,
}

/// How fast it decodes, told anew after [`Decoding::STEPS`] steps.
#[derive(Debug, Default)]
struct Decoding {
    since: Option<Stamp>,
    steps: u32,
    tokens: u64,
    last: (u64, i64),
}

/// A request on its way.
#[derive(Debug)]
struct Task {
    prompt: Prompt,
    wanted: u32,
    made: u32,
    retractions: u32,
    hold: Hold,
    /// Tokens whose prefill has begun.
    prefilled: u64,
    /// All of them: it decodes.
    is_decoding: bool,
}

/// A step.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) kind: BatchKind,
    members: Vec<Member>,
    /// How long the GPU works on it, nanoseconds.
    pub(super) nanos: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchKind {
    Prefill,
    Decode,
}

/// A request in a step. What it made there counts only if it was not retracted since.
#[derive(Clone, Copy, Debug)]
struct Member {
    id: u64,
    retractions: u32,
    /// Not so for all pieces of a prompt but the last.
    makes_token: bool,
}

/// What a prefill batch has so far.
#[derive(Debug, Default)]
struct Filling {
    members: Vec<Member>,
    /// `(from, to)` of each member.
    pieces: Vec<(u64, u64)>,
    tokens: u64,
    hits: u64,
    chunk_left: u64,
    /// Room kept for what requests may yet make.
    reserved: f64,
}

impl Decoding {
    /// SGLang's `--decode-log-interval`.
    const STEPS: u32 = 40;

    /// Counts a decode step that made so many tokens by `at`.
    fn count(&mut self, tokens: u64, at: Stamp) {
        let since = *self.since.get_or_insert(at);
        self.steps += 1;
        self.tokens += tokens;
        if self.steps >= Self::STEPS {
            self.last = (self.tokens, at.nanos_since(since));
            *self = Decoding {
                since: Some(at),
                last: self.last,
                ..Decoding::default()
            };
        }
    }
}

impl Scheduler {
    /// `extra`: of a server that decodes what others have prefilled, so many may come beside those that run.
    pub(super) fn new(profile: Profile, extra: Option<usize>) -> Scheduler {
        Scheduler {
            memory: Memory::new(profile.max_total_tokens, !profile.disable_radix_cache),
            ratio: initial_ratio(&profile),
            profile,
            tasks: HashMap::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            prefilled: extra.map(Prefilled::new),
            chunked: None,
            is_full: false,
            hit_tokens: 0,
            computed_tokens: 0,
            decoding: Decoding::default(),
            events: VecDeque::new(),
            is_brief: false,
        }
    }

    /// Takes a request into the waiting queue.
    pub(super) fn receive(&mut self, request: Request, at: Stamp) {
        let id = request.id;
        let wanted = request.output_tokens.max(1);
        let most = request.prompt.tokens() + u64::from(wanted);
        let limit = self.profile.max_queued_requests.unwrap_or(usize::MAX);
        if self.waiting.len() >= limit || most >= self.profile.max_total_tokens {
            self.tell(id, at, EventKind::Rejected);
            return;
        }
        self.tell(id, at, EventKind::Queued);
        let task = Task {
            prompt: request.prompt,
            wanted,
            made: 0,
            retractions: 0,
            hold: Hold::default(),
            prefilled: 0,
            is_decoding: false,
        };
        self.tasks.insert(id, task);
        self.waiting.push_back(id);
    }

    /// The next step, decided at `at`, whose requests start at `starts`.
    pub(super) fn next_batch(&mut self, at: Stamp, starts: Stamp) -> Option<Batch> {
        if self.running.is_empty() {
            self.ratio = initial_ratio(&self.profile);
            self.is_full = false;
        }
        self.let_run(at, starts);
        let filling = self.fill(starts);
        if filling.members.is_empty() {
            return self.decode(at);
        }
        self.hit_tokens = filling.hits;
        self.computed_tokens = filling.tokens;
        Some(Batch {
            kind: BatchKind::Prefill,
            nanos: self.profile.prefill_nanos(filling.pieces.into_iter()),
            members: filling.members,
        })
    }

    /// Enters what a step has made.
    pub(super) fn finish(&mut self, batch: Batch, at: Stamp) {
        if batch.kind == BatchKind::Decode {
            self.decoding.count(batch.members.len() as u64, at);
        }
        for member in batch.members.iter().filter(|member| member.makes_token) {
            let Some(task) = self.tasks.get_mut(&member.id) else {
                continue;
            };
            if task.retractions != member.retractions {
                continue;
            }
            if batch.kind == BatchKind::Prefill {
                self.memory.keep(&mut task.hold, &task.prompt);
            }
            task.made += 1;
            let last = task.made >= task.wanted;
            if last || task.made == 1 || !self.is_brief {
                self.tell(member.id, at, EventKind::Token { last });
            }
            if last {
                self.leave(member.id);
            }
        }
        if self.running.is_empty() {
            // What comes after a pause is no part of the stretch before it.
            self.decoding = Decoding::default();
        }
    }

    /// Takes a request out; says whether it was here (still).
    pub(super) fn abort(&mut self, id: u64) -> bool {
        if let Some(place) = self.waiting.iter().position(|waiting| *waiting == id) {
            self.waiting.remove(place);
            return self.tasks.remove(&id).is_some();
        }
        if let Some(prefilled) = &mut self.prefilled {
            prefilled.remove(id);
        }
        let is_here = self.tasks.contains_key(&id);
        self.leave(id);
        is_here
    }

    /// Empties the prefix cache, unless a request runs or waits; says whether it did.
    pub(super) fn flush(&mut self) -> bool {
        if self.tasks.is_empty() {
            self.memory.flush();
        }
        self.tasks.is_empty()
    }

    pub(super) fn load(&self) -> Load {
        let (queue, unreserved, coming) = match &self.prefilled {
            Some(prefilled) => (&prefilled.ready, self.waiting.len(), prefilled.coming.len()),
            None => (&self.waiting, 0, 0),
        };
        let waiting = || queue.iter().filter_map(|id| self.tasks.get(id));
        Load {
            running: self.running.len(),
            waiting: waiting().count(),
            unreserved,
            coming,
            retracted: waiting().filter(|task| task.retractions > 0).count(),
            waiting_tokens: waiting().map(Task::tokens).sum(),
            used_tokens: self.memory.used(),
            evictable_tokens: self.memory.evictable(),
            hit_tokens: self.hit_tokens,
            computed_tokens: self.computed_tokens,
            decoded: self.decoding.last,
        }
    }

    pub(super) fn tell(&mut self, id: u64, at: Stamp, kind: EventKind) {
        // What comes from elsewhere may come before what a round has told ahead.
        let place = self.events.partition_point(|event| event.at <= at);
        self.events.insert(place, Event { id, at, kind });
    }

    /// A running request is no more.
    fn leave(&mut self, id: u64) {
        if let Some(task) = self.tasks.remove(&id) {
            self.memory.release(task.hold);
        }
        self.running.retain(|running| *running != id);
        self.chunked.take_if(|chunked| *chunked == id);
        self.is_full = false;
    }

    /// A prefill batch: the rest of a cut prompt, and waiting requests in their order.
    fn fill(&mut self, starts: Stamp) -> Filling {
        let mut filling = Filling {
            chunk_left: u64::try_from(self.profile.chunked_prefill_size).unwrap_or(u64::MAX),
            ..Filling::default()
        };
        let is_empty = self.waiting.is_empty() || self.prefilled.is_some();
        if self.chunked.is_none() && (self.is_full || is_empty) {
            return filling;
        }
        let running = self.running.iter().filter_map(|id| self.tasks.get(id));
        filling.reserved = running
            .map(|task| match task.is_decoding {
                true => task.may_make() as f64 * self.ratio,
                false => task.may_make() as f64,
            })
            .sum();
        if let Some((id, task)) = self
            .chunked
            .and_then(|id| Some((id, self.tasks.get_mut(&id)?)))
        {
            filling.add(id, task);
            if task.is_decoding {
                self.chunked = None;
            }
        }
        while !self.is_full
            && filling.chunk_left > 0
            && self.running.len() < self.profile.max_running_requests
            && self.admit(&mut filling, starts)
        {}
        filling
    }

    /// Lets the first of the queue in, if it fits.
    fn admit(&mut self, filling: &mut Filling, starts: Stamp) -> bool {
        let first = self.waiting.front().copied();
        let Some((id, task)) = first.and_then(|id| Some((id, self.tasks.get_mut(&id)?))) else {
            return false;
        };
        let tokens = task.tokens();
        // The last token is always computed: what follows it comes from there.
        let most = task.prompt.tokens().min(tokens - 1);
        let mut hold = self.memory.share(&task.prompt, most);
        let shared = hold.shared();
        let computed = tokens - shared;
        let room = self.memory.available() as f64 - filling.reserved;
        let is_short = (computed + task.may_make()) as f64 >= room;
        let is_long = filling.tokens + computed > self.profile.max_prefill_tokens;
        if is_short || (is_long && !filling.members.is_empty()) {
            self.memory.release(hold);
            self.is_full = is_short && !self.running.is_empty();
            return false;
        }
        // All at once, so that a prompt in pieces never stands without room between two of them.
        self.memory.take(&mut hold, computed);
        task.hold = hold;
        task.prefilled = shared;
        filling.reserved += task.may_make() as f64;
        filling.hits += shared;
        filling.add(id, task);
        if !task.is_decoding {
            self.chunked = Some(id);
        }
        self.waiting.pop_front();
        self.running.push(id);
        let cached = u32::try_from(shared).unwrap_or(u32::MAX);
        self.tell(id, starts, EventKind::Admitted { cached });
        true
    }

    fn decode(&mut self, at: Stamp) -> Option<Batch> {
        if self.running.is_empty() {
            return None;
        }
        if self.memory.available() < self.running.len() as u64 {
            self.retract(at);
        } else {
            let initial = initial_ratio(&self.profile);
            let least = initial * LEAST_OF_INITIAL;
            self.ratio = (self.ratio - (initial - least) / DECAY_STEPS).max(least);
        }
        let mut members = Vec::with_capacity(self.running.len());
        let mut contexts = Vec::with_capacity(self.running.len());
        for id in &self.running {
            let Some(task) = self.tasks.get_mut(id) else {
                continue;
            };
            self.memory.take(&mut task.hold, 1);
            contexts.push(task.hold.tokens());
            members.push(Member {
                id: *id,
                retractions: task.retractions,
                makes_token: true,
            });
        }
        Some(Batch {
            kind: BatchKind::Decode,
            members,
            nanos: self.profile.decode_nanos(contexts.into_iter()),
        })
    }

    /// Sends those back into the queue that have made least (of equals, the longest prompt), until the rest
    /// have room for some steps; one always stays.
    fn retract(&mut self, at: Stamp) {
        let tasks = &self.tasks;
        let worth = |id: &u64| {
            let task = tasks.get(id);
            task.map(|task| (task.made, std::cmp::Reverse(task.prompt.tokens())))
        };
        let mut by_worth = self.running.clone();
        by_worth.sort_by_key(|id| std::cmp::Reverse(worth(id)));
        let mut is_first = true;
        while by_worth.len() > 1
            && (is_first || self.memory.available() < ROOM_STEPS * by_worth.len() as u64)
        {
            is_first = false;
            let Some(id) = by_worth.pop() else { break };
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            task.retractions += 1;
            task.is_decoding = false;
            self.memory.release(std::mem::take(&mut task.hold));
            self.running.retain(|running| *running != id);
            match &mut self.prefilled {
                Some(prefilled) => prefilled.ready.push_back(id),
                None => self.waiting.push_back(id),
            }
            self.tell(id, at, EventKind::Retracted);
        }
        self.is_full = false;
        let left = || self.running.iter().filter_map(|id| self.tasks.get(id));
        let made: u64 = left().map(|task| u64::from(task.made) + ROOM_STEPS).sum();
        let wanted: u64 = left().map(|task| u64::from(task.wanted)).sum();
        self.ratio = (made as f64 / wanted.max(1) as f64).min(1.0);
    }
}

impl Filling {
    /// Adds as much of a prompt as the batch still takes.
    fn add(&mut self, id: u64, task: &mut Task) {
        let from = task.prefilled;
        let to = task.tokens().min(from.saturating_add(self.chunk_left));
        task.prefilled = to;
        task.is_decoding = to == task.tokens();
        self.chunk_left -= to - from;
        self.tokens += to - from;
        self.pieces.push((from, to));
        self.members.push(Member {
            id,
            retractions: task.retractions,
            makes_token: task.is_decoding,
        });
    }
}

impl Task {
    /// Tokens to prefill: after a retraction also those made before.
    fn tokens(&self) -> u64 {
        self.prompt.tokens() + u64::from(self.made)
    }

    /// Tokens that it may yet make, as far as they count when room is kept.
    fn may_make(&self) -> u64 {
        u64::from(self.wanted - self.made).min(CLIP)
    }
}

fn initial_ratio(profile: &Profile) -> f64 {
    (INITIAL_RATIO * profile.schedule_conservativeness).min(1.0)
}
