use proptest::prelude::*;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, Exp};

use super::*;
use crate::whatif;
use crate::whatif::load::Request;
use crate::whatif::replay::{Deployment, Model};

const MS: i64 = 1_000_000;

/// The slots and the tokens of a simulated server, the mean milliseconds between requests, the least and most tokens of a prompt and of an
/// output, and the number of requests.
type Load = [u32; 8];

/// What limits each load: more requests than slots with equal and different lengths; long contexts; scores, short answers and low load.
const LOADS: &str = "\
slots 4 800000 150 512 512 128 128 600
slots 16 800000 70 512 512 128 128 600
slots 32 800000 45 512 512 128 128 600
slots 32 800000 45 100 1000 25 256 600
slots 64 800000 40 64 256 256 512 600
kv_memory 256 20000 80 100 2000 32 400 700
kv_memory 256 40000 140 100 6000 32 200 700
kv_memory 256 30000 50 64 1000 200 600 700
prefill_turn 256 800000 250 8000 8000 1 1 500
prefill_turn 256 800000 200 6000 10000 2 8 500
prefill_turn 256 800000 300 512 2048 64 128 500";

fn loads() -> impl Iterator<Item = (Cause, Load)> {
    LOADS.lines().map(|line| {
        let (name, load) = line.split_once(' ').unwrap();
        let cause = Cause::ALL.into_iter().find(|cause| cause.name() == name);
        let load: Vec<u32> = load.split(' ').map(|n| n.parse().unwrap()).collect();
        (cause.unwrap(), load.try_into().unwrap())
    })
}

/// The stays as rows have them: timestamps are up to a millisecond wrong, and ends are late.
fn simulated(load: Load, seed: u64) -> Vec<Stay> {
    let [
        slots,
        pool,
        every_ms,
        shortest,
        longest,
        fewest,
        most,
        count,
    ] = load;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let gaps = Exp::new(1.0 / (f64::from(every_ms) / 1e3)).unwrap();
    let mut arrival = 0.0;
    let request = |_| {
        arrival += gaps.sample(&mut rng);
        Request {
            arrival,
            prompt: rng.random_range(shortest..=longest),
            cached: 0,
            output: rng.random_range(fewest..=most),
            server: 0,
            times: None,
        }
    };
    let arriving = whatif::load::Load {
        requests: (0..count).map(request).collect(),
        slots: vec![Some(slots as usize)],
        pool: Some(pool.into()),
        ..whatif::load::Load::default()
    };
    let mut model = Model::default();
    // Its queue begins with the arrival.
    (model.profile.tokenize_ms, model.profile.tokenize_token_us) = (0.0, 0.0);
    let served = Deployment::of(&model, &arriving).serve(&arriving);
    let stay = |of: &Request| {
        let times = of.times.unwrap();
        let times = [times.queued, times.admitted, times.first, times.finish];
        let [queued, started, first, ended] = times.map(|at| (at * 1e9) as i64);
        let queued = queued + rng.random_range(0..MS / 5);
        let started = (started + rng.random_range(0..MS)).max(queued);
        let first = (first + rng.random_range(0..2 * MS)).max(started);
        Stay {
            queued,
            started,
            first,
            ended: (ended + rng.random_range(0..4 * MS)).max(first),
            prompt: of.prompt.into(),
            output: of.output.into(),
        }
    };
    served.requests.iter().map(stay).collect()
}

/// The share of the waiting with a cause.
fn share(waits: &Waits, stays: &[Stay], cause: Cause) -> f64 {
    let mut all = ByCause::default();
    let causes = stays.iter().map(|stay| waits.causes(stay));
    causes.for_each(|of| all.add_all(&of));
    assert_eq!(all, waits.all);
    all.of(cause) as f64 / all.total() as f64
}

fn shown(waits: &Waits, stays: &[Stay]) -> String {
    let shares = Cause::ALL.map(|cause| (cause.name(), (share(waits, stays, cause) * 1e3).round()));
    let shares: Vec<_> = shares.into_iter().filter(|of| of.1 > 0.0).collect();
    format!("{shares:?} {:?}", waits.limits)
}

