//! Looks at the generator itself while a run goes on: how late its event loop wakes.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::stats::Histogram;

use super::dispatch::until;
use super::lag::{delay, later};
use super::progress::Live;
use super::verdict::Evidence;

/// A task that sleeps this long, again and again: a hundred wake-ups a second cost nothing that could be measured.
const TICK: Duration = Duration::from_millis(10);
const TICK_NANOS: i64 = 10_000_000;

/// How late the event loop was, by time: a tick each 10 ms, also where none could be. It is looked at in the runtime of the caller from
/// the moment on that the run of `live` begins (that the generator is idle before is no part of it), until this is dropped.
pub(super) fn watch(clock: Clock, live: Arc<Live>) -> Arc<Mutex<Histogram>> {
    let late = Arc::<Mutex<Histogram>>::default();
    let seen = Arc::downgrade(&late);
    tokio::spawn(async move {
        // It is told before it comes.
        until(&clock, live.began().await).await;
        loop {
            let due = clock.now().plus_nanos(TICK_NANOS);
            tokio::time::sleep(TICK).await;
            let Some(late) = seen.upgrade() else { return };
            record(&mut late.lock(), clock.now().nanos_since(due));
        }
    });
    late
}

/// Notes in the evidence of a run how late its event loop was.
pub(super) fn tell(late: &Histogram, evidence: &mut Evidence) {
    let share = |count: u64| count as f64 / late.count().max(1) as f64;
    evidence.event_loop = delay(late);
    [evidence.loop_late, evidence.loop_very_late] = later(late, evidence.loop_bounds).map(share);
}

/// Notes a wake-up. While it was late others were due, of which the last was hardly late: without them a loop that
/// stands still for a second would be one tick of many.
fn record(late: &mut Histogram, mut nanos: i64) {
    late.record(nanos.max(0), 1);
    while nanos > TICK_NANOS {
        nanos -= TICK_NANOS;
        late.record(nanos, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_stands_still_is_late_for_as_long() {
        let mut late = Histogram::default();
        // Nine seconds in time, one in which it stood still.
        (0..900).for_each(|_| record(&mut late, 100_000));
        record(&mut late, 990_000_000);
        let mut evidence = Evidence::default();
        tell(&late, &mut evidence);
        // Of a thousand ticks: those more than 10 ms late, and more than 50 ms.
        let near = |share: f64, wanted: f64| (share - wanted).abs() < 0.0025;
        assert!(near(evidence.loop_late, 0.098), "{evidence:?}");
        assert!(near(evidence.loop_very_late, 0.094), "{evidence:?}");
        let delay = evidence.event_loop.unwrap();
        assert_eq!(delay.max, 0.99);
        assert!(delay.p50 < 0.001 && delay.p99 > 0.8, "{delay:?}");
    }

    #[tokio::test]
    async fn it_ticks_while_it_looks_on() {
        let (clock, live) = (Clock::system(), Arc::<Live>::default());
        let late = watch(clock.clone(), live.clone());
        let started = clock.now().plus_nanos(5 * TICK_NANOS);
        live.began.set(started).unwrap();
        while late.lock().count() < 3 {
            tokio::task::yield_now().await;
            let is_early = clock.now() < started;
            let has_begun = late.lock().count() > 0 && is_early;
            assert!(!has_begun, "what is before the run is no part of it");
        }
    }
}
