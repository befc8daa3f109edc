//! How late the generator itself was: a saturated client must not pass for a slow server.

use crate::clock::{NANOS, Stamp};
use crate::report::verdict::{Bounds, Delay, Evidence, Gaps};
use crate::stats;

use super::client::Seen;

/// The generator's own lateness over a run, seconds: sent − scheduled, without what a request waited for a
/// `--max-concurrency` slot or for its connection to open.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lag {
    /// How late requests were sent.
    pub sends: Delay,
    /// How many requests waited for a slot.
    pub waited: usize,
    /// The longest such wait.
    pub longest_wait: f64,
    /// How many requests waited longer for their connection than is short ([`LONG_NANOS`]).
    pub connected_late: usize,
    /// The longest such wait.
    pub longest_connect: f64,
    /// Of so many requests.
    pub count: usize,
}

/// When a request was to be sent, and when it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    /// When it was due.
    pub scheduled: Stamp,
    /// From then to its send, nanoseconds, without the wait for a slot.
    pub late_nanos: i64,
    /// Of that, opening its connection.
    pub connect_nanos: i64,
    /// How long it waited for a slot before.
    pub slot_nanos: i64,
}

/// Fewer sends have no rate.
const FEWEST: usize = 20;
/// Connections that take longer to open hold requests up.
const LONG_NANOS: i64 = 10_000_000;
/// Fewer are not worth telling: one of so many.
const TOLD_ONE_OF: usize = 100;

impl Sending {
    /// Of a request that was due then and waited so long for a slot; `None` of one that was never sent.
    pub(super) fn of(scheduled: Stamp, slot_nanos: i64, seen: &Seen) -> Option<Sending> {
        Some(Sending {
            scheduled,
            late_nanos: seen.sent?.nanos_since(scheduled) - slot_nanos,
            connect_nanos: seen.connect_nanos,
            slot_nanos,
        })
    }

    /// By the generator's own fault.
    fn own_nanos(&self) -> i64 {
        (self.late_nanos - self.connect_nanos).max(0)
    }
}

impl Lag {
    /// Of these requests.
    pub fn of(sendings: &[Sending]) -> Lag {
        let own = sendings.iter().map(Sending::own_nanos).map(seconds);
        let own = ascending(own);
        let at = |q| stats::quantile(&own, q).unwrap_or(0.0);
        let waits = || sendings.iter().map(|sending| sending.slot_nanos);
        let connects = || sendings.iter().map(|sending| sending.connect_nanos);
        Lag {
            sends: Delay {
                p50: at(0.5),
                p99: at(0.99),
                max: at(1.0),
            },
            waited: waits().filter(|wait| *wait > 0).count(),
            longest_wait: seconds(waits().max().unwrap_or(0)),
            connected_late: connects().filter(|wait| *wait > LONG_NANOS).count(),
            longest_connect: seconds(connects().max().unwrap_or(0)),
            count: sendings.len(),
        }
    }

    /// What a reader of the run's figures must know, if anything, beside the verdict.
    pub fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.waited > 0 {
            found.push(format!(
                "{} requests waited for a --max-concurrency slot, at most {:.3} s: the load was not an open \
                 loop, and only figures from the schedule hold that wait",
                self.waited, self.longest_wait
            ));
        }
        if self.connected_late * TOLD_ONE_OF > self.count {
            found.push(format!(
                "{} of {} requests waited more than {} ms for their connection to open, at most {:.3} s: they came to the \
                 server later than scheduled, by no fault of the generator; only figures from the schedule hold that wait",
                self.connected_late,
                self.count,
                LONG_NANOS / 1_000_000,
                self.longest_connect
            ));
        }
        found
    }

    /// Notes it in the evidence of a run.
    pub fn tell(&self, sendings: &[Sending], evidence: &mut Evidence) {
        let Bounds { slight, gross } = evidence.bounds;
        let own = || sendings.iter().map(Sending::own_nanos).map(seconds);
        let later = |bound: f64| own().filter(|late| *late > bound).count() as u64;
        evidence.lag = (!sendings.is_empty()).then_some(self.sends);
        evidence.late = later(slight);
        evidence.very_late = later(gross);
        evidence.waited_for_slot = self.waited as u64;
        evidence.gaps = gaps(sendings, gross);
    }
}

