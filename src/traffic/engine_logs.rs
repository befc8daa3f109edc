//! The servers' request logs on this disk: they tell of streamed chats what their responses do not. Rows wait for them.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use crate::clock::{NANOS, Stamp};
use crate::engine::fifo::Fifo;
use crate::engine::request_log::Folder;
use crate::request::told::Told;

use super::client::Exchange;

/// The logs of a folder, from the beginning of a run on, and the requests that wait for their lines.
#[derive(Debug)]
pub(super) struct EngineLogs {
    folder: Folder,
    /// What was told of sequences, by the engine's ids of them: of those of other clients of the servers too.
    told: Fifo<String, Told>,
    /// With when they wait no longer.
    waiting: VecDeque<(Stamp, Exchange)>,
    looked: Stamp,
}

/// A server writes a line when the response is over; of a client that left there is never one.
const PATIENCE_NANOS: i64 = 2 * NANOS;
/// Lines that are held, other clients' too; beyond it the oldest go.
const MOST_TOLD: usize = 65_536;

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
            told: Fifo::new(MOST_TOLD),
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
        self.folder.look(&mut |line| keep(told, line, now));
        let (mut ready, mut waiting) = (Vec::new(), VecDeque::new());
        for (until, mut exchange) in self.waiting.drain(..) {
            let ids: Vec<String> = exchange.observed.engine_ids().map(str::to_owned).collect();
            if until > now && ids.iter().any(|id| told.get(id).is_empty()) {
                waiting.push_back((until, exchange));
                continue;
            }
            let take = |id: String| {
                let own = told.retain(&id, |_| false).pop()?;
                Some((id, own))
            };
            let own = ids.into_iter().filter_map(take).collect();
            exchange.observed.take_told(&own);
            ready.push(exchange);
        }
        self.waiting = waiting;
        ready
    }
}

fn keep(told: &mut Fifo<String, Told>, line: Told, now: Stamp) {
    if let Some(rid) = line.rid.clone() {
        told.add(rid, line, now, 1);
        told.bound(now, |_| false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::sequence::TimingSource;

    #[test]
    fn lines_of_other_clients_do_not_pile_up() {
        let mut logs = EngineLogs::begin(Path::new("."));
        let now = Stamp::from_nanos(0);
        for n in 0..=MOST_TOLD {
            let line = Told {
                rid: Some(n.to_string()),
                ..Told::of(TimingSource::Log)
            };
            keep(&mut logs.told, line, now);
        }
        assert_eq!(logs.told.len, MOST_TOLD);
        assert!(logs.told.get("0").is_empty());
        assert_eq!(logs.told.get(&MOST_TOLD.to_string()).len(), 1);
    }
}
