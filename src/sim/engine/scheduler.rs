//! The engine's decisions: which requests the next step takes, as SGLang's scheduler decides it.
//!
//! Prefill comes first: whenever waiting requests fit, they are the next batch, and nothing decodes meanwhile. A request fits if
//! a slot is free and the KV cache has room for its prompt, for its longest output, and for a share (`new_token_ratio`) of the
//! remaining output of the running requests. The share falls from step to step. If it was too small and decode runs out of
//! memory, the requests with the fewest generated tokens are retracted, and the share jumps up.

use crate::clock::Stamp;

use super::Engine;
use super::event::{Event, EventKind, Request};
use super::memory::Allocation;
use super::task::{Batch, Member, PrefillBatch, Task};

mod prefilled;

/// `SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR` and `SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS`.
const MIN_RATIO_FACTOR: f64 = 0.14;
const DECAY_STEPS: f64 = 600.0;
/// Decode steps for which a retraction frees memory (`SGLANG_RETRACT_DECODE_STEPS`).
const RETRACT_STEPS: u64 = 20;

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
        for member in batch.members.iter().filter(|member| member.generates_token) {
            let Some(task) = self.tasks.get_mut(&member.id) else {
                continue;
            };
            if task.retractions != member.retractions {
                continue;
            }
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
        if batch.members.is_empty() {
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
        if is_short || (is_long && !batch.members.is_empty()) {
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
                generates_token: true,
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
        {
            let Some(id) = by_progress.pop() else { break };
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
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
}