fn holds(load: Load, stays: &[Stay], known: &ServerFacts, cause: Cause) -> Waits {
    let waits = Waits::of(stays, known);
    let waited: i64 = stays.iter().map(Stay::waited).sum();
    let is_named = waited > 0 && share(&waits, stays, cause) >= 0.95;
    assert!(is_named, "{load:?}: {}", shown(&waits, stays));
    adds_up(stays, &waits);
    waits
}

/// Causes, and the seconds for which stays held up others, add up to all waiting.
fn adds_up(stays: &[Stay], waits: &Waits) {
    for stay in stays {
        assert_eq!(waits.causes(stay).total(), stay.waited());
    }
    let waited: f64 = stays.iter().map(|stay| stay.waited() as f64 / 1e9).sum();
    let each = || (0..stays.len()).map(|stay| waits.held_up(stay));
    let held = each().sum::<f64>() + waits.unattributed_s;
    let apart = (waited - held).abs();
    assert!(apart <= 1e-9 * waited.max(1.0), "{waited} {held}");
    assert!(each().all(|held| held >= -1e-9));
}

/// The limits of a server, as files have them.
fn with_limits([slots, pool, ..]: Load) -> ServerFacts {
    ServerFacts {
        slots: Some(slots),
        pool: Some(pool.into()),
        ..ServerFacts::default()
    }
}

#[test]
fn each_limit_is_recognized_with_and_without_files_that_name_it() {
    for (cause, load) in loads() {
        for seed in 0..2 {
            let stays = simulated(load, seed);
            holds(load, &stays, &with_limits(load), cause);
            let waits = holds(load, &stays, &ServerFacts::default(), cause);
            if cause == Cause::Slots {
                assert_eq!(waits.limits.slots, Some(load[0]), "{load:?}");
            }
        }
    }
}

/// A run has millions of them.
#[test]
fn little_is_kept_of_a_stay() {
    for (_, load) in loads() {
        let stays = simulated(load, 0);
        let waits = Waits::of(&stays, &ServerFacts::default());
        let stretches: usize = waits.stretches.iter().map(Vec::len).sum();
        let bytes = size_of_val(&*waits.held) + stretches * size_of::<Stretch>();
        assert!(bytes <= 80 * stays.len(), "{load:?}: {bytes}");
    }
}

/// If neither the pool nor its usage is known, a pool that filled up is found, or the cause is unknown: not other requests or the slots.
#[test]
fn an_unknown_full_pool_is_not_blamed_on_others() {
    for (load, seeds) in [
        ([256, 30_000, 50, 64, 1_000, 200, 600, 700], 2..8),
        ([256, 100_000, 20, 64, 2_000, 100, 900, 1_500], 10..12),
    ] {
        for seed in seeds {
            let stays = simulated(load, seed);
            let waits = Waits::of(&stays, &ServerFacts::default());
            let of = |cause| share(&waits, &stays, cause);
            let named = of(Cause::Memory) + of(Cause::Unknown);
            assert!(named >= 0.95, "{load:?} {seed}: {}", shown(&waits, &stays));
        }
    }
}

#[test]
fn waiting_for_unknown_traffic_is_not_attributed_to_known_requests() {
    for (_, load) in loads().filter(|(cause, _)| *cause == Cause::Slots) {
        for (seed, dropped) in [(0, 0.5), (1, 0.7), (2, 0.35)] {
            // All of 4 slots are often taken by known requests, which is then the true cause.
            if load[0] == 4 && dropped < 0.7 {
                continue;
            }
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut stays = simulated(load, seed);
            stays.retain(|_| rng.random::<f64>() >= dropped);
            let waits = holds(load, &stays, &with_limits(load), Cause::NotSeen);
            let held: f64 = (0..stays.len()).map(|stay| waits.held_up(stay)).sum();
            let share = held / (held + waits.unattributed_s);
            assert!(share <= 0.05, "{load:?} {dropped}: {share}");
            holds(load, &stays, &ServerFacts::default(), Cause::NotSeen);
        }
    }
}

