//! Requests and attempts under way, by how far they have come.

use std::sync::Arc;

use prometheus::{Registry, Result};

use crate::telemetry::family::{Family, Level};
use crate::telemetry::metric::Metric;

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has not been sent on.
    Receiving,
    /// It was sent, and no token has come back.
    Waiting,
    /// A token has come back.
    Streaming,
}

/// What is under way.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    /// By [`Progress`].
    requests: [Arc<Level>; 3],
    at_workers: Family<Level>,
}

/// One request or attempt that is under way. Once dropped it is no more.
#[derive(Debug)]
pub struct UnderWay {
    levels: [Arc<Level>; 3],
    phase: Progress,
}

const REQUESTS: Metric = Metric::gauge(
    "queuescope_in_flight",
    &["phase"],
    "Generation requests under way. `receiving`: not yet sent on; `waiting`: sent, and no token back (in the router, the \
        server's queue or prefill); `streaming`: a token was seen. Replies that are no stream wait to their end.",
);
const AT_WORKERS: Metric = Metric::gauge(
    "queuescope_worker_in_flight",
    &["worker", "phase"],
    "Attempts at each worker, as its hop sees them (without hops, where the upstream is the server itself, by upstream): \
        `waiting`, or `streaming` once the first bytes came back. Requests in the router now: \
        `queuescope_in_flight{phase=\"waiting\"}` less the sum of these that wait.",
);

pub(super) const METRICS: &[Metric] = &[REQUESTS, AT_WORKERS];

impl Progress {
    /// The name in the label.
    pub const fn name(self) -> &'static str {
        match self {
            Progress::Receiving => "receiving",
            Progress::Waiting => "waiting",
            Progress::Streaming => "streaming",
        }
    }
}

impl InFlight {
    pub(super) fn new(registry: &Registry, most: usize) -> Result<InFlight> {
        let requests = Family::<Level>::new(registry, &REQUESTS, most)?;
        let phases = [Progress::Receiving, Progress::Waiting, Progress::Streaming];
        Ok(InFlight {
            requests: phases.map(|phase| requests.with(&[phase.name()])),
            at_workers: Family::new(registry, &AT_WORKERS, most)?,
        })
    }

    /// A request has come.
    pub(super) fn request(&self) -> UnderWay {
        UnderWay::new(self.requests.clone(), Progress::Receiving)
    }

    /// An attempt at `worker` has begun.
    pub(super) fn attempt(&self, worker: &str) -> UnderWay {
        let level = |phase: Progress| self.at_workers.with(&[worker, phase.name()]);
        let (waiting, streaming) = (level(Progress::Waiting), level(Progress::Streaming));
        UnderWay::new([waiting.clone(), waiting, streaming], Progress::Waiting)
    }

    /// There may be attempts at `worker`.
    pub(super) fn expect_worker(&self, worker: &str) {
        for phase in [Progress::Waiting, Progress::Streaming] {
            self.at_workers.with(&[worker, phase.name()]);
        }
    }

    /// Requests under way by phase.
    pub(super) fn by_phase(&self) -> [(&'static str, i64); 3] {
        let phases = [Progress::Receiving, Progress::Waiting, Progress::Streaming];
        phases.map(|phase| (phase.name(), self.requests[phase as usize].get()))
    }

    /// Attempts under way: worker, phase and how many.
    pub(super) fn by_worker(&self) -> Vec<(String, String, i64)> {
        let sets = self.at_workers.sets().into_iter();
        let of_set = |(values, level): (Vec<String>, Arc<Level>)| {
            let mut values = values.into_iter();
            Some((values.next()?, values.next()?, level.get()))
        };
        sets.filter_map(of_set).collect()
    }

    /// Requests under way.
    pub(super) fn requests(&self) -> i64 {
        self.requests.iter().map(|level| level.get()).sum()
    }
}

impl UnderWay {
    fn new(levels: [Arc<Level>; 3], phase: Progress) -> UnderWay {
        levels[phase as usize].rise();
        UnderWay { levels, phase }
    }

    /// It has come to this.
    pub fn enter(&mut self, phase: Progress) {
        if phase != self.phase {
            // In this order no reader finds it nowhere.
            self.levels[phase as usize].rise();
            self.levels[self.phase as usize].fall();
            self.phase = phase;
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.levels[self.phase as usize].fall();
    }
}
