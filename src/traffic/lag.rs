//! How late the generator itself sent: a saturated client must not be taken for a slow server.

use crate::clock::{NANOS, Stamp, seconds};
use crate::request::outcome::Outcome;
use crate::request::timeline::Moment;
use crate::stats::Histogram;
use crate::units::duration;

use super::client::Exchange;
use super::verdict::{Bounds, Delay, Evidence, Gaps};

/// How late the requests of a run were sent, and what they waited for.
#[derive(Clone, Debug, Default)]
pub struct Lag {
    /// Sent − scheduled, without the waits for a `--max-concurrency` slot and for the connection to open.
    delays: Histogram,
    /// Requests that were given up before they were sent: they waited for a slot or a connection.
    pub(super) unsent: u64,
    /// Requests that were sent and given up before their response ended.
    pub(super) given_up: u64,
    /// Requests that waited for a slot.
    pub waited_for_slot: u64,
    /// The longest wait for a slot.
    max_slot_nanos: i64,
    /// Requests that waited longer than [`SLOW_CONNECT_NANOS`] for their connection.
    slow_connects: u64,
    /// The longest wait for a connection.
    max_connect_nanos: i64,
    /// When the first and the last request were due.
    due: Option<(Stamp, Stamp)>,
    /// When the first and the last request were sent, without their waits for a slot or connection.
    sent: Option<(Stamp, Stamp)>,
}

/// Fewer sends have no rate worth judging.
const MIN_SENDS: u64 = 20;
/// Connections that take longer to open delay requests noticeably.
const SLOW_CONNECT_NANOS: i64 = 10_000_000;
/// The warning about slow connections is given if more than one of this many requests met one.
const WARN_ONE_OF: u64 = 100;

impl Lag {
    /// Adds a request that was due, whether or not it got a slot.
    pub(super) fn add(&mut self, exchange: &Exchange) {
        let (slot, connect) = (exchange.slot_nanos, exchange.connect_nanos);
        self.waited_for_slot += u64::from(slot > 0);
        self.max_slot_nanos = self.max_slot_nanos.max(slot);
        let given_up = u64::from(exchange.outcome() == Outcome::ClientAbort);
        let scheduled = exchange.at(Moment::Scheduled);
        let Some((scheduled, sent)) = scheduled.zip(exchange.at(Moment::Sent)) else {
            self.unsent += given_up;
            return;
        };
        self.given_up += given_up;
        let late = (sent.nanos_since(scheduled) - slot - connect).max(0);
        self.delays.record(late, 1);
        self.slow_connects += u64::from(connect > SLOW_CONNECT_NANOS);
        self.max_connect_nanos = self.max_connect_nanos.max(connect);
        for (range, at) in [
            (&mut self.due, scheduled),
            (&mut self.sent, scheduled.plus_nanos(late)),
        ] {
            let (first, last) = range.unwrap_or((at, at));
            *range = Some((first.min(at), last.max(at)));
        }
    }

    /// Returns the warnings that go with the run's figures, apart from the verdict.
    pub fn warnings(&self) -> Vec<String> {
        let (mut warnings, count) = (Vec::new(), self.delays.count());
        if self.waited_for_slot > 0 {
            warnings.push(format!(
                "{} requests waited for a --max-concurrency slot, at most {}: the load was not an open \
                 loop, and only figures from the schedule hold that wait",
                self.waited_for_slot,
                duration(seconds(self.max_slot_nanos))
            ));
        }
        if self.slow_connects * WARN_ONE_OF > count {
            warnings.push(format!(
                "{} of {count} requests waited more than {} ms for their connection to open, at most {}: they came to the \
                 server later than scheduled, by no fault of the generator; only figures from the schedule hold that wait",
                self.slow_connects,
                SLOW_CONNECT_NANOS / 1_000_000,
                duration(seconds(self.max_connect_nanos))
            ));
        }
        warnings
    }

    /// Adds these figures to the evidence of a run.
    pub(super) fn add_to(&self, evidence: &mut Evidence) {
        evidence.lag = Delay::of(&self.delays);
        [evidence.late, evidence.very_late] = count_later(&self.delays, evidence.bounds);
        evidence.sent = self.delays.count();
        evidence.waited_for_slot = self.waited_for_slot;
        evidence.gaps = self.gaps(evidence.bounds.gross);
    }

    /// Compares how long all sends took with the schedule; `None` if all were due at once or there are too few. Waits for slots and
    /// connections do not count, as they are not the generator's fault. A difference below `gross` does not count either: it may
    /// be one late request at the end.
    fn gaps(&self, gross: f64) -> Option<Gaps> {
        let length = |(first, last): (Stamp, Stamp)| last.since(first);
        let (scheduled, took) = (self.due.map(length)?, self.sent.map(length)?);
        let is_late = took - scheduled > gross;
        (self.delays.count() >= MIN_SENDS && scheduled > 0.0).then(|| Gaps {
            stretch: if is_late { took / scheduled } else { 1.0 },
        })
    }
}

impl Delay {
    /// The quantiles of these delays, within 3.2 %; `None` if there are none.
    pub(super) fn of(delays: &Histogram) -> Option<Delay> {
        let at = |q| delays.quantile(q).map(seconds);
        Some(Delay {
            p50: at(0.5)?,
            p99: at(0.99)?,
            max: at(1.0)?,
        })
    }
}

