//! The servers' request logs on this disk: they tell of streamed chats what their responses do not. Rows wait for them.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use crate::clock::{NANOS, Stamp};
use crate::engine::request_log::Folder;
use crate::request::told::Told;

use super::client::Exchange;

/// The logs of a folder, from the beginning of a run on, and the requests that wait for their lines.
#[derive(Debug)]
pub(super) struct EngineLogs {
    folder: Folder,
    /// What was told of sequences, by the engine's ids of them.
    told: HashMap<String, Told>,
    /// With when they wait no longer.
    waiting: VecDeque<(Stamp, Exchange)>,
    looked: Stamp,
}

/// A server writes a line when the response is over; of a client that left there is never one.
const PATIENCE_NANOS: i64 = 2 * NANOS;

impl EngineLogs {
    /// How often they are looked at, at most.
    pub(super) const LOOK: Duration = Duration::from_millis(50);
    /// The same in nanoseconds.
    pub(super) const LOOK_NANOS: i64 = NANOS / 20;

    /// What lies in `folder` by now is not of the run.
    pub(super) fn begin(folder: &Path) -> EngineLogs {
        let mut folder = Folder::new(folder.to_owned());
        folder.look(&mut |_| {});
        EngineLogs {
            folder,
            told: HashMap::new(),
            waiting: VecDeque::new(),
            looked: Stamp::from_nanos(0),
        }
    }

    /// A request that ended `now` waits for what is told of it.
    pub(super) fn wait(&mut self, exchange: Exchange, now: Stamp) {
        let until = now.plus_nanos(PATIENCE_NANOS);
        self.waiting.push_back((until, exchange));
    }

    /// Whether any request waits.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The requests that wait no longer, with what was told of them.
    pub(super) fn ready(&mut self, now: Stamp) -> Vec<Exchange> {
        if self.waiting.is_empty() || now.nanos_since(self.looked) < EngineLogs::LOOK_NANOS {
            return Vec::new();
        }
        self.looked = now;
        let told = &mut self.told;
        self.folder.look(&mut |line| {
            told.extend(line.rid.clone().map(|rid| (rid, line)));
        });
        let (mut ready, mut waiting) = (Vec::new(), VecDeque::new());
        for (until, mut exchange) in self.waiting.drain(..) {
            let ids = || exchange.observed.engine_ids();
            if until > now && !ids().all(|id| told.contains_key(id)) {
                waiting.push_back((until, exchange));
                continue;
            }
            exchange.observed.take_told(told);
            for id in exchange.observed.engine_ids() {
                told.remove(id);
            }
            ready.push(exchange);
        }
        self.waiting = waiting;
        ready
    }
}
