use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::*;
use crate::report::files::{RunFile, RunState, plain};
use crate::report::reader::{Loaded, Run};
use crate::table::{Cell, Table};

const P50: Statistic = Statistic::Quantile(0.5);
const P99: Statistic = Statistic::Quantile(0.99);

fn difference(by: f64, low: f64, high: f64) -> Difference {
    Difference {
        metric: Some(ColumnId::ttft),
        statistic: P99,
        a: "round_robin".to_owned(),
        b: "shortest_queue".to_owned(),
        of_a: 0.1,
        of_b: 0.1 + by,
        difference: by,
        low,
        high,
        pairs: 1000,
        is_against_first: true,
        repeats: 1,
        comparisons: 1,
        holds: true,
        ..Difference::default()
    }
}

#[test]
fn sentences() {
    let beaten = "shortest_queue beats round_robin on p99 TTFT by";
    let known = [
        (difference(-0.031, -0.0412, -0.0216), format!("{beaten} 31.0 ms [21.6, 41.2]")),
        (difference(-0.031, f64::NEG_INFINITY, -0.02), format!("{beaten} 31.0 ms [20.0, no end]")),
        (
            difference(0.031, 0.022, 0.041),
            "round_robin beats shortest_queue on p99 TTFT by 31.0 ms [22.0, 41.0]".to_owned(),
        ),
        (
            difference(-0.003, -0.014, 0.009),
            "no difference can be shown between round_robin and shortest_queue on p99 TTFT (−3.0 ms [−14.0, 9.0])"
                .to_owned(),
        ),
        (
            difference(-0.00001, -0.014, 0.009),
            "no difference can be shown between round_robin and shortest_queue on p99 TTFT (0.0 ms [−14.0, 9.0])"
                .to_owned(),
        ),
        (
            Difference { at: "request_rate=8".to_owned(), statistic: Statistic::Mean, metric: Some(ColumnId::tpot),
                ..difference(-0.0003, -0.0004, -0.0002) },
            "request_rate=8: shortest_queue beats round_robin on mean time per output token by 300 µs [200, 400]"
                .to_owned(),
        ),
        // More requests of the worse setting failed, which cannot reverse the result.
        (
            Difference { failed_a: 50, failed_b: 2, left_out: 52, pairs: 948, ..difference(-0.031, -0.041, -0.022) },
            format!("{beaten} 31.0 ms [22.0, 41.0]; of the 948 of 1000 pairs with both values; failed: round_robin 50, shortest_queue 2"),
        ),
        (
            Difference { metric: None, ..difference(0.012, 0.009, 0.015) },
            "round_robin beats shortest_queue on failed requests by 1.20 % of all [0.90, 1.50]".to_owned(),
        ),
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

fn pairs(a: &[f64], b: &[f64]) -> Strata {
    vec![a.iter().copied().zip(b.iter().copied()).collect()]
}

/// Compares values; the second setting has so many failed requests.
fn compared(a: &[f64], b: &[f64], failed: usize, statistic: Statistic) -> Difference {
    compare(
        &pairs(a, b),
        [0, failed],
        Some(ColumnId::ttft),
        statistic,
        1,
    )
    .unwrap()
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
    assert_eq!(of(&b, 3, Statistic::Mean), ((986, 14, false), false));
    // With so many failed that the p99 is infinite, or without values of failed ones, only the others are compared: the better setting
    // by these is not shown to be better.
    for (failed, statistic) in [(f64::INFINITY, P99), (f64::NAN, P50)] {
        b[100..130].fill(failed);
        let found = compared(&a, &b, 30, statistic);
        assert!(found.high < 0.0, "{found:?}");
        assert!(!found.is_with_failed && !found.is_shown(), "{found:?}");
    }
    assert_eq!(
        compare(&Vec::new(), [0, 30], Some(ColumnId::ttft), P99, 1),
        None
    );
}

/// A run with a time to first token for each place; `None` is a request that failed.
fn run(policy: &str, repeat: u32, values: &[Option<f64>]) -> Run {
    let settings = json!({"routing_policy": policy});
    run_of(settings, repeat, &["ttft"], values)
}

/// A run with the same value in several columns.
fn run_of(settings: Value, repeat: u32, columns: &[&'static str], values: &[Option<f64>]) -> Run {
    let mut table = Table::default();
    for (place, value) in values.iter().enumerate() {
        let id = format!("x-{place}");
        let outcome = if value.is_some() { "ok" } else { "timeout" };
        let of_column = |column: &&'static str| Some((*column, Cell::Number((*value)?)));
        let cells = [
            ("req_id", Cell::Id(&id)),
            ("scheduled_time", Cell::Number(place as f64 / 8.0)),
            ("outcome", Cell::Word(outcome)),
        ];
        let known = columns.iter().filter_map(of_column);
        table.push(cells.into_iter().chain(known));
    }
    let settings = settings.as_object().unwrap().clone();
    let first = settings.iter().next();
    Run {
        name: first.map_or(String::new(), |(key, value)| {
            format!("{key}={}", plain(value))
        }),
        file: Some(RunFile {
            settings,
            repeat,
            state: RunState::Done,
            workload_sha256: Some("same".to_owned()),
            ..RunFile::default()
        }),
        table,
        ..Run::default()
    }
}

fn values(shift: f64, seed: u64) -> Vec<Option<f64>> {
    setting(shift, seed).into_iter().map(Some).collect()
}

fn loaded(runs: Vec<Run>) -> Loaded {
    Loaded {
        runs,
        ..Loaded::default()
    }
}

#[test]
fn settings_are_compared_with_their_repeats_together() {
    let mut runs = Vec::new();
    for repeat in 0..2 {
        let seed = u64::from(repeat);
        runs.push(run("random", repeat, &values(0.0, seed)));
        runs.push(run("round_robin", repeat, &values(-0.03, 10 + seed)));
        runs.push(run("shortest_queue", repeat, &values(0.0, 20 + seed)));
    }
    let made = comparison(&loaded(runs));
    assert_eq!(made.notes, Vec::<String>::new());
    assert!(made.differences.iter().all(|of| of.pairs == 2000));
    let found = made.differences.iter().map(|of| {
        let [a, b] = [&of.a, &of.b].map(|name| name.strip_prefix("routing_policy=").unwrap());
        (a, b, of.is_shown(), of.is_against_first)
    });
    let of = |a, b, shown, first| [(a, b, shown, first); 2];
    let expected = [
        of("random", "round_robin", true, true),
        of("random", "shortest_queue", false, true),
        of("round_robin", "shortest_queue", true, false),
    ];
    // The median and the p99 of each.
    assert_eq!(found.collect::<Vec<_>>(), expected.concat());
}

/// Runs of two experiments with the same settings are two settings, whatever their repeats, with names of their own in each sentence.
#[test]
fn settings_of_two_experiments_have_different_names() {
    let of = |experiment: &str, policy, repeat, shift, seed| {
        let run = run(policy, repeat, &values(shift, seed));
        Run {
            dir: format!("{experiment}/runs/{policy}-{repeat}").into(),
            name: format!("{} ({experiment})", run.name),
            ..run
        }
    };
    let made = comparison(&loaded(vec![
        of("a", "random", 0, 0.0, 1),
        of("b", "random", 0, -0.03, 2),
        of("b", "random", 1, -0.03, 2),
        of("b", "round_robin", 0, 0.0, 3),
    ]));
    let names = ["routing_policy=random (a)", "routing_policy=random (b)"];
    let found: Vec<[&str; 2]> = made.differences.iter().map(|of| [&*of.a, &of.b]).collect();
    assert!(found.contains(&names), "{found:?}");
    assert!(
        found.contains(&[names[0], "routing_policy=round_robin"]),
        "{found:?}"
    );
    assert!(found.iter().all(|[a, b]| a != b), "{found:?}");
    assert_eq!(
        made.groups,
        [[names[0], names[1], "routing_policy=round_robin"]]
    );
    let answers = made.answers().join(" ");
    assert!(
        answers.contains("random (b), shown against routing_policy=random (a)"),
        "{answers}"
    );
}

#[test]
fn runs_that_are_not_compared_are_named_with_the_reason() {
    let good = || run("random", 0, &values(0.0, 1));
    let other = || run("round_robin", 0, &values(-0.03, 2));
    type Change = fn(&mut Run);
    let unfit: [(Change, &str); 4] = [
        (
            |run| run.summary = json!({"verdict": {"grade": "INVALID", "reasons": []}}),
            "it is INVALID",
        ),
        (|run| run.is_partial = true, "it did not come to its end"),
        (
            |run| run.file.as_mut().unwrap().kept_cache = true,
            "a server kept its cache from before the run",
        ),
        (
            |run| run.file.as_mut().unwrap().workload_sha256 = Some("another".to_owned()),
            "no other setting was sent the same",
        ),
    ];
    for (change, why) in unfit {
        let mut bad = other();
        change(&mut bad);
        let made = comparison(&loaded(vec![good(), bad]));
        let alone = "routing_policy=random is not compared: no other setting was sent the same";
        let bad = format!("routing_policy=round_robin is not compared: {why}");
        let mut notes = made.notes.clone();
        notes.sort();
        assert_eq!(notes, [alone, &bad]);
        assert_eq!(made.differences.len(), 0, "{why}");
    }
    // What either run was sent is unknown.
    let unknown = [good(), other()].map(|mut run| {
        run.file.as_mut().unwrap().workload_sha256 = None;
        run
    });
    assert!(comparison(&loaded(unknown.into())).differences.is_empty());
    let short = run("round_robin", 0, &values(0.0, 1)[..30]);
    let expected = [("p50", 40), ("p99", 500)].map(|(what, least)| {
        format!(
            "the {what} of TTFT is not compared where fewer than {least} requests have a value in both settings"
        )
    });
    assert_eq!(comparison(&loaded(vec![good(), short])).too_few, expected);
}
