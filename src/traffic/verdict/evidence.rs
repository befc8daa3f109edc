//! What a run is judged by.

use serde::Serialize;

/// The limits above which a send, or the event loop, is late; in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bounds {
    /// Late enough to show in the figures.
    pub slight: f64,
    /// Late enough to spoil them.
    pub gross: f64,
}

/// The slight limit as a share of the median time to the first token (or of the response, if there are no tokens): a client that is
/// a tenth of it late adds a tenth to what it measures.
const SLIGHT_SHARE: f64 = 0.1;
/// The gross limit as a share of the same: with half of it added, the figure is the client's as much as the server's.
const GROSS_SHARE: f64 = 0.5;
/// The range of the slight limit. The system's scheduler gives other processes some milliseconds at a time, which is not the
/// generator's fault.
const SLIGHT_RANGE: (f64, f64) = (0.010, 0.100);
/// The range of the gross limit. However slow the server, half a second late is another load; and a starved client measures long
/// times, which must not excuse it.
const GROSS_RANGE: (f64, f64) = (0.050, 0.500);

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
    /// Requests sent later than [`Bounds::slight`].
    pub late: u64,
    /// Requests sent later than [`Bounds::gross`].
    pub very_late: u64,
    /// How late the event loop woke up, over time.
    pub event_loop: Option<Delay>,
    /// The share of time in which the event loop was later than [`Bounds::slight`].
    pub loop_late: f64,
    /// The share of time in which it was later than [`Bounds::gross`].
    pub loop_very_late: f64,
    /// The limits of late sends.
    pub bounds: Bounds,
    /// The limits of the event loop.
    pub loop_bounds: Bounds,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds::of(None, None)
    }
}

impl Bounds {
    /// The limits for a median time to the first token (or of the response) of `typical` seconds. If all requests are due at once,
    /// which no machine can achieve, `at_once` is how long the run took, and the limits are shares of that.
    pub fn of(typical: Option<f64>, at_once: Option<f64>) -> Bounds {
        let (typical, at_once) = (typical.unwrap_or(0.0), at_once.unwrap_or(0.0));
        let limit = |share: f64, (min, max): (f64, f64)| {
            let relative = (share * typical).clamp(min, max);
            relative.max(share * at_once)
        };
        Bounds {
            slight: limit(SLIGHT_SHARE, SLIGHT_RANGE),
            gross: limit(GROSS_SHARE, GROSS_RANGE),
        }
    }
}
