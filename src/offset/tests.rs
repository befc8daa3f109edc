use proptest::prelude::*;

use super::*;

const DAY: i64 = 1_795_000_000 * NANOS;

/// Our clock, another one with a known offset, and a filter of their exchanges.
struct Clocks {
    now: Stamp,
    started: Stamp,
    offset: i64,
    ppm: i64,
    /// Jumps of a few µs, as by SGLang's recalibration: one after another in each exchange.
    jitter: Vec<i64>,
    exchanges: usize,
    filter: OffsetFilter,
}

/// The delays of a request and its response: to the server, in it, and back.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    pause: i64,
    there: i64,
    inside: i64,
    back: i64,
}

const QUICK: Exchange = Exchange {
    pause: 1,
    there: 1000,
    inside: 0,
    back: 1000,
};

impl Clocks {
    fn new(offset: i64, ppm: i64) -> Clocks {
        let now = Stamp::from_nanos(DAY + 123_456_789);
        Clocks {
            now,
            started: now,
            offset,
            ppm,
            jitter: vec![0],
            exchanges: 0,
            filter: OffsetFilter::default(),
        }
    }

    /// The true offset at our time `at`, without jitter.
    fn truth(&self, at: Stamp) -> i64 {
        self.offset + at.nanos_since(self.started) * self.ppm / 1_000_000
    }

    fn pass(&mut self, nanos: i64) -> Stamp {
        self.now = self.now.plus_nanos(nanos);
        self.now
    }

    /// Plays an exchange, and returns its bounds.
    fn exchange(&mut self, exchange: Exchange) -> [OffsetBound; 2] {
        let jitter = self.jitter[self.exchanges % self.jitter.len()];
        self.exchanges += 1;
        let theirs = |clocks: &Clocks| clocks.now.plus_nanos(clocks.truth(clocks.now) + jitter);
        let sent = self.pass(exchange.pause);
        self.pass(exchange.there);
        let created = theirs(self);
        self.pass(exchange.inside);
        let responded = theirs(self);
        let read = self.pass(exchange.back);
        [
            OffsetBound::of_sent(sent, created),
            OffsetBound::of_received(read, responded),
        ]
    }

    /// Plays an exchange, and adds its bounds to the filter.
    fn play(&mut self, exchanges: impl IntoIterator<Item = Exchange>) {
        for exchange in exchanges {
            let bounds = self.exchange(exchange);
            bounds.into_iter().for_each(|bound| self.filter.add(bound));
        }
    }

    /// The offset by the filter now, and by how much the true offset is outside of its interval.
    fn stated(&self) -> Option<(Offset, i64)> {
        let stated = self.filter.offset(self.now)?;
        Some((stated, missed_by(stated, self.truth(self.now))))
    }
}

fn missed_by(offset: Offset, truth: i64) -> i64 {
    ((offset.nanos - truth).abs() - offset.error_nanos).max(0)
}

/// Delays of a busy network, or of a single machine, where a few µs of jitter matter.
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

const OFFSETS: std::ops::RangeInclusive<i64> = -3600 * NANOS..=3600 * NANOS;
/// 2 µs of round trip and twice the allowance, halved.
const TIGHT: i64 = 7_000;

