//! What is known of how a run was made.

use serde::Serialize;

/// From where on a send, or the event loop, is late; seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bounds {
    /// Shows in the figures.
    pub slight: f64,
    /// Spoils them.
    pub gross: f64,
}

/// Late is what is later than this share of the median time to the first token (of the whole answer, where there is no
/// token): a client that is a tenth of it late adds a tenth to what it measures.
const SLIGHT_SHARE: f64 = 0.1;
/// With half of it added, the figure is the client's as much as the server's.
const GROSS_SHARE: f64 = 0.5;
/// A scheduler gives other processes some milliseconds at a time: below, nothing is the generator's.
const SLIGHT: (f64, f64) = (0.010, 0.100);
/// However slow the server, half a second late is another load than the one asked for. (A client that is starved makes
/// the times it measures long, and must not be excused by them.)
const GROSS: (f64, f64) = (0.050, 0.500);

/// How late something was, over a run; seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Delay {
    /// Half of the time, or of the requests, no later than this.
    pub p50: f64,
    /// 99 %.
    pub p99: f64,
    /// At worst.
    pub max: f64,
}

/// The sends, beside those of the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Gaps {
    /// How long all sends took, over how long the schedule gave them.
    pub stretch: f64,
}

/// What is known of how a run was made. What nobody saw is `None`, and not judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    /// Requests of the whole run.
    pub scheduled: u64,
    /// Requests that were due.
    pub due: u64,
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that were not sent any more, as the run was stopped: they were not due, or waited for a slot.
    pub unsent: u64,
    /// Requests under way that were given up then.
    pub given_up: u64,
    /// Requests that failed; those given up when the run was stopped did not.
    pub failed: u64,
    /// Requests that the generator could not send for want of its own: files, ports.
    pub dropped: u64,
    /// Requests that waited for a `--max-concurrency` slot: not the generator's fault.
    pub waited_for_slot: u64,
    /// The generator's own lateness, sent − scheduled.
    pub lag: Option<Delay>,
    /// Requests later than [`Bounds::slight`], by the generator's own fault.
    pub late: u64,
    /// Requests later than [`Bounds::gross`].
    pub very_late: u64,
    /// How late the event loop woke, by time.
    pub event_loop: Option<Delay>,
    /// Share of the time that it was later than its [`Bounds::slight`].
    pub loop_late: f64,
    /// The same of [`Bounds::gross`].
    pub loop_very_late: f64,
    /// How long the sends took; `None` where all are due at once, or fewer than 20.
    pub gaps: Option<Gaps>,
    /// How late a send may be, seconds.
    pub bounds: Bounds,
    /// How late the event loop may be, seconds.
    pub loop_bounds: Bounds,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds::of(None, None)
    }
}

impl Bounds {
    /// What is late beside a median time to the first token (or of the whole answer) of `typical` seconds. Where all is
    /// due at once, no machine keeps the schedule: then `at_once` is how long the run took, and the measure.
    pub fn of(typical: Option<f64>, at_once: Option<f64>) -> Bounds {
        let typical = typical.unwrap_or(0.0);
        let whole = at_once.unwrap_or(0.0);
        let between = |share: f64, (least, most): (f64, f64)| {
            let relative = (share * typical).clamp(least, most);
            relative.max(share * whole)
        };
        Bounds {
            slight: between(SLIGHT_SHARE, SLIGHT),
            gross: between(GROSS_SHARE, GROSS),
        }
    }
}
