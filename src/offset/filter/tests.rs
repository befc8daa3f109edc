use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::clock::{Clock, ManualClock};

/// Another clock, that the tests know the truth about.
struct Other {
    started: Stamp,
    offset: i64,
    ppm: i64,
    /// Jumps of a few µs, as SGLang's recalibration makes them: one after another in each exchange.
    jitter: Vec<i64>,
    exchanges: usize,
}

/// One request and its answer: the delays on the way there, in the server, and back.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    pause: i64,
    there: i64,
    inside: i64,
    back: i64,
}

impl Other {
    fn new(started: Stamp, offset: i64, ppm: i64) -> Other {
        Other {
            started,
            offset,
            ppm,
            jitter: vec![0],
            exchanges: 0,
        }
    }

    /// Theirs minus ours at our moment `at`, without jitter.
    fn truth(&self, at: Stamp) -> i64 {
        self.offset + at.nanos_since(self.started) * self.ppm / 1_000_000
    }

    /// Plays an exchange; the bounds it gives, each at our moment of the comparison.
    fn exchange(
        &mut self,
        exchange: Exchange,
        clock: &Clock,
        manual: &ManualClock,
    ) -> [OffsetBound; 2] {
        let jitter = self.jitter[self.exchanges % self.jitter.len()];
        self.exchanges += 1;
        let reads = |other: &Other| clock.now().nanos() + other.truth(clock.now()) + jitter;
        advance(manual, exchange.pause);
        let sent = clock.now();
        advance(manual, exchange.there);
        let created = reads(self);
        advance(manual, exchange.inside);
        let answered = reads(self);
        advance(manual, exchange.back);
        let read = clock.now();
        [
            OffsetBound {
                at: sent,
                at_least: None,
                at_most: Some(created - sent.nanos()),
            },
            OffsetBound {
                at: read,
                at_least: Some(answered - read.nanos()),
                at_most: None,
            },
        ]
    }
}

fn advance(manual: &ManualClock, nanos: i64) {
    manual.advance(Duration::from_nanos(nanos.unsigned_abs()));
}

fn start() -> (Clock, ManualClock) {
    Clock::manual(Stamp::from_nanos(1_795_000_000 * NANOS + 123_456_789))
}

fn missed_by(offset: Offset, truth: i64) -> i64 {
    ((offset.nanos - truth).abs() - offset.error_nanos).max(0)
}

/// Delays of a busy network, or of one machine, where a few µs of jitter tell.
fn exchanges() -> impl Strategy<Value = Vec<Exchange>> {
    let delay = || prop_oneof![0..5_000_i64, 0..100_000_000_i64];
    let one = (0..40 * NANOS, delay(), 0..NANOS, delay());
    let one = one.prop_map(|(pause, there, inside, back)| Exchange {
        pause,
        there,
        inside,
        back,
    });
    prop::collection::vec(one, 1..40)
}

