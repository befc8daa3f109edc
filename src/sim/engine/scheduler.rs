//! The engine's decisions: which requests the next step takes, as SGLang's scheduler decides it.
//!
//! Prefill comes first: whenever waiting requests fit, they are the next batch, and nothing decodes meanwhile. A request fits if
//! a slot is free and the KV cache has room for its prompt, for its longest output, and for a share (`new_token_ratio`) of the
//! remaining output of the running requests. The share falls from step to step. If it was too small and decode runs out of
//! memory, the requests with the fewest generated tokens are retracted, and the share jumps up.
//!
//! On the decode server of a pair memory is reserved for requests first, then their KV cache arrives from the prefill server, then
//! they run. Memory for the whole output is reserved, so it never runs out during decode.

use crate::clock::Stamp;

use super::memory::Allocation;
use super::{Engine, Event, EventKind, Prompt, Request};

/// `SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR` and `SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS`.
const MIN_RATIO_FACTOR: f64 = 0.14;
const DECAY_STEPS: f64 = 600.0;
/// Decode steps for which a retraction frees memory (`SGLANG_RETRACT_DECODE_STEPS`).
const RETRACT_STEPS: u64 = 20;
/// The most output tokens of a request that count when memory is reserved (`SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`).
const MAX_RESERVED_OUTPUT: u64 = 4_096;

/// A request that was picked up.
#[derive(Debug)]
pub(super) struct Task {
    prompt: Prompt,
    output_tokens: u32,
    generated: u32,
    retractions: u32,
    allocation: Allocation,
    /// Tokens whose prefill has begun.
    prefilled: u64,
    /// Whether the prefill of all tokens has begun.
    is_decoding: bool,
}

/// A step.
#[derive(Debug)]
pub(super) struct Batch {
    /// Whether it prefills prompts; else it decodes.
    pub(super) is_prefill: bool,
    /// Those that get a token: all but requests of which it prefills a chunk that is not the last.
    members: Vec<Member>,
    /// Its GPU time, nanoseconds.
    pub(super) nanos: i64,
}

/// A request in a step. Its result counts only if the request was not retracted since.
#[derive(Clone, Copy, Debug)]
struct Member {
    id: u64,
    retractions: u32,
}

/// A prefill batch in the making.
#[derive(Debug, Default)]
struct PrefillBatch {
    /// As of [`Batch`].
    members: Vec<Member>,
    /// `(from, to)` of each request.
    chunks: Vec<(u64, u64)>,
    tokens: u64,
    hits: u64,
    chunk_left: u64,
    /// Memory reserved for the remaining output of requests.
    reserved: f64,
}

impl Engine {
    /// Puts a request into the waiting queue, or rejects it.
    pub(super) fn enqueue(&mut self, request: Request, at: Stamp) {
        let id = request.id;
        let task = Task {
            prompt: request.prompt,
            output_tokens: request.output_tokens.max(1),
            generated: 0,
            retractions: 0,
            allocation: Allocation::default(),
            prefilled: 0,
            is_decoding: false,
        };
        let max_queued = self.profile.max_queued_requests.unwrap_or(usize::MAX);
        if self.waiting.len() >= max_queued || task.max_tokens() >= self.profile.max_total_tokens {
            self.emit(id, at, EventKind::Rejected);
            return;
        }
        self.emit(id, at, EventKind::Queued);
        self.tasks.insert(id, task);
        self.waiting.push_back(id);
    }

    /// Returns the next step, decided at `at`, whose requests start at `starts`.
    pub(super) fn next_batch(&mut self, at: Stamp, starts: Stamp) -> Option<Batch> {
        if self.running.is_empty() {
            self.new_token_ratio = self.profile.initial_token_ratio();
            self.is_full = false;
        }
        self.admit_prefilled(at, starts);
        self.prefill(starts).or_else(|| self.decode(starts))
    }

    /// Processes the results of a step.
    pub(super) fn complete(&mut self, batch: Batch, at: Stamp) {
        if !batch.is_prefill
            && let Some(before) = self.decoded_at.replace(at).filter(|before| *before < at)
        {
            self.gen_throughput = batch.members.len() as f64 / at.since(before);
        }
        for member in &batch.members {
            let task = self.tasks.get_mut(&member.id);
            let Some(task) = task.filter(|task| task.retractions == member.retractions) else {
                continue;
            };
            if batch.is_prefill {
                self.memory.cache(&mut task.allocation, &task.prompt);
            }
            task.generated += 1;
            let last = task.generated >= task.output_tokens;
            if last || task.generated == 1 || !self.is_brief {
                self.emit(member.id, at, EventKind::Token { last });
            }
            if last {
                self.remove(member.id);
            }
        }
        if self.running.is_empty() {
            // The throughput is not measured across a pause.
            (self.decoded_at, self.gen_throughput) = (None, 0.0);
        }
    }