proptest! {
    #[test]
    fn the_true_offset_lies_in_the_interval(
        offset in OFFSETS,
        ppm in -100_i64..=100,
        jitter in prop::collection::vec(-4_000_i64..=4_000, 1..8),
        exchanges in exchanges(),
        // By how many exchanges bounds are late.
        late in prop::collection::vec(0_usize..4, 40),
        pauses in prop::collection::vec(0..400 * NANOS, 1..4),
        // Past periods: their length, and how long ago they ended.
        periods in prop::collection::vec((0..400 * NANOS, 0..400 * NANOS), 1..6),
    ) {
        let mut clocks = Clocks::new(offset, ppm);
        clocks.jitter = jitter;
        let mut pending: Vec<(usize, OffsetBound)> = Vec::new();
        for (n, exchange) in exchanges.into_iter().enumerate() {
            let bounds = clocks.exchange(exchange);
            pending.extend(bounds.map(|bound| (n + late[n], bound)));
            for (_, bound) in pending.extract_if(.., |(due, _)| *due <= n) {
                clocks.filter.add(bound);
            }
            prop_assert_eq!(clocks.stated().map_or(0, |(_, missed)| missed), 0);
            prop_assert_eq!(clocks.filter.since, None, "nothing stepped");
            for (length, ago) in &periods {
                let to = clocks.now.plus_nanos(-ago);
                let from = to.plus_nanos(-length);
                let Some(stated) = clocks.filter.offset_over(from, to) else { continue };
                for part in 0..=4 {
                    let at = from.plus_nanos(length / 4 * part);
                    prop_assert_eq!(missed_by(stated, clocks.truth(at)), 0, "{:?} at {}", stated, part);
                }
            }
        }
        // Now both bounds of the last exchange are known.
        pending.into_iter().for_each(|(_, bound)| clocks.filter.add(bound));
        prop_assert!(clocks.filter.offset_over(clocks.now, clocks.now).is_some());
        for pause in pauses {
            clocks.pass(pause);
            prop_assert_eq!(clocks.stated().map_or(0, |(_, missed)| missed), 0);
        }
    }

    /// A step forward is contradicted only by the response; the other side then has no bound until the next exchange. A large step is
    /// handled after one exchange; of a small one, the bounds from before have expired after five minutes.
    #[test]
    fn a_step_is_missed_by_less_than_the_delays(
        is_large: bool,
        offset in OFFSETS,
        ppm in -100_i64..=100,
        is_back: bool,
        large in NANOS..3600 * NANOS,
        small in 0..200_000_000_i64,
        before in exchanges(),
        after in exchanges(),
    ) {
        let mut clocks = Clocks::new(offset, if is_large { ppm } else { 0 });
        clocks.play(before);
        let step = if is_large { large } else { small };
        clocks.offset += if is_back { -step } else { step };
        let (mut shortest, stepped) = (i64::MAX, clocks.now);
        for exchange in after {
            clocks.play([exchange]);
            // A step back shows in the request, a step forward in the response.
            shortest = shortest.min(if is_back { exchange.there } else { exchange.back });
            let drifted = drift(clocks.now.nanos_since(stepped)) + 2 * ALLOWANCE;
            let most = if is_large { 0 } else { shortest + drifted };
            prop_assert!(clocks.stated().is_none_or(|(_, missed)| missed <= most));
        }
        clocks.pass(if is_large { 0 } else { VALIDITY });
        clocks.play([QUICK]);
        let (stated, missed) = clocks.stated().unwrap();
        prop_assert!(missed == 0 && stated.error_nanos <= TIGHT, "{stated:?}");
    }
}

fn at(seconds: i64) -> Stamp {
    Stamp::from_nanos(seconds * NANOS)
}

/// A filter of bounds in µs, with the second of each.
fn filter(bounds: &[(i64, Option<i64>, Option<i64>)]) -> OffsetFilter {
    let mut filter = OffsetFilter::default();
    for (second, at_least, at_most) in bounds {
        for (is_upper, least) in [(false, *at_least), (true, at_most.map(|most| -most))] {
            let bound = |micros: i64| OffsetBound {
                at: at(*second),
                is_upper,
                least: micros * 1_000,
            };
            least.into_iter().for_each(|least| filter.add(bound(least)));
        }
    }
    filter
}

fn known(nanos: i64, error_nanos: i64) -> Option<Offset> {
    Some(Offset { nanos, error_nanos })
}

const BEFORE: (i64, Option<i64>, Option<i64>) = (1000, Some(-1), Some(1));
const STEPPED: (i64, Option<i64>, Option<i64>) = (1020, Some(8_999), Some(9_001));

#[test]
fn an_offset_over_a_period_needs_bounds_near_its_middle() {
    let stepped = filter(&[BEFORE, STEPPED]);
    assert_eq!(stepped.offset_over(at(1010), at(1030)), None);
    // Ten seconds from the bound to the middle, ten from there to the ends.
    let error = 1_000 + ALLOWANCE + 2 * 1_000_001;
    let over = stepped.offset_over(at(1020), at(1040));
    assert_eq!(over, known(9_000_000, error));
    // Longer than the validity of bounds.
    assert_eq!(filter(&[BEFORE]).offset_over(at(0), at(1000)), None);
}

