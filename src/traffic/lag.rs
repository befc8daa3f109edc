//! How late the generator itself was: a saturated client must not pass for a slow server.

use crate::clock::{NANOS, Stamp};
use crate::request::outcome::Outcome;
use crate::request::timeline::Moment;
use crate::stats::Histogram;
use crate::units::duration;

use super::client::Exchange;
use super::verdict::{Bounds, Delay, Evidence, Gaps};

/// The generator's own lateness over a run.
#[derive(Clone, Debug, Default)]
pub struct Lag {
    /// Sent − scheduled, without what a request waited for a `--max-concurrency` slot or for its connection to open.
    late: Histogram,
    /// How many requests were given up before they were sent: they waited for a slot or a connection.
    pub(super) unsent: u64,
    /// How many requests waited for a slot.
    pub waited: u64,
    /// The longest such wait, nanoseconds.
    longest_wait: i64,
    /// How many requests waited longer for their connection than is short ([`LONG_NANOS`]).
    connected_late: u64,
    /// The longest such wait, nanoseconds.
    longest_connect: i64,
    /// When the first and the last request were due.
    due: Option<(Stamp, Stamp)>,
    /// When they were sent, had they been late by the generator's own fault alone.
    sent: Option<(Stamp, Stamp)>,
}

/// Fewer sends have no rate.
const FEWEST: u64 = 20;
/// Connections that take longer to open hold requests up.
const LONG_NANOS: i64 = 10_000_000;
/// Fewer are not worth telling: one of so many.
const TOLD_ONE_OF: u64 = 100;

impl Lag {
    /// Takes in a request that was due, whether or not it got a slot.
    pub(super) fn add(&mut self, exchange: &Exchange) {
        let (slot, connect) = (exchange.slot_nanos, exchange.connect_nanos);
        self.waited += u64::from(slot > 0);
        self.longest_wait = self.longest_wait.max(slot);
        let moments = exchange
            .at(Moment::Scheduled)
            .zip(exchange.at(Moment::Sent));
        let Some((scheduled, sent)) = moments else {
            let is_given_up = exchange.outcome() == Outcome::ClientAbort;
            self.unsent += u64::from(is_given_up);
            return;
        };
        let late = (sent.nanos_since(scheduled) - slot - connect).max(0);
        self.late.record(late, 1);
        self.connected_late += u64::from(connect > LONG_NANOS);
        self.longest_connect = self.longest_connect.max(connect);
        for (span, at) in [
            (&mut self.due, scheduled),
            (&mut self.sent, scheduled.plus_nanos(late)),
        ] {
            let (first, last) = span.unwrap_or((at, at));
            *span = Some((first.min(at), last.max(at)));
        }
    }

    /// What a reader of the run's figures must know, if anything, beside the verdict.
    pub fn warnings(&self) -> Vec<String> {
        let (mut found, count) = (Vec::new(), self.late.count());
        if self.waited > 0 {
            found.push(format!(
                "{} requests waited for a --max-concurrency slot, at most {}: the load was not an open \
                 loop, and only figures from the schedule hold that wait",
                self.waited,
                duration(seconds(self.longest_wait))
            ));
        }
        if self.connected_late * TOLD_ONE_OF > count {
            found.push(format!(
                "{} of {count} requests waited more than {} ms for their connection to open, at most {}: they came to the \
                 server later than scheduled, by no fault of the generator; only figures from the schedule hold that wait",
                self.connected_late,
                LONG_NANOS / 1_000_000,
                duration(seconds(self.longest_connect))
            ));
        }
        found
    }

    /// Notes it in the evidence of a run.
    pub(super) fn tell(&self, evidence: &mut Evidence) {
        evidence.lag = delay(&self.late);
        [evidence.late, evidence.very_late] = later(&self.late, evidence.bounds);
        evidence.sent = self.late.count();
        evidence.waited_for_slot = self.waited;
        evidence.gaps = self.gaps(evidence.bounds.gross);
    }

    /// How long the sends took beside the schedule; `None` where all were due at once, or there are few. Connections that
    /// opened slowly do not count: that is the server's, or the network's. What all took longer counts from `gross` on: less
    /// is one late request at the end.
    fn gaps(&self, gross: f64) -> Option<Gaps> {
        let span = |(first, last): (Stamp, Stamp)| last.since(first);
        let (asked, took) = (self.due.map(span)?, self.sent.map(span)?);
        let is_late = took - asked > gross;
        (self.late.count() >= FEWEST && asked > 0.0).then(|| Gaps {
            stretch: if is_late { took / asked } else { 1.0 },
        })
    }
}

