//! What a run is judged by.

use serde::Serialize;

use crate::clock::{NANOS, seconds};
use crate::report::load::Summary;
use crate::stats::Histogram;
use crate::traffic::driver::Run;
use crate::traffic::lag::Lag;
use crate::traffic::plan::Planned;

/// What is late, as a share of the median time to the first token (or of the response, if there are no tokens): a client that is a
/// tenth of it late adds a tenth to what it measures.
const LATE_SHARE: f64 = 0.1;
/// Less is not late, seconds: the system's scheduler gives other processes some milliseconds at a time, which is not the generator's
/// fault.
const NOT_LATE: f64 = 0.010;
/// More is late however slow the server, seconds: a starved client measures long times, which must not excuse it.
const ALWAYS_LATE: f64 = 0.100;

/// How late something was over a run, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Delay {
    /// The median, over time or over requests.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub max: f64,
}

/// What a run is judged by. What was not measured is `None`, and not judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    /// Requests of the whole schedule.
    pub scheduled: u64,
    /// Requests that were due.
    pub due: u64,
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that were not sent because the run was stopped: they were not due yet, or waited for a slot or connection.
    pub unsent: u64,
    /// Requests in flight that were given up when the run was stopped.
    pub given_up: u64,
    /// Requests that failed, without those given up.
    pub failed: u64,
    /// Requests that got no connection because this machine had no file descriptors or ports left.
    pub dropped: u64,
    /// Requests that waited for a `--max-concurrency` slot; not the generator's fault.
    pub waited_for_slot: u64,
    /// How late requests were sent (sent − scheduled), without waits for slots and connections.
    pub lag: Option<Delay>,
    /// Requests that were late by more than `bound`.
    pub late: u64,
    /// How late the event loop woke up, over time.
    pub event_loop: Option<Delay>,
    /// The share of time in which the event loop was late by more than `bound`.
    pub loop_late: f64,
    /// From how much on a send, or the event loop, is late; seconds.
    pub bound: f64,
}

/// From how much on a run is late, whose median time to the first token (or of the response) is `typical`; seconds.
pub fn bound(typical: Option<f64>) -> f64 {
    (LATE_SHARE * typical.unwrap_or(0.0)).clamp(NOT_LATE, ALWAYS_LATE)
}

/// Counts the delays above a bound of seconds.
fn count_above(delays: &Histogram, bound: f64) -> u64 {
    let counts = delays.counts(&[(bound * NANOS as f64) as i64]);
    counts.iter().skip(1).map(|count| u64::from(*count)).sum()
}

impl Delay {
    /// The quantiles of these delays, within 3.2 %; `None` if there are none.
    fn of(delays: &Histogram) -> Option<Delay> {
        let at = |q| delays.quantile(q).map(seconds);
        Some(Delay {
            p50: at(0.5)?,
            p99: at(0.99)?,
            max: at(1.0)?,
        })
    }
}

impl Evidence {
    /// What a run leaves: `delays` are those of its event loop.
    pub(in crate::traffic) fn of(run: &Run, summary: &Summary, delays: &Histogram) -> Evidence {
        let at = |planned: Option<&Planned>| planned.map(|planned| planned.offset_nanos);
        let is_at_once = at(run.schedule.first()) == at(run.schedule.last());
        let bound = bound(summary.typical_wait());
        let mut evidence = Evidence::measured(&run.lag, delays, bound);
        if is_at_once {
            // No machine can send all requests at the same moment.
            evidence.late = 0;
        }
        let scheduled = summary.run.scheduled as u64;
        let not_due = scheduled.saturating_sub(summary.requests());
        Evidence {
            scheduled,
            // Requests that were due and waited for a slot until the stop have rows, but were not sent either.
            unsent: u64::from(run.stopped) * (not_due + run.lag.unsent),
            given_up: run.lag.given_up,
            due: summary.requests(),
            failed: summary.failed(),
            dropped: run.dropped,
            ..evidence
        }
    }

    /// How late sends and event loop were.
    pub(in crate::traffic) fn measured(lag: &Lag, event_loop: &Histogram, bound: f64) -> Evidence {
        let loop_late = count_above(event_loop, bound);
        Evidence {
            sent: lag.delays.count(),
            waited_for_slot: lag.waited_for_slot,
            lag: Delay::of(&lag.delays),
            late: count_above(&lag.delays, bound),
            event_loop: Delay::of(event_loop),
            loop_late: loop_late as f64 / event_loop.count().max(1) as f64,
            bound,
            ..Evidence::default()
        }
    }
}
