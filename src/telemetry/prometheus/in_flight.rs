//! Requests and attempts under way, by how far they have come.

use prometheus::IntGauge;

use super::{Metrics, Progress};

/// The phase of a leg to a pair's prefill server, from its beginning to its end: the request waits at, or streams from, the
/// server that decodes.
const PREFILLING: &str = "prefilling";

/// One request or attempt that is under way. Once dropped it is no more.
#[derive(Debug)]
pub struct UnderWay {
    /// By [`Progress`].
    levels: [IntGauge; 3],
    phase: Progress,
}

impl Metrics {
    /// A generation request came: it is in flight until what this gives is dropped.
    pub fn request_began(&self) -> UnderWay {
        UnderWay::new(self.in_flight_levels.clone(), Progress::Receiving)
    }

    /// An attempt at `worker` began: it is in flight until what this gives is dropped.
    pub fn attempt_began(&self, worker: &str) -> UnderWay {
        let level = |phase: Progress| self.worker_in_flight.with(&[worker, phase.name()]);
        let (waiting, streaming) = (level(Progress::Waiting), level(Progress::Streaming));
        UnderWay::new([waiting.clone(), waiting, streaming], Progress::Waiting)
    }

    /// A leg to the prefill server `worker` of a pair began.
    pub fn leg_began(&self, worker: &str) -> UnderWay {
        let level = self.worker_in_flight.with(&[worker, PREFILLING]);
        UnderWay::new([level.clone(), level.clone(), level], Progress::Waiting)
    }

    /// There may be attempts at `worker`: shows that there have been none yet.
    pub fn expect_worker(&self, worker: &str) {
        self.attempts.with(&[worker, "ok"]);
        for phase in [Progress::Waiting, Progress::Streaming] {
            self.worker_in_flight.with(&[worker, phase.name()]);
        }
    }

    /// Generation requests under way.
    pub fn in_flight(&self) -> i64 {
        self.in_flight_levels.iter().map(IntGauge::get).sum()
    }

    /// Generation requests under way by phase.
    pub fn in_flight_by_phase(&self) -> [(&'static str, i64); 3] {
        Progress::ALL.map(|phase| (phase.name(), self.in_flight_levels[phase as usize].get()))
    }

    /// Attempts under way: worker, phase and how many.
    pub fn in_flight_by_worker(&self) -> Vec<(String, String, i64)> {
        let sets = self.worker_in_flight.sets().into_iter();
        let of_set = |(values, level): (Vec<String>, IntGauge)| {
            let [worker, phase] = values.try_into().ok()?;
            Some((worker, phase, level.get()))
        };
        let mut all: Vec<_> = sets.filter_map(of_set).collect();
        all.sort();
        all
    }
}

impl UnderWay {
    fn new(levels: [IntGauge; 3], phase: Progress) -> UnderWay {
        levels[phase as usize].inc();
        UnderWay { levels, phase }
    }

    /// It has come to this.
    pub fn enter(&mut self, phase: Progress) {
        if phase != self.phase {
            // In this order no reader finds it nowhere.
            self.levels[phase as usize].inc();
            self.levels[self.phase as usize].dec();
            self.phase = phase;
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.levels[self.phase as usize].dec();
    }
}