/// How late something was, within 3.2 %; `None` of nothing.
pub(super) fn delay(late: &Histogram) -> Option<Delay> {
    let at = |q| late.quantile(q).map(seconds);
    Some(Delay {
        p50: at(0.5)?,
        p99: at(0.99)?,
        max: at(1.0)?,
    })
}

/// How often it was later than each bound.
pub(super) fn later(late: &Histogram, Bounds { slight, gross }: Bounds) -> [u64; 2] {
    let bounds = [slight, gross].map(|bound| (bound * NANOS as f64) as i64);
    let counts = late.counts(&bounds);
    let from = |place: usize| counts.iter().skip(place).map(|count| u64::from(*count));
    [from(1).sum(), from(2).sum()]
}

fn seconds(nanos: i64) -> f64 {
    nanos as f64 / NANOS as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::verdict::Grade;
    use crate::request::endpoint::Endpoint;
    use crate::request::observer::{End, Observer};
    use crate::request::timeline::Side;
    use crate::traffic::verdict::judge;

    const MS: i64 = 1_000_000;

    /// A run of a request every 50 ms, each so late, which waited so long for a slot and for its connection before.
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

    fn told(lag: &Lag) -> Evidence {
        let mut evidence = Evidence::default();
        lag.tell(&mut evidence);
        evidence
    }

    #[test]
    fn a_punctual_run_and_one_with_late_requests() {
        let punctual = told(&run(|_| [MS / 10, 0, 0]));
        assert_eq!((punctual.late, punctual.very_late), (0, 0));
        assert!((punctual.lag.unwrap().p50 - 1e-4).abs() < 4e-6);
        assert_eq!(punctual.gaps.unwrap().stretch, 1.0);

        let late = told(&run(|index| match index % 50 {
            0 => [60 * MS, 0, 0],
            1 => [20 * MS, 0, 0],
            _ => [MS / 20, 0, 0],
        }));
        assert_eq!((late.late, late.very_late), (40, 20));
        assert_eq!(told(&Lag::default()).lag, None);
    }

    #[test]
    fn a_lower_rate_is_another_load() {
        // Each a tenth later than due: the rate is lower by a tenth.
        let slow = told(&run(|index| [index * 5 * MS, 0, 0]));
        let gaps = slow.gaps.unwrap();
        assert!((gaps.stretch - 1.1).abs() < 1e-9, "{gaps:?}");
        // All due at once have no gaps; nor have few.
        let (mut few, mut at_once) = (Lag::default(), Lag::default());
        (1..FEWEST as i64).for_each(|index| add(&mut few, index * 50 * MS, [0; 3]));
        (0..1000).for_each(|_| add(&mut at_once, 0, [0; 3]));
        assert_eq!((told(&few).gaps, told(&at_once).gaps), (None, None));
    }

    #[test]
    fn waits_for_a_slot_or_a_connection_are_told_apart() {
        let waiting = run(|index| [0, if index == 1 { 2_000 * MS } else { 0 }, 30 * MS]);
        let evidence = told(&waiting);
        let lag = evidence.lag.unwrap().max;
        assert_eq!((evidence.waited_for_slot, lag), (1, 0.0));
        let said = "1 requests waited for a --max-concurrency slot, at most 2.00 s";
        assert!(waiting.warnings()[0].starts_with(said));

        // A server that takes connections slowly, each half second those of all who wait: they come in bursts.
        let slow = run(|index| [0, 0, (9 - index % 10) * 50 * MS]);
        let evidence = told(&slow);
        assert_eq!(judge(&evidence).grade, Grade::Valid, "{evidence:?}");
        let warnings = slow.warnings();
        let said = "900 of 1000 requests waited more than 10 ms for their connection to open, at most 0.45 s";
        assert!(warnings[0].starts_with(said), "{warnings:?}");
        assert_eq!(run(|_| [0; 3]).warnings(), [""; 0]);
    }

    #[test]
    fn who_waits_for_a_slot_until_the_run_is_stopped_waited_and_was_not_sent() {
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
        let evidence = told(&lag);
        let told = (evidence.sent, evidence.late, evidence.waited_for_slot);
        assert_eq!((told, lag.unsent), ((1, 1, 1), 1));
        assert!(lag.warnings()[0].contains("at most 9.00 s"));
    }
}
