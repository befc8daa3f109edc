//! Requests on the decode server of a pair: memory is reserved for them first, then their KV cache arrives from the prefill
//! server, then they run.

use std::collections::VecDeque;

use crate::clock::Stamp;

use super::{EventKind, RETRACT_STEPS, Scheduler, Task};

/// Requests with memory that do not run yet.
#[derive(Debug)]
pub(super) struct Prefilled {
    /// How many may have memory beside those that may run.
    extra: usize,
    /// Requests whose KV cache has not arrived yet.
    pub(super) in_transfer: Vec<u64>,
    /// Requests that wait for a slot. Retracted ones have lost their memory.
    pub(super) ready: VecDeque<u64>,
}

impl Prefilled {
    pub(super) fn new(extra: usize) -> Prefilled {
        Prefilled {
            extra,
            in_transfer: Vec::new(),
            ready: VecDeque::new(),
        }
    }

    /// Removes a request that does not run.
    pub(super) fn remove(&mut self, id: u64) {
        self.in_transfer.retain(|other| *other != id);
        self.ready.retain(|other| *other != id);
    }
}

impl Scheduler {
    /// Notes that the KV cache of a request has arrived.
    pub(in super::super) fn arrive(&mut self, id: u64, at: Stamp) {
        let Some(prefilled) = &mut self.prefilled else {
            return;
        };
        if let Some(index) = prefilled.in_transfer.iter().position(|other| *other == id) {
            prefilled.in_transfer.remove(index);
            prefilled.ready.push_back(id);
            self.emit(id, at, EventKind::Arrived);
        }
    }

    /// Reserves memory for waiting requests, in their order, and admits those whose KV cache has arrived while slots are free.
    pub(super) fn admit_prefilled(&mut self, at: Stamp, starts: Stamp) {
        loop {
            while let Some((id, tokens)) = self.next_unreserved() {
                if let Some(task) = self.tasks.get_mut(&id) {
                    self.memory.allocate(&mut task.allocation, tokens);
                }
                self.emit(id, at, EventKind::Reserved);
            }
            // One of a single token leaves its memory to others at once.
            let Some(id) = self.next_ready() else { return };
            self.running.push(id);
            // Half of the round's time passes before it is admitted, the other half before its first token is reported.
            let admitted = at.plus_nanos(starts.nanos_since(at) / 2);
            self.emit(id, admitted, EventKind::Admitted { cached: 0 });
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            task.is_decoding = true;
            if task.generated == 0 {
                // The prefill server generated it.
                task.generated = 1;
                let last = task.generated >= task.output_tokens;
                self.emit(id, starts, EventKind::Token { last });
                if last {
                    self.remove_running(id);
                }
            }
        }
    }

    /// Takes the first request that may run from the queue.
    fn next_ready(&mut self) -> Option<u64> {
        if self.running.len() >= self.profile.max_running_requests {
            return None;
        }
        let prefilled = self.prefilled.as_mut()?;
        let (tasks, memory) = (&mut self.tasks, &mut self.memory);
        // A retracted request needs memory again.
        let fits = |task: &Task| {
            let fits = task.tokens() + RETRACT_STEPS <= memory.available();
            fits || task.allocation.tokens() > 0 || memory.used() == 0
        };
        let mut ready = prefilled.ready.iter();
        let index = ready.position(|id| tasks.get(id).is_some_and(fits))?;
        let id = prefilled.ready.remove(index)?;
        let task = tasks.get_mut(&id)?;
        if task.allocation.tokens() == 0 {
            memory.allocate(
                &mut task.allocation,
                task.prompt.tokens() + u64::from(task.generated),
            );
        }
        Some(id)
    }

    /// Takes the memory of the last request that waits for a slot. Returns whether there was one: others wait for their KV cache, which
    /// needs theirs.
    pub(super) fn release_ready(&mut self) -> bool {
        let ready = self.prefilled.iter().flat_map(|all| all.ready.iter().rev());
        let holds = |id: &&u64| {
            let task = self.tasks.get(id);
            task.is_some_and(|task| task.allocation.tokens() > 0)
        };
        let last = ready.copied().find(|id| holds(&id));
        let Some(task) = last.and_then(|id| self.tasks.get_mut(&id)) else {
            return false;
        };
        self.memory.release(std::mem::take(&mut task.allocation));
        true
    }

    /// Takes the first request that waits for memory, if there is enough, with the number of its prompt's tokens.
    fn next_unreserved(&mut self) -> Option<(u64, u64)> {
        let prefilled = self.prefilled.as_ref()?;
        let id = *self.waiting.front()?;
        let task = self.tasks.get(&id)?;
        let others = prefilled.in_transfer.iter().chain(&prefilled.ready);
        let others = others
            .chain(&self.running)
            .filter_map(|id| self.tasks.get(id));
        let reserved: f64 = others
            .clone()
            .map(|task| task.remaining_output() as f64 * self.new_token_ratio)
            .sum();
        let max = self.profile.max_running_requests + prefilled.extra;
        let needed = (task.tokens() + task.remaining_output()) as f64 + reserved;
        let is_alone = others.clone().next().is_none();
        let tokens = task.tokens();
        if others.count() >= max || (needed >= self.memory.available() as f64 && !is_alone) {
            return None;
        }
        self.prefilled.as_mut()?.in_transfer.push(id);
        self.waiting.pop_front();
        Some((id, tokens))
    }
}
