//! Measures how late the generator's event loop wakes up during a run.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::stats::Histogram;

use super::progress::LiveProgress;

/// How long the measuring task sleeps between two wake-ups. A hundred wake-ups a second have no measurable cost.
const TICK: Duration = Duration::from_millis(10);
const TICK_NANOS: i64 = 10_000_000;

/// Starts to measure on the caller's runtime; returns the delays of the ticks, one each 10 ms. Measures from the start of the run of
/// `live` (the generator is idle before) until the histogram is dropped.
pub(super) fn measure(clock: Clock, live: Arc<LiveProgress>) -> Arc<Mutex<Histogram>> {
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
    use crate::traffic::lag::Lag;
    use crate::traffic::verdict::{Bounds, Evidence};

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
        let delays = measure(clock.clone(), live.clone());
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