    pub(super) fn emit(&mut self, id: u64, at: Stamp, kind: EventKind) {
        // A round emits events ahead of time; an abort or an arrival may be earlier than those.
        let index = self.events.partition_point(|event| event.at <= at);
        self.events.insert(index, Event { id, at, kind });
    }

    /// Removes a request that does not wait and frees its memory. Returns whether it was there.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        let Some(task) = self.tasks.remove(&id) else {
            return false;
        };
        self.memory.release(task.allocation);
        self.running.retain(|running| *running != id);
        self.chunked.take_if(|chunked| *chunked == id);
        self.is_full = false;
        true
    }

    /// Returns the next prefill, if there is one: of the rest of a chunked prompt, and of waiting requests in their order.
    fn prefill(&mut self, starts: Stamp) -> Option<Batch> {
        let mut batch = PrefillBatch {
            chunk_left: match self.profile.chunked_prefill_size {
                ..=0 => u64::MAX,
                size => size.unsigned_abs(),
            },
            ..PrefillBatch::default()
        };
        let is_empty = self.waiting.is_empty() || self.extra_slots.is_some();
        if self.chunked.is_none() && (self.is_full || is_empty) {
            return None;
        }
        let running = self.running.iter().filter_map(|id| self.tasks.get(id));
        batch.reserved = running
            .map(|task| match task.is_decoding {
                true => task.remaining_output() as f64 * self.new_token_ratio,
                false => task.remaining_output() as f64,
            })
            .sum();
        if let Some(id) = self.chunked
            && let Some(task) = self.tasks.get_mut(&id)
        {
            batch.add(id, task);
            self.chunked.take_if(|_| task.is_decoding);
        }
        while !self.is_full
            && batch.chunk_left > 0
            && self.running.len() < self.profile.max_running_requests
            && self.admit(&mut batch, starts)
        {}
        if batch.chunks.is_empty() {
            return None;
        }
        self.cache_hit_rate = batch.hits as f64 / (batch.hits + batch.tokens) as f64;
        Some(Batch {
            is_prefill: true,
            nanos: self.profile.prefill_nanos(batch.chunks.into_iter()),
            members: batch.members,
        })
    }

    /// Admits the first of the queue, if it fits. Returns whether it did.
    fn admit(&mut self, batch: &mut PrefillBatch, starts: Stamp) -> bool {
        let first = self.waiting.front().copied();
        let Some((id, task)) = first.and_then(|id| Some((id, self.tasks.get_mut(&id)?))) else {
            return false;
        };
        let tokens = task.tokens();
        // The last token is always computed: the next one is predicted from it.
        let max_cached = task.prompt.tokens().min(tokens - 1);
        let mut allocation = self.memory.lock_prefix(&task.prompt, max_cached);
        let shared = allocation.shared;
        let computed = tokens - shared;
        let available = self.memory.available() as f64 - batch.reserved;
        let is_short = (computed + task.remaining_output()) as f64 >= available;
        let is_long = batch.tokens + computed > self.profile.max_prefill_tokens;
        if is_short || (is_long && !batch.chunks.is_empty()) {
            self.memory.release(allocation);
            self.is_full = is_short && !self.running.is_empty();
            return false;
        }
        // All at once, so that a prompt never lacks memory between two chunks.
        self.memory.allocate(&mut allocation, computed);
        task.allocation = allocation;
        task.prefilled = shared;
        batch.reserved += task.remaining_output() as f64;
        batch.hits += shared;
        batch.add(id, task);
        if !task.is_decoding {
            self.chunked = Some(id);
        }
        self.waiting.pop_front();
        self.running.push(id);
        let cached = shared as u32;
        self.emit(id, starts, EventKind::Admitted { cached });
        true
    }

    fn decode(&mut self, at: Stamp) -> Option<Batch> {
        if self.running.is_empty() {
            return None;
        }
        if self.memory.available() < self.running.len() as u64 {
            self.retract(at);
        } else {
            let initial = self.profile.initial_token_ratio();
            let min = initial * MIN_RATIO_FACTOR;
            self.new_token_ratio = (self.new_token_ratio - (initial - min) / DECAY_STEPS).max(min);
        }
        let mut members = Vec::with_capacity(self.running.len());
        let mut contexts = Vec::with_capacity(self.running.len());
        for id in &self.running {
            let Some(task) = self.tasks.get_mut(id) else {
                continue;
            };
            self.memory.allocate(&mut task.allocation, 1);
            contexts.push(task.allocation.tokens());
            members.push(Member {
                id: *id,
                retractions: task.retractions,
            });
        }
        Some(Batch {
            is_prefill: false,
            members,
            nanos: self.profile.decode_nanos(contexts.into_iter()),
        })
    }

    /// Returns the requests with the fewest generated tokens (of equals, the longest prompt) to the queue, until the others have
    /// memory for [`RETRACT_STEPS`]. One always stays.
    fn retract(&mut self, at: Stamp) {
        let tasks = &self.tasks;
        let progress = |id: &u64| {
            let task = tasks.get(id);
            task.map(|task| (task.generated, std::cmp::Reverse(task.prompt.tokens())))
        };
        let mut by_progress = self.running.clone();
        by_progress.sort_by_key(|id| std::cmp::Reverse(progress(id)));
        while by_progress.len() > 1
            && self.memory.available() < RETRACT_STEPS * by_progress.len() as u64
            && let Some(id) = by_progress.pop()
            && let Some(task) = self.tasks.get_mut(&id)
        {
            task.retractions += 1;
            task.is_decoding = false;
            self.memory.release(std::mem::take(&mut task.allocation));
            self.running.retain(|running| *running != id);
            self.waiting.push_back(id);
            self.emit(id, at, EventKind::Retracted);
        }
        self.is_full = false;
        let left = || self.running.iter().filter_map(|id| self.tasks.get(id));
        let generated: u64 = left()
            .map(|task| u64::from(task.generated) + RETRACT_STEPS)
            .sum();
        let output_tokens: u64 = left().map(|task| u64::from(task.output_tokens)).sum();
        self.new_token_ratio = (generated as f64 / output_tokens.max(1) as f64).min(1.0);
    }

    /// Ends a request's wait for its KV cache on the decode server of a pair.
    pub fn arrive(&mut self, id: u64, now: Stamp) {
        self.run(now);
        let index = self.in_transfer.iter().position(|other| *other == id);
        if let Some(index) = index {
            self.in_transfer.remove(index);
            self.ready.push_back(id);
            self.emit(id, self.now, EventKind::Arrived);
        }
        self.round.get_or_insert(self.now);
    }

    /// Reserves memory for waiting requests, in their order, and admits those whose KV cache has arrived while slots are free.
    fn admit_prefilled(&mut self, at: Stamp, starts: Stamp) {
        loop {
            while self.reserve(at).is_some() {}
            // One of a single token leaves its memory to others at once.
            if self.running.len() >= self.profile.max_running_requests {
                return;
            }
            let Some(id) = self.ready.pop_front() else {
                return;
            };
            self.running.push(id);
            // Half of the round's time passes before it is admitted, the other half before its first token is reported.
            let admitted = at.plus_nanos(starts.nanos_since(at) / 2);
            self.emit(id, admitted, EventKind::Admitted { cached: 0 });
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            task.is_decoding = true;
            // The prefill server generated it.
            task.generated = 1;
            let last = task.output_tokens == 1;
            self.emit(id, starts, EventKind::Token { last });
            if last {
                self.remove(id);
            }
        }
    }

    /// Reserves memory for the first request that waits for it, if there is enough.
    fn reserve(&mut self, at: Stamp) -> Option<()> {
        let max = self.profile.max_running_requests + self.extra_slots?;
        let id = *self.waiting.front()?;
        let others = self.in_transfer.iter().chain(&self.ready);
        let all = others.chain(&self.running).chain([&id]);
        let count = all.clone().count();
        let tasks = all.filter_map(|id| self.tasks.get(id));
        let needed: u64 = tasks.map(Task::max_tokens).sum();
        if count > max || needed > self.profile.max_total_tokens {
            return None;
        }
        self.in_transfer.push(id);
        self.waiting.pop_front();
        let task = self.tasks.get_mut(&id)?;
        let tokens = task.prompt.tokens();
        self.memory.allocate(&mut task.allocation, tokens);
        self.emit(id, at, EventKind::Reserved);
        Some(())
    }
}

impl PrefillBatch {
    /// Adds as much of a prompt as the chunk size still allows.
    fn add(&mut self, id: u64, task: &mut Task) {
        let from = task.prefilled;
        let to = task.tokens().min(from.saturating_add(self.chunk_left));
        task.prefilled = to;
        task.is_decoding = to == task.tokens();
        self.chunk_left -= to - from;
        self.tokens += to - from;
        self.chunks.push((from, to));
        if task.is_decoding {
            self.members.push(Member {
                id,
                retractions: task.retractions,
            });
        }
    }
}

impl Task {
    /// Tokens to prefill: after a retraction, those generated before too.
    pub(super) fn tokens(&self) -> u64 {
        self.prompt.tokens() + u64::from(self.generated)
    }

    /// All tokens of prompt and output.
    fn max_tokens(&self) -> u64 {
        self.prompt.tokens() + u64::from(self.output_tokens)
    }

    /// Tokens still to generate, as far as they count when memory is reserved.
    fn remaining_output(&self) -> u64 {
        u64::from(self.output_tokens - self.generated).min(MAX_RESERVED_OUTPUT)
    }
}
