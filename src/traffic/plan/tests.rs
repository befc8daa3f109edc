use std::collections::BTreeSet;

use super::*;
use crate::traffic::tests::planned;

/// Index, offset, id and body of all requests whose offset is known, in order.
fn sent(plan: &RunPlan) -> Vec<(usize, i64, String, bytes::Bytes)> {
    let request = |(number, at)| {
        let index = plan.request_index(number, 0);
        (index, at, plan.req_id(index), plan.request(number))
    };
    plan.schedule().map(request).collect()
}

#[test]
fn shards_together_send_what_one_generator_sends() {
    let small = "--random-input-len 9 --random-range-ratio 0.5 --num-prompts 100";
    for load in [
        "--request-rate 30 --burstiness 0.5",
        "--arrival constant --request-rate 30",
        "--rate-curve 0:5,10:50,20:0,20:100",
        "--dataset-name conversations --turns 3 --request-rate 10",
    ] {
        let whole = planned(&format!("{small} {load}"));
        let part = |index| planned(&format!("{small} {load} --shard {index}/3"));
        let parts: Vec<RunPlan> = (0..3).map(part).collect();
        let mut together: Vec<_> = parts.iter().flat_map(sent).collect();
        together.sort();
        assert_eq!(together, sent(&whole), "{load}");
        let all = |plan: &RunPlan| -> Vec<_> { plan.requests().map(|(index, ..)| index).collect() };
        let mut indices: Vec<usize> = parts.iter().flat_map(all).collect();
        indices.sort_unstable();
        assert_eq!(indices, all(&whole));
        let (rate, share) = (whole.offered_rate(), parts[1].shard_rate());
        assert_eq!(rate, share.map(|share| share * 3.0));
        let sum = |plan: &RunPlan| plan.workload_sha256();
        assert_eq!(sum(&parts[0]), sum(&whole));
    }
}

#[test]
fn a_trial_sends_at_exactly_the_requested_rate() {
    for (load, is_scaled) in [
        ("--request-rate 18", true),
        ("--request-rate 18 --burstiness 0.5", true),
        ("--request-rate 18 --arrival constant", false),
        ("--rate-curve 0:5,10:50,20:18", false),
    ] {
        let mut plan = planned(&format!("{load} --num-prompts 200"));
        plan.args.exact_rate = true;
        let (drawn, sent) = (plan.offsets, plan.args.plan().unwrap().offsets);
        assert_eq!(drawn != sent, is_scaled, "{load}");
        if is_scaled {
            let rate = |all: &[i64]| 199.0 * NANOS as f64 / (all[199] - all[0]) as f64;
            assert!((rate(&sent) - 18.0).abs() < 1e-6, "{}", rate(&drawn));
            // Each gap by the same factor.
            let factor = sent[199] as f64 / drawn[199] as f64;
            let is_scaled =
                |(drawn, sent): (&i64, &i64)| (*drawn as f64 * factor - *sent as f64).abs() < 2.0;
            assert!(drawn.iter().zip(&*sent).all(is_scaled));
        }
    }
    let mut one = planned("--request-rate 18 --num-prompts 1");
    one.args.exact_rate = true;
    assert_eq!(one.args.plan().unwrap().offsets.len(), 1);
}

#[test]
fn the_schedule_depends_on_seed_and_rate_alone() {
    let offsets = |more: &str| {
        let plan = planned(&format!("--request-rate 50 {more}"));
        plan.offsets.to_vec()
    };
    let hundred = offsets("--seed 9 --num-prompts 100");
    assert_ne!(offsets("--seed 8 --num-prompts 100"), hundred);
    let other = "--max-concurrency 3 --random-output-len 7 --random-range-ratio 0.5 --backend sglang-oai \
                 --dataset-name random-ids --warmup-requests 5";
    let with_other = offsets(&format!("--seed 9 --num-prompts 100 {other}"));
    assert_eq!(with_other, hundred);
    // Two seconds of the same process: everything before the limit, nothing after.
    let long = offsets("--seed 9 --num-prompts 300");
    let inside = long.iter().filter(|at| **at < 2 * NANOS).count();
    assert_eq!(offsets("--seed 9 --duration 2"), long[..inside]);
    assert_eq!(long[..100], hundred);
}

#[test]
fn the_end_of_a_curve_ends_the_run_unless_count_or_duration_does() {
    let curve = "--arrival constant --rate-curve 0:10,10:10,10:20";
    // The last rate continues.
    let long = "--num-prompts 300";
    for (more, count) in [("", 100), ("--duration 12", 140), (long, 300)] {
        let plan = planned(&format!("{curve} {more}"));
        assert_eq!(plan.offsets.len(), count, "{more}");
    }
    let rate = |line: &str| planned(line).offered_rate();
    assert_eq!(rate("--request-rate 480/min"), Some(8.0));
    let per_minute = "--rate-curve 0:600/min,10:10,10:1200/min --duration 20";
    assert_eq!(rate(per_minute), Some(15.0));
}

#[test]
fn think_times_depend_on_the_seed_and_have_the_given_mean() {
    let think_times = || -> Vec<f64> {
        let line = "--dataset-name conversations --turns 11 --think-time-s 2 --follow-up-len 1";
        let load = planned(line);
        let turns = (0..10_000).map(|n| load.follow_up(n / 10, n as usize % 10 + 1).unwrap());
        turns.map(|next| next.think_ns as f64 / 1e9).collect()
    };
    let thoughts = think_times();
    assert_eq!(thoughts, think_times());
    // 10 000 exponential times of mean 2 s: a standard error of 0.02 s, 5 of them 6e-7.
    let mean = thoughts.iter().sum::<f64>() / 1e4;
    assert!((mean - 2.0).abs() < 0.1, "{mean}");
    // A share of e^-1 is above the mean.
    let far = thoughts.iter().filter(|s| **s > 2.0).count() as f64 / 1e4;
    assert!((far - (-1.0_f64).exp()).abs() < 0.025, "{far}");
}

#[test]
fn the_checksum_depends_on_the_load_and_not_on_the_model() {
    let sum = |line: &str| {
        let line = format!("--backend sglang-oai --num-prompts 5 --random-input-len 9 {line}");
        planned(&line).workload_sha256()
    };
    let one = sum("--request-rate 9 --model a");
    assert_eq!(sum("--request-rate 9 --model b --max-concurrency 3"), one);
    let talk = "--request-rate 9 --dataset-name conversations";
    let [slow, short] = ["--think-time-s 3", "--turns 3"].map(|more| format!("{talk} {more}"));
    let [seed, output] =
        ["--seed 2", "--random-output-len 5"].map(|more| format!("--request-rate 9 {more}"));
    let sums = ["--request-rate 8", &seed, &output, talk, &slow, &short].map(sum);
    assert_eq!(BTreeSet::from_iter(sums.iter().chain([&one])).len(), 7);
}
