//! How late the generator itself sent, and its event loop woke up: a saturated client must not be taken for a slow server.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::request::{Moment, Outcome};
use crate::stats::Histogram;

use super::client::Exchange;
use super::progress::LiveProgress;

/// How late the requests of a run were sent, and what they waited for.
#[derive(Clone, Debug, Default)]
pub struct Lag {
    /// Sent − scheduled, without the waits for a `--max-concurrency` slot and for the connection to open.
    pub(super) delays: Histogram,
    /// Requests that were given up before they were sent: they waited for a slot or a connection.
    pub(super) unsent: u64,
    /// Requests that were sent and given up before their response ended.
    pub(super) given_up: u64,
    /// Requests that waited for a slot.
    pub waited_for_slot: u64,
}

impl Lag {
    /// Adds a request that was due, whether or not it got a slot.
    pub(super) fn add(&mut self, exchange: &Exchange) {
        let (slot, connect) = (exchange.slot_nanos, exchange.connect_nanos);
        self.waited_for_slot += u64::from(slot > 0);
        let given_up = u64::from(exchange.outcome() == Outcome::ClientAbort);
        let scheduled = exchange.at(Moment::Scheduled);
        let Some((scheduled, sent)) = scheduled.zip(exchange.at(Moment::Sent)) else {
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

/// How long the measuring task sleeps between two wake-ups. A hundred wake-ups a second have no measurable cost.
const TICK: Duration = Duration::from_millis(10);
const TICK_NANOS: i64 = 10_000_000;

/// Starts to measure on the caller's runtime; returns the delays of the ticks, one each 10 ms. Measures from the start of the run of
/// `live` (the generator is idle before) until the histogram is dropped.
pub(super) fn of_event_loop(clock: Clock, live: Arc<LiveProgress>) -> Arc<Mutex<Histogram>> {
    let delays = Arc::<Mutex<Histogram>>::default();
    let weak = Arc::downgrade(&delays);
    tokio::spawn(async move {
        // The start is announced ahead of time.
        clock.wait_until(live.began().await).await;
        loop {
            let due = clock.now().plus_nanos(TICK_NANOS);
            tokio::time::sleep(TICK).await;
            let Some(delays) = weak.upgrade() else { return };
            record(&mut delays.lock(), clock.now().nanos_since(due));
        }
    });
    delays
}

/// Records a wake-up, and the ticks that it missed, each with its own delay: a loop that is blocked for a second must not count as
/// one late tick of many.
fn record(delays: &mut Histogram, mut nanos: i64) {
    delays.record(nanos.max(0), 1);
    while nanos > TICK_NANOS {
        nanos -= TICK_NANOS;
        delays.record(nanos, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
    use crate::report::files::Grade;
    use crate::request::{End, Endpoint, Observer, Side};
    use crate::traffic::verdict::{Bounds, Evidence, judge};

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
        Evidence::measured(lag, &Histogram::default(), Bounds::default(), false)
    }

    #[test]
    fn a_punctual_run_and_one_with_late_requests() {
        let punctual = evidence_of(&run(|_| [MS / 10, 0, 0]));
        assert_eq!((punctual.late, punctual.very_late), (0, 0));
        assert!((punctual.lag.unwrap().p50 - 1e-4).abs() < 4e-6);

        let late = |index| [60 * MS, 20 * MS].get(index as usize % 50).copied();
        let late = evidence_of(&run(|index| [late(index).unwrap_or(MS / 20), 0, 0]));
        assert_eq!((late.late, late.very_late), (40, 20));
        assert_eq!(evidence_of(&Lag::default()).lag, None);
    }

    #[test]
    fn a_lower_rate_is_late() {
        // Each later than due, as the gaps are 2 % longer.
        let slow = evidence_of(&run(|index| [index * MS, 0, 0]));
        assert_eq!(judge(&slow).grade, Grade::Invalid, "{slow:?}");
    }

    #[test]
    fn waits_for_a_slot_and_for_a_connection_are_distinguished() {
        let waiting = run(|index| [0, if index == 1 { 2_000 * MS } else { 0 }, 30 * MS]);
        let evidence = evidence_of(&waiting);
        let lag = evidence.lag.unwrap().max;
        assert_eq!((evidence.waited_for_slot, lag), (1, 0.0));
        let start = "1 requests waited for a --max-concurrency slot";
        assert!(waiting.warning().unwrap().starts_with(start));

        // A server that accepts all waiting connections every half second: sends come in bursts.
        let slow = run(|index| [0, 0, (9 - index % 10) * 50 * MS]);
        let evidence = evidence_of(&slow);
        assert_eq!(judge(&evidence).grade, Grade::Valid, "{evidence:?}");
        assert_eq!(slow.warning(), None);
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
    }

    #[test]
    fn a_blocked_loop_is_late_for_as_long_as_it_is_blocked() {
        let mut delays = Histogram::default();
        // Nine seconds in time, one blocked.
        (0..900).for_each(|_| record(&mut delays, 100_000));
        record(&mut delays, 990_000_000);
        let evidence = Evidence::measured(&Lag::default(), &delays, Bounds::default(), false);
        // Of a thousand ticks: those more than 10 ms late, and more than 50 ms.
        let near = |share: f64, wanted: f64| (share - wanted).abs() < 0.0025;
        assert!(near(evidence.loop_late, 0.098), "{evidence:?}");
        assert!(near(evidence.loop_very_late, 0.094), "{evidence:?}");
        let delay = evidence.event_loop.unwrap();
        assert_eq!(delay.max, 0.99);
        assert!(delay.p50 < 0.001 && delay.p99 > 0.8, "{delay:?}");
    }

    #[tokio::test]
    async fn it_ticks_from_the_start_of_the_run() {
        let (clock, live) = (Clock::system(), Arc::<LiveProgress>::default());
        let delays = of_event_loop(clock.clone(), live.clone());
        let started = clock.now().plus_nanos(5 * TICK_NANOS);
        live.began.set(started).unwrap();
        while delays.lock().count() < 3 {
            tokio::task::yield_now().await;
            let is_early = clock.now() < started;
            let has_begun = delays.lock().count() > 0 && is_early;
            assert!(!has_begun, "it ticked before the run");
        }
    }
}
