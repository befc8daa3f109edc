//! Requests on the decode server of a pair: memory is reserved for them first, then their KV cache arrives from the prefill
//! server, then they run. Memory for the whole output is reserved, so it never runs out during decode.

use crate::clock::Stamp;

use crate::sim::engine::Engine;
use crate::sim::engine::event::EventKind;
use crate::sim::engine::task::Task;

impl Engine {
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
    pub(super) fn admit_prefilled(&mut self, at: Stamp, starts: Stamp) {
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
