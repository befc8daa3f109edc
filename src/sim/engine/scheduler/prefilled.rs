//! Requests that another server prefills: a decode server of a pair gives them room in its KV cache first, waits for what
//! comes there, and then lets them run.

use std::collections::VecDeque;

use crate::clock::Stamp;

use super::{EventKind, ROOM_STEPS, Scheduler, Task};

/// Where they are before they run.
#[derive(Debug)]
pub(super) struct Prefilled {
    /// So many may have room beside those that may run.
    extra: usize,
    /// They have room; their KV cache has not come yet.
    pub(super) coming: Vec<u64>,
    /// It has; they wait for a slot. Those that were retracted have lost their room again.
    pub(super) ready: VecDeque<u64>,
}

impl Prefilled {
    pub(super) fn new(extra: usize) -> Prefilled {
        Prefilled {
            extra,
            coming: Vec::new(),
            ready: VecDeque::new(),
        }
    }

    /// Takes one out that does not run.
    pub(super) fn remove(&mut self, id: u64) {
        self.coming.retain(|other| *other != id);
        self.ready.retain(|other| *other != id);
    }
}

impl Scheduler {
    /// What a request was prefilled to has come.
    pub(in super::super) fn arrive(&mut self, id: u64, at: Stamp) {
        let Some(prefilled) = &mut self.prefilled else {
            return;
        };
        if let Some(place) = prefilled.coming.iter().position(|coming| *coming == id) {
            prefilled.coming.remove(place);
            prefilled.ready.push_back(id);
            self.tell(id, at, EventKind::Arrived);
        }
    }

    /// Reserves room for those that wait for it, in their order, and lets those run that have all and find a slot.
    pub(super) fn let_run(&mut self, at: Stamp, starts: Stamp) {
        while let Some((id, tokens)) = self.next_unreserved() {
            if let Some(task) = self.tasks.get_mut(&id) {
                self.memory.take(&mut task.hold, tokens);
            }
            self.tell(id, at, EventKind::Reserved);
        }
        while let Some(id) = self.next_ready() {
            self.running.push(id);
            // Of the round's time one half goes until it is picked, one until what the other server made is told.
            let picked = at.plus_nanos(starts.nanos_since(at) / 2);
            self.tell(id, picked, EventKind::Admitted { cached: 0 });
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            task.is_decoding = true;
            if task.made == 0 {
                // The other server made it.
                task.made = 1;
                let last = task.made >= task.wanted;
                self.tell(id, starts, EventKind::Token { last });
                if last {
                    self.leave(id);
                }
            }
        }
    }

    /// The first that may run, taken out of its queue.
    fn next_ready(&mut self) -> Option<u64> {
        if self.running.len() >= self.profile.max_running_requests {
            return None;
        }
        let prefilled = self.prefilled.as_mut()?;
        let (tasks, memory) = (&mut self.tasks, &mut self.memory);
        // One that was retracted needs room again.
        let fits = |task: &Task| {
            task.hold.tokens() > 0 || task.tokens() + ROOM_STEPS <= memory.available()
        };
        let mut ready = prefilled.ready.iter();
        let place = ready.position(|id| tasks.get(id).is_some_and(fits))?;
        let id = prefilled.ready.remove(place)?;
        let task = tasks.get_mut(&id)?;
        if task.hold.tokens() == 0 {
            memory.take(&mut task.hold, task.prompt.tokens() + u64::from(task.made));
        }
        Some(id)
    }

    /// The first that waits for room, if there is room for it, and the tokens of its prompt.
    fn next_unreserved(&mut self) -> Option<(u64, u64)> {
        let prefilled = self.prefilled.as_ref()?;
        let id = *self.waiting.front()?;
        let task = self.tasks.get(&id)?;
        let held = prefilled.coming.iter().chain(&prefilled.ready);
        let held = held
            .chain(&self.running)
            .filter_map(|id| self.tasks.get(id));
        let kept: f64 = held
            .clone()
            .map(|task| task.may_make() as f64 * self.ratio)
            .sum();
        let most = self.profile.max_running_requests + prefilled.extra;
        let needs = (task.tokens() + task.may_make()) as f64 + kept;
        let is_alone = held.clone().next().is_none();
        let tokens = task.tokens();
        if held.count() >= most || (needs >= self.memory.available() as f64 && !is_alone) {
            return None;
        }
        self.prefilled.as_mut()?.coming.push(id);
        self.waiting.pop_front();
        Some((id, tokens))
    }
}