#[test]
fn both_sides_of_the_last_five_minutes_bound_it() {
    let one = (100, Some(-1_000), None);
    assert_eq!(filter(&[]).offset(at(0)), None);
    assert_eq!(filter(&[one]).offset(at(100)), None);
    let both = filter(&[one, (100, None, Some(3_000))]);
    // Half of 4 ms, the allowance of 5 µs, and a nanosecond that drift is rounded up by.
    assert_eq!(both.offset(at(100)), known(1_000_000, 2_005_001));
    // 10 s later: another millisecond of possible drift on each side.
    assert_eq!(both.offset(at(110)), known(1_000_000, 3_005_001));
    assert!(both.offset(at(400)).is_some());
    assert_eq!(both.offset(at(401)), None);
    // The tightest of a slot. One second may have cost the first lower bound 100 µs.
    let two = [(1000, Some(-100), Some(900)), (1001, Some(-900), Some(100))];
    assert_eq!(filter(&two).offset(at(1001)), known(-50_000, 155_001));
    // One before and one after a time, further apart than a bound counts.
    for (first, last) in [(1000, 1310), (1000, 1600), (1019, 1619)] {
        let around = filter(&[(first, Some(-1), None), (last, None, Some(1))]);
        assert!(around.offset(at((first + last) / 2)).is_some());
    }
}

#[test]
fn a_step_shows_whenever_its_bounds_come() {
    let late = (1010, Some(-1), Some(1));
    let stepped = filter(&[BEFORE, STEPPED, late, late]);
    let in_order = filter(&[BEFORE, STEPPED]);
    assert_eq!(stepped.offset(at(1030)), in_order.offset(at(1030)));
    assert_eq!(stepped.offset(at(1030)).unwrap().nanos, 9_000_000);
    // Of the time before the step.
    assert_eq!(stepped.offset(at(1015)), None);
    let loose = (1030, Some(-50_000), Some(50_000));
    let error = 1_000 + 1_000_000 + ALLOWANCE + 1;
    let stepped = filter(&[BEFORE, loose, STEPPED]);
    assert_eq!(stepped.offset(at(1030)), known(9_000_000, error));
    // Two bounds of one time that contradict each other span a step.
    let spans = (1010, Some(9_000), Some(1));
    let unknown = filter(&[BEFORE, spans]);
    assert_eq!(
        [1010, 1011].map(|second| unknown.offset(at(second))),
        [None; 2]
    );
    let anew = filter(&[BEFORE, spans, STEPPED]);
    assert_eq!(anew.offset(at(1020)).unwrap().nanos, 9_000_000);
}

#[test]
fn memory_is_bounded_and_extremes_do_no_harm() {
    assert!(size_of::<OffsetFilter>() <= 2048);
    let extremes = [i64::MIN, -1, 0, 1, i64::MAX];
    let mut filter = OffsetFilter::default();
    for (least, moment) in extremes.iter().flat_map(|a| extremes.map(|b| (*a, b))) {
        for is_upper in [false, true] {
            filter.add(OffsetBound {
                at: Stamp::from_nanos(moment),
                is_upper,
                least,
            });
        }
        let _ = filter.offset(Stamp::from_nanos(moment));
        let _ = filter.offset(Stamp::from_nanos(0));
    }
}

#[test]
fn there_are_no_more_clocks_than_that_and_the_newest_is_one_of_them() {
    let mut table = OffsetTable::default();
    let at = Stamp::from_nanos(10);
    let known = [
        OffsetBound::of_sent(at, at),
        OffsetBound::of_received(at, at),
    ];
    (0..CAPACITY).for_each(|key| table.add(&key.to_string(), known));
    table.add("nothing is known of it", []);
    for key in ["0", "new"] {
        table.add(key, known);
        assert!(table.get_over(key, (at, at)).is_some(), "{key}");
        assert_eq!(table.clocks.len(), CAPACITY);
    }
}
