use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::report::files::{ExperimentFile, RunState};
use crate::report::load::tests::*;

const P50: Statistic = Statistic::Quantile(0.5);
const P99: Statistic = Statistic::Quantile(0.99);

pub fn difference(by: f64, low: f64, high: f64) -> Difference {
    Difference {
        metric: Some(ColumnId::ttft),
        statistic: P99,
        a: "round_robin".to_owned(),
        b: "shortest_queue".to_owned(),
        found: PairedDifference {
            of_a: 0.1,
            of_b: 0.1 + by,
            low,
            high,
        },
        difference: by,
        pairs: 1000,
        holds: true,
        ..Difference::default()
    }
}

/// Golden reports hold all others.
#[test]
fn sentences_of_endless_bounds_of_nothing_and_of_failed_requests() {
    let beaten = "shortest_queue beats round_robin on p99 TTFT by";
    let none = "no difference can be shown between round_robin and shortest_queue on p99 TTFT";
    // More requests of the worse setting failed, which cannot reverse the result.
    let failed = Difference {
        failed_a: 50,
        failed_b: 2,
        left_out: 52,
        pairs: 948,
        ..difference(-0.031, -0.041, -0.022)
    };
    let counts =
        "of the 948 of 1000 pairs with both values; failed: round_robin 50, shortest_queue 2";
    let short = Difference {
        metric: Some(ColumnId::tpot),
        ..difference(-0.0003, -0.0004, -0.0002)
    };
    let of_short = beaten.replace("TTFT", "time per output token");
    let endless = difference(-0.031, f64::NEG_INFINITY, -0.02);
    let nothing = difference(-0.00001, -0.014, 0.009);
    let unseen = difference(0.0000003, 0.0000001, 0.0000004);
    let known = [
        (unseen, format!("{none} (0 µs [0, 0])")),
        (endless, format!("{beaten} 31.0 ms [20.0, no end]")),
        (nothing, format!("{none} (0.0 ms [−14.0, 9.0])")),
        (failed, format!("{beaten} 31.0 ms [22.0, 41.0]; {counts}")),
        (short, format!("{of_short} 300 µs [200, 400]")),
    ];
    for (difference, sentence) in known {
        assert_eq!(difference.sentence(), sentence);
    }
}

#[test]
fn of_many_comparisons_only_strong_ones_are_significant() {
    // Strengths of 1.1 and 1.05 are significant in one comparison, but not in two.
    let reaching = |strengths: &[f64]| {
        let by = |s: &f64| difference(-0.03, -0.03 - 0.03 / s, -0.03 + 0.03 / s);
        let mut all: Vec<Difference> = strengths.iter().map(by).collect();
        apply_holm(&mut all);
        all.iter().map(|d| d.is_shown()).collect::<Vec<_>>()
    };
    assert_eq!(reaching(&[1.05, 1.1]), [false, false]);
    assert_eq!(reaching(&[1.05, 1.2]), [true, true]);
    assert_eq!(reaching(&[0.9, 1.2]), [false, true]);
    assert_eq!(reaching(&[1.05]), [true]);
}

/// Values around 0.1 s that vary together, with a little noise of each setting's own.
fn setting(shift: f64, seed: u64) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let value = |place: usize| {
        0.1 + 0.05 * (place as f64 / 20.0).sin() + shift + rng.random_range(0.0..0.01)
    };
    (0..1000).map(value).collect()
}

/// Compares values; the second setting has so many failed requests.
fn compared(a: &[f64], b: &[f64], failed: usize, statistic: Statistic) -> Difference {
    let pairs = a.iter().copied().zip(b.iter().copied());
    let strata = vec![pairs.collect()];
    compare(&strata, [0, failed], Some(ColumnId::ttft), statistic).unwrap()
}

#[test]
fn pairs_without_a_value_are_left_out_and_counted() {
    let (a, mut b) = (setting(0.0, 1), setting(-0.02, 2));
    b[990..].fill(f64::NAN);
    b[7] = f64::NAN;
    let of = |b: &[f64], failed, statistic| {
        let found = compared(&a, b, failed, statistic);
        let counts = (found.pairs, found.left_out, found.is_with_failed);
        (counts, found.is_shown())
    };
    assert_eq!(of(&b, 0, P99), ((989, 11, false), true));
    // A few failed requests are the slowest of all; the better setting failed more often.
    b[100..103].fill(f64::INFINITY);
    assert_eq!(of(&b, 3, P50).0, (989, 11, true));
    // With so many failed that the p99 is infinite, or without values of failed ones, only the others are compared: the better setting
    // by these is not shown to be better.
    for (failed, statistic) in [(f64::INFINITY, P99), (f64::NAN, P50)] {
        b[100..130].fill(failed);
        let found = compared(&a, &b, 30, statistic);
        assert!(found.found.high < 0.0, "{found:?}");
        assert!(!found.is_with_failed && !found.is_shown(), "{found:?}");
    }
    let none = compare(&Vec::new(), [0, 30], Some(ColumnId::ttft), P99);
    assert_eq!(none, None);
}

