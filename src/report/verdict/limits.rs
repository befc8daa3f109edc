//! From where on a run is degraded, and invalid.

use super::evidence::Evidence;
use super::grade::Grade;
use super::words;

/// One thing that is judged: a share, and from where on it is what.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// What is judged.
    pub what: &'static str,
    /// Above this a run is degraded.
    pub degraded: f64,
    /// Above this it is invalid; `None`: this alone never makes it so.
    pub invalid: Option<f64>,
    /// Why there.
    pub why: &'static str,
}

const LATE: Limit = Limit {
    what: "requests sent late (slight bound)",
    degraded: 0.01,
    invalid: Some(0.1),
    why: "a percent of late sends is what the p99 holds; with a tenth of them the load is another",
};
const VERY_LATE: Limit = Limit {
    what: "requests sent very late (gross bound)",
    degraded: 0.002,
    invalid: Some(0.01),
    why: "a percent of them alone can make the p99",
};
const LOOP_LATE: Limit = Limit {
    what: "time in which the event loop woke late (slight bound)",
    degraded: 0.02,
    invalid: Some(0.2),
    why: "tokens that come in such a time are stamped late, so this share of them is",
};
const LOOP_VERY_LATE: Limit = Limit {
    what: "time in which the event loop woke very late (gross bound)",
    degraded: 0.01,
    invalid: Some(0.05),
    why: "the same; a client that stood still for a twentieth of the run did not see a twentieth of it",
};
const STRETCH: Limit = Limit {
    what: "time that all sends took beyond the schedule's",
    degraded: 0.02,
    invalid: Some(0.1),
    why: "the rate was lower by that share: a tenth of the load is often all that a queue is about",
};
const DROPPED: Limit = Limit {
    what: "requests that the generator could not send (no file, no port left)",
    degraded: 0.0,
    invalid: Some(0.01),
    why: "the load is lower by that share, and nobody asked the server",
};
const STOPPED: Limit = Limit {
    what: "requests that were never sent, or given up, as the run was stopped",
    degraded: 0.0,
    invalid: None,
    why: "the figures are of the run's beginning, when the servers' queues were not yet what they become",
};
const FAILED: Limit = Limit {
    what: "requests that failed",
    degraded: 0.03,
    invalid: None,
    why: "latencies are those of the others; but to fail is the server's doing, and may be what is tested",
};
const LOOP_BUSY: Limit = Limit {
    what: "time that the event loop's threads were at work",
    degraded: 0.9,
    invalid: None,
    why: "what comes next waits; whether it shows is judged by the delays themselves",
};
/// All that is judged, in the order of the documents.
pub const LIMITS: [&Limit; 9] = [
    &LATE,
    &VERY_LATE,
    &LOOP_LATE,
    &LOOP_VERY_LATE,
    &STRETCH,
    &DROPPED,
    &STOPPED,
    &FAILED,
    &LOOP_BUSY,
];

impl Limit {
    fn grade(&self, value: f64) -> Option<Grade> {
        if self.invalid.is_some_and(|most| value > most) {
            Some(Grade::Invalid)
        } else {
            (value > self.degraded).then_some(Grade::Degraded)
        }
    }
}

/// What is beyond a limit, in sentences.
pub(super) fn judged(evidence: &Evidence) -> Vec<(Grade, String)> {
    let due = evidence.due.max(1) as f64;
    // One request tells nothing of a share.
    let several = |count: u64| if count > 1 { count as f64 / due } else { 0.0 };
    let gaps = evidence.gaps;
    let worse = |a: Option<Grade>, b: Option<Grade>| a.max(b);
    let late = worse(
        LATE.grade(several(evidence.late)),
        VERY_LATE.grade(several(evidence.very_late)),
    );
    let event_loop = worse(
        LOOP_LATE.grade(evidence.loop_late),
        LOOP_VERY_LATE.grade(evidence.loop_very_late),
    );
    let grade = |limit: &Limit, value: Option<f64>| value.and_then(|value| limit.grade(value));
    let stretch = grade(&STRETCH, gaps.map(|gaps| gaps.stretch - 1.0));
    let all = [
        (late, words::late as fn(&Evidence) -> String),
        (event_loop, words::event_loop),
        (stretch, words::stretch),
        (DROPPED.grade(evidence.dropped as f64 / due), words::dropped),
        (
            STOPPED.grade((evidence.unsent + evidence.given_up) as f64),
            words::stopped,
        ),
        (FAILED.grade(several(evidence.failed)), words::failed),
        (grade(&LOOP_BUSY, evidence.cpu.loop_busy), words::busy),
    ];
    let found = all.into_iter();
    found
        .filter_map(|(grade, words)| Some((grade?, words(evidence))))
        .collect()
}