proptest! {
    #[test]
    fn the_true_offset_lies_in_the_interval(
        offset in -3600 * NANOS..=3600 * NANOS,
        ppm in -100_i64..=100,
        jitter in prop::collection::vec(-4_000_i64..=4_000, 1..8),
        exchanges in exchanges(),
        // How many exchanges late their bounds become known.
        late in prop::collection::vec(0_usize..4, 40),
        ask_after in prop::collection::vec(0..400 * NANOS, 1..4),
    ) {
        let (clock, manual) = start();
        let mut other = Other::new(clock.now(), offset, ppm);
        other.jitter = jitter;
        let mut filter = OffsetFilter::new();
        let mut under_way: Vec<(usize, OffsetBound)> = Vec::new();
        for (n, exchange) in exchanges.into_iter().enumerate() {
            let bounds = other.exchange(exchange, &clock, &manual);
            under_way.extend(bounds.map(|bound| (n + late[n], bound)));
            for (_, bound) in under_way.extract_if(.., |(due, _)| *due <= n) {
                filter.add(bound);
            }
            if let Some(stated) = filter.offset(clock.now()) {
                prop_assert_eq!(missed_by(stated, other.truth(clock.now())), 0, "{:?}", stated);
            }
            prop_assert_eq!(filter.since, None, "nothing stepped");
        }
        for pause in ask_after {
            advance(&manual, pause);
            if let Some(stated) = filter.offset(clock.now()) {
                prop_assert_eq!(missed_by(stated, other.truth(clock.now())), 0, "{:?}", stated);
            }
        }
    }

    #[test]
    fn a_large_step_is_over_after_one_exchange(
        offset in -3600 * NANOS..=3600 * NANOS,
        ppm in -100_i64..=100,
        step in prop_oneof![-3600 * NANOS..-NANOS, NANOS..3600 * NANOS],
        before in exchanges(),
        after in exchanges(),
    ) {
        let (clock, manual) = start();
        let mut other = Other::new(clock.now(), offset, ppm);
        let mut filter = OffsetFilter::new();
        for exchange in before {
            for bound in other.exchange(exchange, &clock, &manual) {
                filter.add(bound);
            }
        }
        other.offset += step;
        for exchange in after {
            for bound in other.exchange(exchange, &clock, &manual) {
                filter.add(bound);
            }
            // A step forward is contradicted by the answer alone, and then the other side waits for
            // the next exchange.
            if let Some(stated) = filter.offset(clock.now()) {
                prop_assert_eq!(missed_by(stated, other.truth(clock.now())), 0, "{:?}", stated);
            }
        }
        let exchange = Exchange { pause: 0, there: 1000, inside: 0, back: 1000 };
        for bound in other.exchange(exchange, &clock, &manual) {
            filter.add(bound);
        }
        let stated = filter.offset(clock.now()).unwrap();
        prop_assert_eq!(missed_by(stated, other.truth(clock.now())), 0, "{:?}", stated);
        // 2 µs of round trip and twice the allowance, halved.
        prop_assert!(stated.error_nanos <= 7_000, "{:?}", stated);
    }

    #[test]
    fn any_step_is_missed_by_less_than_the_delays(
        step in -200_000_000_i64..200_000_000,
        before in exchanges(),
        after in exchanges(),
    ) {
        let (clock, manual) = start();
        let mut other = Other::new(clock.now(), 0, 0);
        let mut filter = OffsetFilter::new();
        for exchange in before {
            for bound in other.exchange(exchange, &clock, &manual) {
                filter.add(bound);
            }
        }
        other.offset += step;
        let (mut shortest, stepped) = (i64::MAX, clock.now());
        for exchange in after {
            for bound in other.exchange(exchange, &clock, &manual) {
                filter.add(bound);
            }
            // A step back is bounded on the way there, a step forward on the way back.
            shortest = shortest.min(if step < 0 { exchange.there } else { exchange.back });
            let Some(stated) = filter.offset(clock.now()) else { continue };
            let drifted = drift(clock.now().nanos_since(stepped)) + 2 * ALLOWANCE;
            prop_assert!(missed_by(stated, other.truth(clock.now())) <= shortest + drifted);
        }
        // Five minutes on, nothing is left of the time before.
        advance(&manual, MEMORY);
        let exchange = Exchange { pause: 1, there: 1000, inside: 0, back: 1000 };
        for bound in other.exchange(exchange, &clock, &manual) {
            filter.add(bound);
        }
        let stated = filter.offset(clock.now()).unwrap();
        prop_assert_eq!(missed_by(stated, other.truth(clock.now())), 0, "{:?}", stated);
    }
}