/// Milliseconds.
fn stay(queued: i64, started: i64, ended: i64) -> Stay {
    Stay {
        queued: queued * MS,
        started: started * MS,
        first: started * MS,
        ended: ended * MS,
        ..Stay::default()
    }
}

#[test]
fn a_wait_is_attributed_to_those_that_ran_by_hand() {
    // One waits while nobody runs, then 0 and 1 run; 2 waits for both, from 30 on for 1 and 3.
    let stays = [
        stay(0, 10, 30),
        stay(10, 10, 50),
        stay(20, 50, 60),
        stay(30, 30, 90),
    ];
    let known = ServerFacts {
        slots: Some(2),
        ..ServerFacts::default()
    };
    let waits = Waits::of(&stays, &known);
    let held = (0..stays.len()).map(|stay| (waits.held_up(stay) * 1e3).round());
    assert_eq!(held.collect::<Vec<_>>(), [5.0, 15.0, 0.0, 10.0]);
    assert_eq!(waits.unattributed_s, 0.010);
    assert_eq!(waits.causes(&stays[0]).of(Cause::Prefill), 10 * MS);
    assert_eq!(waits.causes(&stays[2]).of(Cause::Slots), 30 * MS);
    let holders = waits.holders(2, 2);
    let holders = holders.iter().map(|(of, s)| (*of, (s * 1e3).round()));
    assert_eq!(holders.collect::<Vec<_>>(), [(1, 15.0), (3, 10.0)]);
    let (start, end) = (0, 25 * MS);
    let down = ServerFacts {
        down: vec![Interval { start, end }],
        ..known
    };
    let waits = Waits::of(&stays, &down);
    assert_eq!(waits.causes(&stays[0]).of(Cause::Down), 10 * MS);
    assert_eq!(waits.causes(&stays[2]).of(Cause::Down), 5 * MS);
    adds_up(&stays, &waits);
}

proptest! {
    #[test]
    fn parts_add_up_to_the_whole(
        all in prop::collection::vec((0_i64..5_000, 0_i64..900, 0_i64..90, -5_i64..2_000, 0_u64..9_000), 0..60),
        known_slots in prop::option::of(1_u32..9),
        pool in prop::option::of(1_u64..90_000),
        usage in prop::collection::vec((0_i64..6_000, 0.0..1.2_f64), 0..4),
        untimed in prop::collection::vec((-100_i64..8_000, 0_i64..900), 0..9),
    ) {
        let stay = |(queued, waited, prefill, ran, tokens): (i64, i64, i64, i64, u64)| Stay {
            queued: queued * MS,
            started: (queued + waited) * MS,
            first: (queued + waited + prefill) * MS,
            ended: (queued + waited + ran) * MS,
            prompt: tokens,
            output: tokens / 7,
        };
        let stays: Vec<Stay> = all.into_iter().map(stay).collect();
        let mut usage: Vec<(i64, f64)> = usage.into_iter().map(|(at, used)| (at * MS, used)).collect();
        usage.sort_by_key(|(at, _)| *at);
        let untimed = untimed.into_iter().map(|(start, length)| Interval { start: start * MS, end: (start + length) * MS });
        let known = ServerFacts { slots: known_slots, pool, usage, untimed: Interval::union(untimed.collect()), ..ServerFacts::default() };
        let waits = Waits::of(&stays, &known);
        adds_up(&stays, &waits);
        // The sum over single waits is what it held up all.
        let mut held = vec![0.0; stays.len()];
        for stay in 0..stays.len() {
            for (by, seconds) in waits.holders(stay, usize::MAX) {
                held[by] += seconds;
            }
        }
        for (stay, each) in held.iter().enumerate() {
            let all = waits.held_up(stay);
            prop_assert!((all - each).abs() < 1e-9, "{all} {each}");
        }
    }
}
