//! What is said of a load, measured or predicted: the same functions of the same moments make both.

use crate::report::load::Goal;
use crate::stats::Summary;

use super::Error;
use super::load::{Load, Request, Times};

/// A latency of a request, seconds.
pub type Latency = fn(&Request, Times) -> f64;

/// From arrival to the first token.
pub const TTFT: Latency = |request, times| times.first - request.at;
/// From arrival to the end of the answer.
pub const TOTAL: Latency = |request, times| times.finish - request.at;
/// In prefill: from the queue's end to the first token.
pub const PREFILL: Latency = |_, times| times.first - times.admitted;
/// From each token to the next.
pub const TPOT: Latency = |request, times| {
    (times.finish - times.first) / f64::from(request.output.saturating_sub(1).max(1))
};
const QUEUE: Latency = |_, times| times.admitted - times.queued;
const DECODE: Latency = |_, times| times.finish - times.first;

/// What goals may be of, by their names there.
const OF_GOALS: [(&str, Latency); 7] = [
    ("ttft", TTFT),
    ("e2el", TOTAL),
    ("tpot", TPOT),
    ("total_latency", TOTAL),
    ("pure_queue_time", QUEUE),
    ("prefill_time", PREFILL),
    ("decode_time", DECODE),
];

/// What is said of a load: seconds, and requests a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Mean, p50 and p99 from arrival to the first token.
    pub ttft: [f64; 3],
    /// The same to the end of the answer.
    pub total: [f64; 3],
    /// The same in the server's queue.
    pub queue: [f64; 3],
    /// Requests that ended, in the time from the first arrival to the last end.
    pub throughput: f64,
    /// The share of all requests that kept all goals, where there are any: who is refused keeps none.
    pub kept: Option<f64>,
}

/// Goals with their latencies.
///
/// # Errors
/// One is of a latency that is not predicted.
pub fn goals(given: &[Goal]) -> Result<Vec<(Latency, f64)>, Error> {
    let of = |goal: &Goal| {
        let found = OF_GOALS.iter().find(|(name, _)| *name == goal.name);
        let names = || OF_GOALS.map(|(name, _)| name).join(", ");
        let (_, latency) = found.ok_or_else(|| {
            Error::Setting(format!(
                "--goodput {}: is not predicted; what can be a goal here is {}",
                goal.name,
                names()
            ))
        })?;
        Ok((*latency, goal.most_ms / 1e3))
    };
    given.iter().map(of).collect()
}

impl Figures {
    /// Of the requests of which it is known what became of them.
    pub fn of(load: &Load, goals: &[(Latency, f64)]) -> Figures {
        let three = |latency: Latency| {
            let all = load.seen().map(|(request, times)| latency(request, times));
            Summary::of(all).map_or([0.0; 3], |found| [found.mean, found.p50, found.p99])
        };
        let (mut first, mut last, mut done, mut good) = (f64::INFINITY, 0.0_f64, 0.0, 0.0);
        for (request, times) in load.seen() {
            (first, last) = (first.min(request.at), last.max(times.finish));
            done += 1.0;
            let is_kept = goals.iter().all(|(of, most)| of(request, times) <= *most);
            good += f64::from(is_kept);
        }
        Figures {
            ttft: three(TTFT),
            total: three(TOTAL),
            queue: three(QUEUE),
            throughput: if done > 0.0 {
                done / (last - first).max(1e-9)
            } else {
                0.0
            },
            kept: (!goals.is_empty()).then(|| good / load.requests.len().max(1) as f64),
        }
    }
}