proptest! {
    #[test]
    fn one_offset_holds_for_a_whole_stretch(
        offset in -3600 * NANOS..=3600 * NANOS,
        ppm in -100_i64..=100,
        exchanges in exchanges(),
        back in prop::collection::vec((0..400 * NANOS, 0..400 * NANOS), 1..6),
    ) {
        let (clock, manual) = start();
        let mut other = Other::new(clock.now(), offset, ppm);
        let mut filter = OffsetFilter::new();
        for exchange in exchanges {
            for bound in other.exchange(exchange, &clock, &manual) {
                filter.add(bound);
            }
            for (length, ago) in &back {
                let to = clock.now().plus_nanos(-ago);
                let from = to.plus_nanos(-length);
                let Some(stated) = filter.offset_over(from, to) else { continue };
                for part in 0..=4 {
                    let at = from.plus_nanos(length / 4 * part);
                    prop_assert_eq!(missed_by(stated, other.truth(at)), 0, "{:?} at {}", stated, part);
                }
            }
        }
        let now = clock.now();
        prop_assert!(filter.offset_over(now, now).is_some());
    }

    /// Ours are monotonic and do not step; the promise is kept all the same, and nothing wrong is said.
    #[test]
    fn a_step_of_our_own_clock_is_recovered_from(
        offset in -3600 * NANOS..=3600 * NANOS,
        ppm in -100_i64..=100,
        step in prop_oneof![-MEMORY..-NANOS, NANOS..3600 * NANOS],
        before in exchanges(),
        after in exchanges(),
    ) {
        let (clock, manual) = start();
        let mut other = Other::new(clock.now(), offset, ppm);
        let mut filter = OffsetFilter::new();
        for exchange in before {
            for bound in other.exchange(exchange, &clock, &manual) {
                filter.add(bound);
            }
        }
        let stepped = clock.now();
        let theirs = other.truth(stepped) + stepped.nanos();
        manual.set(stepped.plus_nanos(step));
        other.offset += theirs - (other.truth(clock.now()) + clock.now().nanos());
        let quick = Exchange { pause: 0, there: 1000, inside: 0, back: 1000 };
        for exchange in after.into_iter().chain([quick]) {
            for bound in other.exchange(exchange, &clock, &manual) {
                filter.add(bound);
            }
            if let Some(stated) = filter.offset(clock.now()) {
                prop_assert_eq!(missed_by(stated, other.truth(clock.now())), 0, "{:?}", stated);
            }
        }
        // At the latest when our clock is again where it was: one exchange shows it, the next is known.
        advance(&manual, stepped.nanos_since(clock.now()).max(0));
        for exchange in [quick; 2] {
            for bound in other.exchange(exchange, &clock, &manual) {
                filter.add(bound);
            }
        }
        let stated = filter.offset(clock.now()).unwrap();
        prop_assert_eq!(missed_by(stated, other.truth(clock.now())), 0, "{:?}", stated);
        prop_assert!(stated.error_nanos <= 7_000, "{:?}", stated);
    }

    /// Both clocks step while a request is on its way: its own bounds are of two pairs of clocks.
    #[test]
    fn steps_on_both_sides_within_a_request_are_recovered_from(
        ours in NANOS..1800 * NANOS,
        theirs in prop_oneof![-3600 * NANOS..-NANOS, 3600 * NANOS..7200 * NANOS],
        before in exchanges(),
        after in exchanges(),
        struck in exchanges(),
    ) {
        let (clock, manual) = start();
        let mut other = Other::new(clock.now(), 0, 0);
        let mut filter = OffsetFilter::new();
        for exchange in before {
            for bound in other.exchange(exchange, &clock, &manual) {
                filter.add(bound);
            }
        }
        // There before the steps, back after them.
        let exchange = struck[0];
        let [there, _] = other.exchange(exchange, &clock, &manual);
        manual.set(clock.now().plus_nanos(ours));
        other.offset += theirs - ours;
        let [_, back] = other.exchange(exchange, &clock, &manual);
        filter.add(there);
        filter.add(back);
        let quick = Exchange { pause: 1, there: 1000, inside: 0, back: 1000 };
        for exchange in [quick].into_iter().chain(after) {
            for bound in other.exchange(exchange, &clock, &manual) {
                filter.add(bound);
            }
            if let Some(stated) = filter.offset(clock.now()) {
                prop_assert_eq!(missed_by(stated, other.truth(clock.now())), 0, "{:?}", stated);
            }
        }
        for bound in other.exchange(quick, &clock, &manual) {
            filter.add(bound);
        }
        prop_assert!(filter.offset(clock.now()).is_some());
    }
}

#[test]
fn a_stretch_from_before_a_step_has_no_offset() {
    let mut filter = OffsetFilter::new();
    filter.add(bound(1000, Some(-1_000), Some(1_000)));
    filter.add(bound(1020, Some(8_999_000), Some(9_001_000)));
    assert_eq!(filter.offset_over(at(1010), at(1030)), None);
    let stated = filter.offset_over(at(1020), at(1040)).unwrap();
    assert_eq!(stated.nanos, 9_000_000);
    // Ten seconds from the bound to the middle, ten from there to the ends.
    assert_eq!(stated.error_nanos, 1_000 + ALLOWANCE + 2 * 1_000_001);
}

#[test]
fn a_stretch_longer_than_the_memory_is_known_by_its_ends() {
    let mut filter = OffsetFilter::new();
    filter.add(bound(2000, Some(-1_000), Some(1_000)));
    let stated = filter.offset_over(at(1000), at(2000)).unwrap();
    assert_eq!(stated.error_nanos, 1_000 + ALLOWANCE + 1 + 100_000_001);
    assert_eq!(filter.offset_over(at(1000), at(1600)), None);
}

