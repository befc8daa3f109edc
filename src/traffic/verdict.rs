//! Judges whether the figures of a run can be trusted: whether the generator sent the load that was asked for in time, and read the
//! responses in time.
//!
//! It judges effects (late sends, a late event loop, a load other than the one asked for), not their causes: a saturated client must not
//! be taken for a slow server.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

use crate::clock::{Clock, NANOS, seconds};
use crate::report::files::{Grade, Verdict};
use crate::request::{Moment, Outcome, Row};
use crate::stats::Histogram;
use crate::units::{duration, percent};

use super::client::Exchange;
use super::control::LiveProgress;

/// A figure with two limits: above the first the run is degraded, above the second invalid, which by some figures alone it never is.
type Limit = (fn(&Evidence) -> f64, f64, f64);

/// Figures that are judged together, and the reason that is given if one of them is above a limit.
type Criterion = (&'static [Limit], fn(&Evidence) -> String);

/// One percent of late sends is what decides the p99; with a tenth of the sends late, the load is another one. Tokens that arrive
/// while the event loop is late get late timestamps. Failures are the server's, and may be what is
/// tested: they never make a run invalid.
const CRITERIA: [Criterion; 7] = [
    (
        &[
            (|e| share_of_several(e.late, e.sent), 0.01, 0.1),
            (|e| share_of_several(e.very_late, e.sent), 0.002, 0.01),
        ],
        late_reason,
    ),
    (
        &[
            (|e| e.loop_late, 0.02, 0.2),
            (|e| e.loop_very_late, 0.01, 0.05),
        ],
        event_loop_reason,
    ),
    (&[(|e| share(e.dropped, e.due), 0.0, 0.01)], |e| {
        let dropped = count_of(e.dropped, e.due);
        format!(
            "{dropped} were never sent, as this machine gave no more files or ports: raise the limit (ulimit -n), or use several \
             generators (--shard)"
        )
    }),
    (
        &[
            (|e| (e.unsent + e.given_up) as f64, 0.0, f64::INFINITY),
            (|e| f64::from(e.sent == 0 && e.unsent > 0), 0.0, 0.0),
        ],
        |e| {
            let (unsent, given_up, all) = (e.unsent, e.given_up, e.scheduled);
            format!(
                "the run was stopped: {unsent} of {all} requests were never sent and {given_up} given up, so the figures are of its \
                 beginning"
            )
        },
    ),
    (&[(|e| e.unwritten as f64, 0.0, f64::INFINITY)], |e| {
        let unwritten = count_of(e.unwritten, e.due);
        format!("{unwritten} have no row, as the file could not be written")
    }),
    (&[(|e| share(e.empty, e.ok), 0.99, f64::INFINITY)], |e| {
        let empty = count_of(e.empty, e.due);
        format!(
            "{empty} went well without text or tokens: does the server speak this API (--backend)?"
        )
    }),
    (
        &[(|e| share_of_several(e.failed, e.due), 0.03, f64::INFINITY)],
        |e| {
            let latencies = match e.failed < e.due {
                true => "latencies are those of the others",
                false => "there are no latencies",
            };
            format!("{} failed: {latencies}", count_of(e.failed, e.due))
        },
    ),
];

/// Judges a run.
pub fn judge(evidence: &Evidence) -> Verdict {
    let mut found: Vec<(Grade, String)> = CRITERIA
        .iter()
        .filter_map(|(limits, reason)| Some((grade(limits, evidence)?, reason(evidence))))
        .collect();
    found.sort_by_key(|(grade, _)| std::cmp::Reverse(*grade));
    Verdict {
        grade: found.first().map_or(Grade::Valid, |(grade, _)| *grade),
        reasons: found.into_iter().map(|(_, reason)| reason).collect(),
    }
}

fn grade(limits: &[Limit], evidence: &Evidence) -> Option<Grade> {
    let grades = limits.iter().filter_map(|(value, degraded, invalid)| {
        let value = value(evidence);
        match value > *invalid {
            true => Some(Grade::Invalid),
            false => (value > *degraded).then_some(Grade::Degraded),
        }
    });
    grades.max()
}

impl Verdict {
    /// Renders the verdict for the terminal, with a line break at the end.
    pub fn to_text(&self, evidence: &Evidence) -> String {
        let figures = [("sends", evidence.lag), ("event loop", evidence.event_loop)];
        let figures = figures
            .into_iter()
            .filter_map(|(name, delay)| Some(format!("{name} p99 {} late", duration(delay?.p99))));
        let figures: Vec<String> = figures.collect();
        let colon = if figures.is_empty() { "" } else { ": " };
        let (grade, figures) = (self.grade.name(), figures.join(", "));
        let reasons = self
            .reasons
            .iter()
            .map(|reason| format!("{:<14}{reason}\n", ""));
        format!(
            "{:<14}{grade}{colon}{figures}\n{}",
            "verdict",
            reasons.collect::<String>()
        )
    }

    /// Marks `text`, the figures of a run: each block if they are invalid, once if they are degraded.
    pub fn marked(&self, text: &str) -> String {
        let line = match self.grade {
            Grade::Valid => return text.to_owned(),
            // The figures hold within what the reasons say.
            Grade::Degraded => {
                return format!("DEGRADED: read the verdict before these figures\n{text}");
            }
            Grade::Invalid => "INVALID: these figures are not the server's",
        };
        let blocks = text.split("\n\n").map(|block| format!("{line}\n{block}"));
        blocks.collect::<Vec<_>>().join("\n\n")
    }
}

fn share(count: u64, all: u64) -> f64 {
    count as f64 / all.max(1) as f64
}

/// The share of `count` in `all`; 0 of a single request, which says nothing about a share.
fn share_of_several(count: u64, all: u64) -> f64 {
    match count {
        0 | 1 => 0.0,
        count => share(count, all),
    }
}

fn count_of(count: u64, all: u64) -> String {
    let share = percent(share(count, all));
    format!("{count} of {all} requests ({share})")
}

fn late_reason(evidence: &Evidence) -> String {
    let (late, very_late) = (count_of(evidence.late, evidence.sent), evidence.very_late);
    let (bounds, lag) = (evidence.bounds, evidence.lag.unwrap_or_default());
    let [slight, gross, p99, max] = [bounds.slight, bounds.gross, lag.p99, lag.max].map(duration);
    format!(
        "{late} were sent more than {slight} late, {very_late} of them more than {gross} (p99 {p99}, at most {max}; not \
         counting waits for a slot or a connection): lower the rate, give the generator a processor of its own, or use \
         several (--shard)"
    )
}

fn event_loop_reason(evidence: &Evidence) -> String {
    let [late, very_late] = [evidence.loop_late, evidence.loop_very_late].map(percent);
    let bounds = evidence.bounds;
    let delay = evidence.event_loop.unwrap_or_default();
    let [slight, gross, p99, max] =
        [bounds.slight, bounds.gross, delay.p99, delay.max].map(duration);
    format!(
        "the generator's event loop woke more than {slight} late in {late} of the run, more than {gross} in {very_late} \
         (p99 {p99}, at most {max}): what arrived then has times that are too late"
    )
}

/// The limits above which a send, or the event loop, is late; in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
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

/// How long the measuring task sleeps between two wake-ups. A hundred wake-ups a second have no measurable cost.
const TICK_NANOS: i64 = 10_000_000;

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

/// How late the requests of a run were sent, and what they waited for.
#[derive(Clone, Debug, Default)]
pub struct Lag {
    /// Sent − scheduled, without the waits for a `--max-concurrency` slot and for the connection to open.
    pub(super) delays: Histogram,
    /// Requests that ended, sent or not.
    pub(super) ended: u64,
    /// Requests that went well.
    pub(super) ok: u64,
    /// Requests that went well, but whose answers, which could be read, had neither text nor tokens.
    pub(super) empty: u64,
    /// Requests that were given up before they were sent: they waited for a slot or a connection.
    pub(super) unsent: u64,
    /// Requests that were sent and given up before their response ended.
    pub(super) given_up: u64,
    /// Requests that waited for a slot.
    pub waited_for_slot: u64,
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
    /// Requests that went well.
    pub ok: u64,
    /// Requests that went well, but whose answers had neither text nor tokens.
    pub empty: u64,
    /// Requests that ended, but whose rows could not be written.
    pub unwritten: u64,
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
    /// Above which delays it is late.
    pub bounds: Bounds,
}

impl Bounds {
    /// The limits for a median time to the first token (or of the response) of `typical` seconds.
    pub fn of(typical: Option<f64>) -> Bounds {
        let limit =
            |share: f64, (min, max): (f64, f64)| (share * typical.unwrap_or(0.0)).clamp(min, max);
        Bounds {
            slight: limit(SLIGHT_SHARE, SLIGHT_RANGE),
            gross: limit(GROSS_SHARE, GROSS_RANGE),
        }
    }

    /// Counts the delays above each of the two.
    fn count_above(self, delays: &Histogram) -> [u64; 2] {
        let bounds = [self.slight, self.gross].map(|bound| (bound * NANOS as f64) as i64);
        let counts = delays.counts(&bounds);
        let from = |index: usize| counts.iter().skip(index).map(|count| u64::from(*count));
        [from(1).sum(), from(2).sum()]
    }
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
    /// How late sends and event loop were. No machine can send all requests at the same moment: `is_at_once`, none is late.
    pub(super) fn measured(
        lag: &Lag,
        event_loop: &Histogram,
        bounds: Bounds,
        is_at_once: bool,
    ) -> Evidence {
        let [late, very_late] = match is_at_once {
            true => [0, 0],
            false => bounds.count_above(&lag.delays),
        };
        let loop_late = bounds.count_above(event_loop);
        let [loop_late, loop_very_late] = loop_late.map(|count| share(count, event_loop.count()));
        Evidence {
            due: lag.ended,
            sent: lag.delays.count(),
            ok: lag.ok,
            empty: lag.empty,
            waited_for_slot: lag.waited_for_slot,
            lag: Delay::of(&lag.delays),
            late,
            very_late,
            event_loop: Delay::of(event_loop),
            loop_late,
            loop_very_late,
            bounds,
            ..Evidence::default()
        }
    }
}

impl Lag {
    /// Adds a request that was due, whether or not it got a slot.
    pub(super) fn add(&mut self, exchange: &Exchange) {
        let (slot, connect) = (exchange.slot_nanos, exchange.connect_nanos);
        self.ended += 1;
        let is_ok = exchange.outcome() == Outcome::Ok;
        let is_empty = |row: &Row| {
            row.has_generated_text == Some(false)
                && row.output_tokens().is_none_or(|count| count == 0)
        };
        self.ok += u64::from(is_ok);
        self.empty += u64::from(is_ok && exchange.rows.iter().all(is_empty));
        self.waited_for_slot += u64::from(slot > 0);
        let given_up = u64::from(exchange.outcome() == Outcome::ClientAbort);
        let at = |moment| exchange.rows.first()?.timeline.raw(moment);
        let Some((scheduled, sent)) = at(Moment::Scheduled).zip(at(Moment::Sent)) else {
            self.unsent += given_up;
            return;
        };
        self.given_up += given_up;
        let late = (sent.nanos_since(scheduled) - slot - connect).max(0);
        self.delays.record(late, 1);
    }

    /// Returns the warning that goes with the run's figures, apart from the verdict.
    pub fn warning(&self) -> Option<String> {
        let count = self.waited_for_slot;
        (count > 0).then(|| {
            format!(
                "{count} requests waited for a --max-concurrency slot: the load was not an open loop, and only figures from \
                 the schedule hold that wait"
            )
        })
    }
}

/// Starts to measure on the caller's runtime; returns the delays of the ticks, one each 10 ms. Measures from the start of the run of
/// `live` (the generator is idle before) until the histogram is dropped.
pub(super) fn event_loop_delays(clock: Clock, live: Arc<LiveProgress>) -> Arc<Mutex<Histogram>> {
    let delays = Arc::<Mutex<Histogram>>::default();
    let weak = Arc::downgrade(&delays);
    tokio::spawn(async move {
        // The start is announced ahead of time.
        clock.wait_until(live.began().await).await;
        loop {
            let due = clock.now().plus_nanos(TICK_NANOS);
            tokio::time::sleep(Duration::from_nanos(TICK_NANOS.unsigned_abs())).await;
            let Some(delays) = weak.upgrade() else { return };
            record_tick(&mut delays.lock(), clock.now().nanos_since(due));
        }
    });
    delays
}

/// Records a wake-up, and the ticks that it missed, each with its own delay: a loop that is blocked for a second must not count as
/// one late tick of many.
fn record_tick(delays: &mut Histogram, mut nanos: i64) {
    delays.record(nanos.max(0), 1);
    while nanos > TICK_NANOS {
        nanos -= TICK_NANOS;
        delays.record(nanos, 1);
    }
}

#[cfg(test)]
mod tests;