/// Counts the delays above each of the two bounds.
pub(super) fn count_later(delays: &Histogram, Bounds { slight, gross }: Bounds) -> [u64; 2] {
    let bounds = [slight, gross].map(|bound| (bound * NANOS as f64) as i64);
    let counts = delays.counts(&bounds);
    let from = |index: usize| counts.iter().skip(index).map(|count| u64::from(*count));
    [from(1).sum(), from(2).sum()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::files::Grade;
    use crate::request::endpoint::Endpoint;
    use crate::request::observer::{End, Observer};
    use crate::request::timeline::Side;
    use crate::traffic::verdict::judge;

    const MS: i64 = 1_000_000;

    /// A run of a request every 50 ms; `wait` gives how late each was, and its waits for a slot and a connection.
    fn run(wait: impl Fn(i64) -> [i64; 3]) -> Lag {
        let mut lag = Lag::default();
        (0..1000).for_each(|index| add(&mut lag, index * 50 * MS, wait(index)));
        lag
    }

    fn add(lag: &mut Lag, due: i64, [late, slot_nanos, connect_nanos]: [i64; 3]) {
        let scheduled = Stamp::from_nanos(due);
        let sent = scheduled.plus_nanos(late + slot_nanos + connect_nanos);
        let mut observer = Observer::new(Side::Traffic, Endpoint::Generate, String::new());
        observer.timeline_mut().set(Moment::Scheduled, scheduled);
        observer.timeline_mut().set(Moment::Sent, sent);
        lag.add(&Exchange {
            rows: observer.finish(End::Complete, sent),
            stamps: None,
            connect_nanos,
            slot_nanos,
        });
    }

    fn evidence_of(lag: &Lag) -> Evidence {
        let mut evidence = Evidence::default();
        lag.add_to(&mut evidence);
        evidence
    }

    #[test]
    fn a_punctual_run_and_one_with_late_requests() {
        let punctual = evidence_of(&run(|_| [MS / 10, 0, 0]));
        assert_eq!((punctual.late, punctual.very_late), (0, 0));
        assert!((punctual.lag.unwrap().p50 - 1e-4).abs() < 4e-6);
        assert_eq!(punctual.gaps.unwrap().stretch, 1.0);

        let late = |index| [60 * MS, 20 * MS].get(index as usize % 50).copied();
        let late = evidence_of(&run(|index| [late(index).unwrap_or(MS / 20), 0, 0]));
        assert_eq!((late.late, late.very_late), (40, 20));
        assert_eq!(evidence_of(&Lag::default()).lag, None);
    }

    #[test]
    fn a_lower_rate_is_another_load() {
        // Each a tenth later than due: the rate is lower by a tenth.
        let slow = evidence_of(&run(|index| [index * 5 * MS, 0, 0]));
        let gaps = slow.gaps.unwrap();
        assert!((gaps.stretch - 1.1).abs() < 1e-9, "{gaps:?}");
        // All due at once have no gaps; nor have few.
        let (mut few, mut at_once) = (Lag::default(), Lag::default());
        (1..MIN_SENDS as i64).for_each(|index| add(&mut few, index * 50 * MS, [0; 3]));
        (0..1000).for_each(|_| add(&mut at_once, 0, [0; 3]));
        assert_eq!([few, at_once].map(|lag| evidence_of(&lag).gaps), [None; 2]);
    }

    #[test]
    fn waits_for_a_slot_and_for_a_connection_are_distinguished() {
        let waiting = run(|index| [0, if index == 1 { 2_000 * MS } else { 0 }, 30 * MS]);
        let evidence = evidence_of(&waiting);
        let lag = evidence.lag.unwrap().max;
        assert_eq!((evidence.waited_for_slot, lag), (1, 0.0));
        let start = "1 requests waited for a --max-concurrency slot, at most 2.00 s";
        assert!(waiting.warnings()[0].starts_with(start));

        // A server that accepts all waiting connections every half second: sends come in bursts.
        let slow = run(|index| [0, 0, (9 - index % 10) * 50 * MS]);
        let evidence = evidence_of(&slow);
        assert_eq!(judge(&evidence).grade, Grade::Valid, "{evidence:?}");
        let warnings = slow.warnings();
        let start = "900 of 1000 requests waited more than 10 ms for their connection to open, at most 0.45 s";
        assert!(warnings[0].starts_with(start), "{warnings:?}");
        assert_eq!(run(|_| [0; 3]).warnings(), [""; 0]);
    }

    #[test]
    fn a_request_that_waits_for_a_slot_until_the_run_is_stopped_waited_and_was_not_sent() {
        let mut lag = Lag::default();
        add(&mut lag, 0, [20 * MS, 0, 0]);
        let slot_nanos = 9_000 * MS;
        let observer = Observer::new(Side::Traffic, Endpoint::Generate, String::new());
        lag.add(&Exchange {
            rows: observer.finish(End::GivenUp, Stamp::from_nanos(slot_nanos)),
            stamps: None,
            connect_nanos: 0,
            slot_nanos,
        });
        let evidence = evidence_of(&lag);
        let counts = (evidence.sent, evidence.late, evidence.waited_for_slot);
        assert_eq!((counts, lag.unsent, lag.given_up), ((1, 1, 1), 1, 0));
        assert!(lag.warnings()[0].contains("at most 9.00 s"));
    }
}