/// A run with a time to first token for each place; `None` is a request that failed.
fn run(policy: &str, repeat: u32, values: &[Option<f64>]) -> Run {
    let row = |(place, value): (usize, &Option<f64>)| {
        let outcome = if value.is_some() { "ok" } else { "timeout" };
        let ttft = value.map_or(String::new(), |value| value.to_string());
        let at = place as f64 / 8.0;
        format!("req_id=x-{place}, scheduled_time={at}, outcome={outcome}, ttft={ttft}")
    };
    let settings = json!({ "routing_policy": policy });
    let name = format!("routing_policy={policy}");
    Run {
        name: name.clone(),
        file: Some(RunFile {
            label: name,
            settings: settings.as_object().unwrap().clone(),
            repeat,
            state: RunState::Done,
            workload_sha256: Some("same".to_owned()),
            ..RunFile::default()
        }),
        ..Run::of_lines(values.iter().enumerate().map(row))
    }
}

fn values(shift: f64, seed: u64) -> Vec<Option<f64>> {
    setting(shift, seed).into_iter().map(Some).collect()
}

/// Each rate is a group of its own: its requests are others.
#[test]
fn settings_are_compared_with_those_sent_the_same_and_their_repeats_together() {
    let of = |rate: u32, policy, repeat: u32, shift, seed: u64| {
        let mut run = run(policy, repeat, &values(shift, seed + u64::from(repeat)));
        let file = run.file.as_mut().unwrap();
        file.settings.insert("request_rate".to_owned(), rate.into());
        file.label += &format!(",request_rate={rate}");
        file.workload_sha256 = Some(rate.to_string());
        run
    };
    let runs = [0, 1].map(|repeat| {
        [
            of(10, "random", repeat, 0.0, 0),
            of(10, "round_robin", repeat, -0.03, 10),
            of(10, "shortest_queue", repeat, 0.0, 20),
            of(20, "random", repeat, 0.0, 30),
            of(20, "round_robin", repeat, -0.03, 40),
        ]
    });
    let experiment = Some(ExperimentFile::default());
    let runs = runs.concat();
    let made = comparison(&Loaded { experiment, runs });
    assert_eq!(made.notes, [""; 0]);
    assert!(made.differences.iter().all(|of| of.pairs == 2000));
    let name = |rate, policy| format!("routing_policy={policy},request_rate={rate}");
    let ten = ["random", "round_robin", "shortest_queue"].map(|policy| name(10, policy));
    let twenty = ["random", "round_robin"].map(|policy| name(20, policy));
    assert_eq!(made.groups, [&ten[..], &twenty]);
    let found = made.differences.iter();
    let found = found.map(|of| (&of.a, &of.b, of.is_shown(), of.is_against_first));
    let expected = [
        (&ten[0], &ten[1], true, true),
        (&ten[0], &ten[2], false, true),
        (&ten[1], &ten[2], true, false),
        (&twenty[0], &twenty[1], true, true),
    ];
    // The median and the p99 of each.
    let expected = expected.map(|of| [of; 2]).concat();
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let answers = made.answers();
    for (better, worse) in [
        (&ten[1], format!("{} and {}", ten[0], ten[2])),
        (&twenty[1], twenty[0].clone()),
    ] {
        let answer = format!("best on p99 TTFT: {better}, shown against {worse}.");
        assert!(answers.contains(&answer), "{answers:?}");
    }
}

/// Runs of two experiments with the same settings are two settings, whatever their repeats, with names of their own in each sentence.
#[test]
fn settings_of_two_experiments_have_different_names() {
    let of = |experiment: &str, policy, repeat, shift, seed| {
        let run = run(policy, repeat, &values(shift, seed));
        Run {
            dir: format!("{experiment}/runs/{policy}-{repeat}").into(),
            name: format!("{} ({experiment}-{repeat})", run.name),
            ..run
        }
    };
    let made = comparison(&Loaded::of(vec![
        of("a", "random", 0, 0.0, 1),
        of("b", "random", 0, -0.03, 2),
        of("b", "random", 1, -0.03, 2),
        of("b", "round_robin", 0, 0.0, 3),
    ]));
    let names = ["(a-0)", "(b-0) (b-1)"].map(|of| format!("routing_policy=random {of}"));
    let names = names.each_ref().map(String::as_str);
    let found: Vec<[&str; 2]> = made.differences.iter().map(|of| [&*of.a, &of.b]).collect();
    assert!(found.contains(&names), "{found:?}");
    let other = "routing_policy=round_robin (b-0)";
    assert!(found.contains(&[names[0], other]), "{found:?}");
    assert!(found.iter().all(|[a, b]| a != b), "{found:?}");
    assert_eq!(made.groups, [[names[0], names[1], other]]);
    let answers = made.answers().join(" ");
    let answer = "random (b-0) (b-1), shown against routing_policy=random (a-0)";
    assert_says(&answers, answer);
}
