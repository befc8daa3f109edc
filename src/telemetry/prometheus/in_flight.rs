//! Requests and attempts in flight, by phase.

use prometheus::IntGauge;

use super::{Metrics, RequestPhase};

/// The only phase of a pair's leg to its prefill server: meanwhile the request waits for, or streams from, the decode server.
const PREFILLING: &str = "prefilling";

/// A request or attempt in flight. Dropping it ends it.
#[derive(Debug)]
pub struct InFlight {
    /// By [`RequestPhase`].
    gauges: [IntGauge; 3],
    phase: RequestPhase,
}

impl Metrics {
    /// Counts a generation request as in flight until the returned value is dropped.
    pub fn begin_request(&self) -> InFlight {
        InFlight::new(self.in_flight_gauges.clone(), RequestPhase::Receiving)
    }

    /// Counts an attempt at `worker` as in flight until the returned value is dropped.
    pub fn begin_attempt(&self, worker: &str) -> InFlight {
        let gauge = |phase: RequestPhase| self.worker_in_flight.with(&[worker, phase.name()]);
        let (waiting, streaming) = (gauge(RequestPhase::Waiting), gauge(RequestPhase::Streaming));
        InFlight::new([waiting.clone(), waiting, streaming], RequestPhase::Waiting)
    }

    /// The same for a leg to the prefill server `worker` of a pair.
    pub fn begin_leg(&self, worker: &str) -> InFlight {
        let gauge = self.worker_in_flight.with(&[worker, PREFILLING]);
        InFlight::new([gauge.clone(), gauge.clone(), gauge], RequestPhase::Waiting)
    }

    /// Creates the series of `worker`, so that it is shown before its first attempt.
    pub fn expect_worker(&self, worker: &str) {
        self.attempts.with(&[worker, "ok"]);
        for phase in [RequestPhase::Waiting, RequestPhase::Streaming] {
            self.worker_in_flight.with(&[worker, phase.name()]);
        }
    }

    /// Returns the number of generation requests in flight.
    pub fn in_flight(&self) -> i64 {
        self.in_flight_gauges.iter().map(IntGauge::get).sum()
    }

    /// Returns the number of generation requests in flight, by phase.
    pub fn in_flight_by_phase(&self) -> [(&'static str, i64); 3] {
        RequestPhase::ALL.map(|phase| (phase.name(), self.in_flight_gauges[phase as usize].get()))
    }

    /// Returns the number of attempts in flight, with worker and phase.
    pub fn in_flight_by_worker(&self) -> Vec<(String, String, i64)> {
        let sets = self.worker_in_flight.sets().into_iter();
        let of_set = |(values, gauge): (Vec<String>, IntGauge)| {
            let [worker, phase] = values.try_into().ok()?;
            Some((worker, phase, gauge.get()))
        };
        let mut all: Vec<_> = sets.filter_map(of_set).collect();
        all.sort();
        all
    }
}

impl InFlight {
    fn new(gauges: [IntGauge; 3], phase: RequestPhase) -> InFlight {
        gauges[phase as usize].inc();
        InFlight { gauges, phase }
    }

    /// Moves it to another phase.
    pub fn enter(&mut self, phase: RequestPhase) {
        if phase != self.phase {
            // In this order a reader may count it twice, but never misses it.
            self.gauges[phase as usize].inc();
            self.gauges[self.phase as usize].dec();
            self.phase = phase;
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.gauges[self.phase as usize].dec();
    }
}