fn bound(at_seconds: i64, at_least: Option<i64>, at_most: Option<i64>) -> OffsetBound {
    OffsetBound {
        at: Stamp::from_nanos(at_seconds * NANOS),
        at_least,
        at_most,
    }
}

fn at(seconds: i64) -> Stamp {
    Stamp::from_nanos(seconds * NANOS)
}

#[test]
fn one_side_alone_says_nothing() {
    let mut filter = OffsetFilter::new();
    assert_eq!(filter.offset(at(0)), None);
    filter.add(bound(100, Some(-1_000_000), None));
    assert_eq!(filter.offset(at(100)), None);
    filter.add(bound(100, None, Some(3_000_000)));
    let known = Offset {
        nanos: 1_000_000,
        // Half of 4 ms, the allowance of 5 µs, and a nanosecond that drift is rounded up by.
        error_nanos: 2_005_001,
    };
    assert_eq!(filter.offset(at(100)), Some(known));
    // 10 s on: another millisecond of possible drift on each side.
    let later = filter.offset(at(110)).unwrap();
    assert_eq!((later.nanos, later.error_nanos), (1_000_000, 3_005_001));
}

#[test]
fn bounds_count_for_five_minutes() {
    let mut filter = OffsetFilter::new();
    filter.add(bound(1000, Some(-10), Some(10)));
    assert!(filter.offset(at(1300)).is_some());
    assert_eq!(filter.offset(at(1301)), None);
}

#[test]
fn the_tightest_of_a_slot_is_kept() {
    let mut filter = OffsetFilter::new();
    filter.add(bound(1000, Some(-100_000), Some(900_000)));
    filter.add(bound(1001, Some(-900_000), Some(100_000)));
    let stated = filter.offset(at(1001)).unwrap();
    // One second may have cost the first lower bound 100 µs.
    assert_eq!(stated.nanos, -50_000);
    assert_eq!(stated.error_nanos, 155_001);
}

#[test]
fn a_late_bound_from_before_the_step_changes_nothing() {
    let mut filter = OffsetFilter::new();
    filter.add(bound(1000, Some(-1_000), Some(1_000)));
    filter.add(bound(1020, Some(8_999_000), Some(9_001_000)));
    let after = filter.offset(at(1030));
    assert_eq!(after.map(|offset| offset.nanos), Some(9_000_000));
    for _ in 0..3 {
        filter.add(bound(1010, Some(-1_000), Some(1_000)));
        assert_eq!(filter.offset(at(1030)), after);
    }
    // Of the time before the step nothing is said.
    assert_eq!(filter.offset(at(1015)), None);
}

#[test]
fn a_late_bound_can_show_the_step_before_a_loose_newer_one() {
    let mut filter = OffsetFilter::new();
    filter.add(bound(1000, Some(-1_000), Some(1_000)));
    filter.add(bound(1030, Some(-50_000_000), Some(50_000_000)));
    filter.add(bound(1020, Some(8_999_000), Some(9_001_000)));
    let stated = filter.offset(at(1030)).unwrap();
    assert_eq!(stated.nanos, 9_000_000);
    assert_eq!(stated.error_nanos, 1_000 + 1_000_000 + ALLOWANCE + 1);
}

#[test]
fn a_bound_that_spans_the_step_ends_what_was_known() {
    let mut filter = OffsetFilter::new();
    filter.add(bound(1000, Some(-1_000), Some(1_000)));
    filter.add(bound(1010, Some(9_000_000), Some(1_000)));
    assert_eq!(filter.offset(at(1010)), None);
    assert_eq!(filter.offset(at(1011)), None);
    filter.add(bound(1011, Some(8_999_000), Some(9_001_000)));
    assert_eq!(filter.offset(at(1011)).unwrap().nanos, 9_000_000);
}

#[test]
fn memory_is_bounded_and_extremes_do_no_harm() {
    assert!(size_of::<OffsetFilter>() <= 2048);
    let mut filter = OffsetFilter::new();
    for nanos in [i64::MIN, -1, 0, 1, i64::MAX] {
        for moment in [i64::MIN, -1, 0, 1, i64::MAX] {
            filter.add(OffsetBound {
                at: Stamp::from_nanos(moment),
                at_least: Some(nanos),
                at_most: Some(nanos),
            });
            let _ = filter.offset(Stamp::from_nanos(moment));
            let _ = filter.offset(Stamp::from_nanos(0));
        }
    }
}
