//! Findings of waiting in server queues.

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::*;

#[test]
fn a_second_large_cause_of_waiting_is_named_too() {
    let run = run_of(100, |sample, _, start| queued(sample, start));
    let with_prefill = |share| {
        let mut why = crate::report::why::WaitReport::default();
        why.causes.add(Cause::Slots, 100 - share);
        why.causes.add(Cause::Prefill, share);
        let mut report = RunReport {
            why,
            findings: Vec::new(),
            ..RunReport::of(&run)
        };
        add_findings(&mut report);
        let mut all = report.findings.into_iter();
        let found = all.find(|of| of.kind == "server_queue").unwrap();
        (found.what, found.advice)
    };
    let (what, advice) = with_prefill(38);
    let expected = "All slots were taken for 62 % of that time, and its turn of prefill had not come for 38 %.";
    assert_says(&what, expected);
    let [slots, prefill] = [Cause::Slots, Cause::Prefill].map(Cause::advice);
    assert_eq!(advice, format!("{slots} For the 38 %: {prefill}"));
    let (what, advice) = with_prefill(19);
    assert_says(&what, "for 81 % of that time.");
    assert_eq!(advice, slots);
}

#[test]
fn a_server_queue_is_found_with_what_limits_it() {
    let run = run_of(100, |sample, _, start| queued(sample, start));
    let finding = only(&run, "server_queue");
    assert_says(&finding.what, "0.38 s of 0.50 s on average (76 %)");
    assert!(!finding.advice.is_empty());
    // A request runs for 100 ms, and each server gets one every 74 ms.
    let mut run = with_slots(&run, 256);
    run.given_pool = Some(800_000);
    let other = only(&run, "server_queue");
    // It runs far fewer requests than it could, and than it has.
    let unseen = "Requests that are not seen here had the server";
    assert_says(&other.what, unseen);
    assert_says(&other.advice, "who else sends requests");
}

/// A run at a rate of servers with 32 slots that can do 21.9 requests/s, first come first served.
fn loaded(rate: f64, count: usize, seed: u64) -> Run {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut gap = move |mean: f64| -mean * (1.0 - rng.random::<f64>()).ln();
    let mut slots = [0.0_f64; 32];
    let mut table = Table::default();
    let mut at = 0.0;
    for _ in 0..count {
        at += gap(1.0 / rate);
        slots.sort_by(f64::total_cmp);
        let start = slots[0].max(at);
        slots[0] = start + gap(32.0 / 21.9);
        let (end, waited) = (slots[0], start - at);
        table.push_line(&format!(
            "success=True, scheduled_time={at}, end_time={end}, pure_queue_time={waited}"
        ));
    }
    Run::of_table(table)
}

/// At the highest rate that can be served, 1 of 100 runs may be found to grow: 5 or more of 100 happen in under 1 of 200 sets.
#[test]
fn a_queue_grows_only_where_more_comes_than_ends() {
    let growing = |rate: f64, count| {
        let runs = (0..100).map(|seed| servers::growth(&loaded(rate, count, seed)));
        runs.flatten().count()
    };
    for count in [300, 1000] {
        assert_eq!(growing(19.5, count), 0, "of {count}");
        assert!(growing(21.9, count) < 5, "of {count}");
    }
    assert!(growing(30.0, 1000) > 95, "{}", growing(30.0, 1000));
    assert!(kinds(&loaded(30.0, 1000, 0)).contains(&"queue_growth"));
    // A third of 80 is too few for a mean to say anything.
    let is_found = |count| servers::growth(&loaded(300.0, count, 0)).is_some();
    assert_eq!([80, 100].map(is_found), [false, true]);
}