/// How long the sends took beside the schedule; `None` where all were due at once, or there are few. Connections that
/// opened slowly do not count: that is the server's, or the network's. What all took longer counts from `gross` on: less
/// is one late request at the end.
fn gaps(sendings: &[Sending], gross: f64) -> Option<Gaps> {
    let span = |of: &dyn Fn(&Sending) -> Stamp| {
        let (first, last) = (
            sendings.iter().map(of).min()?,
            sendings.iter().map(of).max()?,
        );
        Some(last.since(first))
    };
    let asked = span(&|sending| sending.scheduled)?;
    let took = span(&|sending| sending.scheduled.plus_nanos(sending.own_nanos()))?;
    let is_late = took - asked > gross;
    (sendings.len() >= FEWEST && asked > 0.0).then(|| Gaps {
        stretch: if is_late { took / asked } else { 1.0 },
    })
}

fn ascending(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

fn seconds(nanos: i64) -> f64 {
    nanos as f64 / NANOS as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::verdict::{Grade, judge};

    const MS: i64 = 1_000_000;

    /// One every 50 ms, so late each.
    fn sendings(late_nanos: impl Fn(i64) -> i64) -> Vec<Sending> {
        let one = |index: i64| Sending {
            scheduled: Stamp::from_nanos(index * 50 * MS),
            late_nanos: late_nanos(index),
            connect_nanos: 0,
            slot_nanos: 0,
        };
        (0..1000).map(one).collect()
    }

    fn told(sendings: &[Sending]) -> Evidence {
        let mut evidence = Evidence::default();
        Lag::of(sendings).tell(sendings, &mut evidence);
        evidence
    }

    #[test]
    fn a_sending_has_no_wait_for_a_slot_in_it() {
        let scheduled = Stamp::from_nanos(1_000);
        let seen = |sent: Option<i64>| Seen {
            sent: sent.map(|nanos| scheduled.plus_nanos(nanos)),
            connect_nanos: 30,
            ..Seen::default()
        };
        let sent = Sending::of(scheduled, 200, &seen(Some(237))).unwrap();
        assert_eq!((sent.late_nanos, sent.connect_nanos), (37, 30));
        assert_eq!(Sending::of(scheduled, 200, &seen(None)), None);
    }

    #[test]
    fn a_punctual_run_and_one_with_late_requests() {
        let punctual = told(&sendings(|index| 100_000 + index));
        assert_eq!((punctual.late, punctual.very_late), (0, 0));
        assert!((punctual.lag.unwrap().p50 - 1.005e-4).abs() < 1e-6);
        let gaps = punctual.gaps.unwrap();
        assert_eq!(gaps.stretch, 1.0);

        let late = told(&sendings(|index| match index % 50 {
            0 => 60 * MS,
            1 => 20 * MS,
            _ => 50_000,
        }));
        assert_eq!((late.late, late.very_late), (40, 20));
        assert_eq!(told(&[]).lag, None);
        assert_eq!(Lag::of(&[]), Lag::default());
    }

    #[test]
    fn a_lower_rate_is_another_load() {
        // Each a tenth later than due: the rate is lower by a tenth.
        let slow = told(&sendings(|index| index * 5 * MS));
        let gaps = slow.gaps.unwrap();
        assert!((gaps.stretch - 1.1).abs() < 1e-9, "{gaps:?}");
        // All due at once have no gaps; nor have few.
        let mut at_once = sendings(|_| 0);
        assert_eq!(told(&at_once[..FEWEST - 1]).gaps, None);
        for sending in &mut at_once {
            sending.scheduled = Stamp::from_nanos(0);
        }
        assert_eq!(told(&at_once).gaps, None);
    }

    #[test]
    fn waits_for_a_slot_or_a_connection_are_told_apart() {
        let mut waiting = sendings(|_| 30 * MS);
        waiting[1].slot_nanos = 2_000 * MS;
        for sending in &mut waiting {
            sending.connect_nanos = 30 * MS;
        }
        let lag = Lag::of(&waiting);
        assert_eq!((lag.waited, lag.longest_wait, lag.sends.max), (1, 2.0, 0.0));
        assert!(lag.warnings()[0].contains("--max-concurrency"));
        assert_eq!(told(&waiting).waited_for_slot, 1);

        // A server that takes connections slowly, each half second those of all who wait: they come in bursts.
        let mut slow = sendings(|index| (9 - index % 10) * 50 * MS);
        for sending in &mut slow {
            sending.connect_nanos = sending.late_nanos;
        }
        let evidence = told(&slow);
        assert_eq!(judge(&evidence).grade, Grade::Valid, "{evidence:?}");
        let warnings = Lag::of(&slow).warnings();
        let said = "900 of 1000 requests waited more than 10 ms for their connection to open, at most 0.450 s";
        assert!(warnings[0].starts_with(said), "{warnings:?}");
        assert_eq!(Lag::of(&sendings(|_| 0)).warnings(), [""; 0]);
    }
}
