//! Each finding, on a made-up run that has it and on one that does not.

use super::*;
use crate::report::load::tests::*;
use crate::request::{BodyTiming, ENGINE};
use crate::stats::waits::Cause;

mod failing;
mod pairs;
mod waiting;

/// A run of so many good requests, one every 37 ms, at two servers in turn; `change` gets each with its number and its scheduled time, ms.
fn run_of(count: i64, change: impl Fn(Sample, i64, i64) -> Sample) -> Run {
    let row = |n: i64| {
        let sample = Sample::starting(n * 37).host(["a:1", "b:1"][n as usize % 2]);
        let sample = sample.with(|record| record.worker = Some("hop".to_owned()));
        change(sample, n, n * 37).row()
    };
    Run::of_rows(&(0..count).map(row).collect::<Vec<_>>())
}

fn found(run: &Run) -> Vec<Finding> {
    RunReport::of(run).findings
}

fn kinds(run: &Run) -> Vec<&'static str> {
    found(run).iter().map(|finding| finding.kind).collect()
}

/// Returns the only finding, which must be of this kind.
fn only(run: &Run, kind: &str) -> Finding {
    let mut all = found(run);
    assert_eq!(all.len(), 1, "{all:#?}");
    let finding = all.remove(0);
    assert_eq!(finding.kind, kind);
    finding
}

/// Sets moments, ms after the scheduled time.
fn with(text: &str) -> impl Fn(Sample, i64, i64) -> Sample {
    let moments = moments(text);
    move |sample, _, start| set(sample, start, &moments)
}

/// Parses moments and their ms after the scheduled time.
fn moments(text: &str) -> Vec<(Moment, i64)> {
    let moment = |pair: &str| {
        let (name, after) = pair.split_once(' ').unwrap();
        let mut all = Moment::ALL.into_iter();
        let moment = all.find(|moment| format!("{moment:?}") == name);
        (moment.unwrap(), after.parse().unwrap())
    };
    text.split(", ").map(moment).collect()
}

/// Sets moments, ms after the scheduled time.
fn set(sample: Sample, start: i64, moments: &[(Moment, i64)]) -> Sample {
    let set = |sample: Sample, (moment, after): &(Moment, i64)| sample.at(*moment, start + after);
    moments.iter().fold(sample, set)
}

/// A copy of a run with its two servers in its `run.json`.
fn with_servers(run: &Run) -> Run {
    let servers = [("server-1", "a:1"), ("server-2", "b:1")];
    run.clone().at_servers(&servers)
}

/// A copy of a run whose servers run at most so many requests at once.
fn with_slots(run: &Run, slots: u32) -> Run {
    let mut run = run.clone();
    run.given_slots = Some(slots);
    run
}

/// First tokens reach the hop so many ms before they reach the proxy.
fn held_back(first: i64) -> Run {
    changed(|row, n| {
        let body = |first: i64| {
            let mut timing = BodyTiming::default();
            timing.piece(at(n * 37 + first), 0);
            timing.piece(at(n * 37 + 490), 0);
            timing
        };
        row.set_body_timings(body(210), body(210 - first));
    })
}

/// A run of 100 requests, each of which is changed, by its number.
fn changed(change: impl Fn(&mut Row, i64)) -> Run {
    run_of(100, |sample, n, _| sample.with(|row| change(row, n)))
}

fn stalled(nanos: i64) -> Run {
    changed(|row, _| {
        row.client_stall = Some(nanos);
        row.client_stall_until_finish = Some(nanos);
    })
}

/// Requests of four sequences; those of one request were retracted.
fn retracted() -> Run {
    changed(|row, n| {
        row.req_id = Some(format!("r-{}", n / 4));
        (row.sequences, row.index) = (4, n as u32 % 4);
        row.num_retractions = Some(u64::from(n < 4));
    })
}

const AGAIN: &str = "1 request left a batch again";
const HELD: &str = "WorkerArrival 300, WorkerForwarded 301, ServerCreated 305, QueueStart 306, QueueEnd 310, PrefillEnd 319, \
    ServerFirstToken 320, FirstToken 330";

#[test]
fn stages_that_take_much_of_the_time_are_found() {
    let unequal = |sample, n: i64, start| {
        let wait = if n % 2 == 0 { 22 } else { 150 };
        set(sample, start, &[(Moment::QueueEnd, wait)])
    };
    let prefill = with("QueueEnd 21, PrefillEnd 349, ServerFirstToken 350, FirstToken 360");
    let back = "40.0 ms on its way back through the router on average (p50 40.0 ms, p99 40.0 ms): 19 % of the TTFT.";
    let between = "0.13 s on average at b:1 and 2.0 ms at a:1";
    for (run, kind, expected) in [
        (run_of(100, with(HELD)), "router_queue", "0.30 s of 0.50 s"),
        (run_of(100, prefill), "prefill_bound", "0.33 s of 0.50 s"),
        (held_back(40), "router_return", back),
        (
            stalled(ms(100)),
            "client_stall",
            "stood still for 0.10 s of 0.50 s on average (20 %) because",
        ),
        // All four sequences of one request were.
        (retracted(), "retractions", AGAIN),
        (run_of(100, unequal), "imbalance", between),
    ] {
        assert_says(&only(&run, kind).what, expected);
    }
    // The last is of 209 ms to the first token.
    let whole = run_of(100, |sample, _, _| sample);
    for run in [whole, stalled(ms(5)), held_back(10)] {
        assert!(found(&run).is_empty(), "{:?}", found(&run));
    }
}

#[test]
fn nothing_is_found_in_few_requests_nor_in_missing_or_impossible_values() {
    let blind = |sample, n, start| {
        let held = with(HELD)(sample, n, start);
        held.without(&[Moment::WorkerArrival, Moment::WorkerForwarded])
    };
    for run in [
        run_of(100, blind),
        run_of(100, |sample, _, _| sample.without(&ENGINE)),
        run_of(100, with("QueueStart 120")),
        run_of(5, |sample, _, _| sample),
        Run::default(),
        // They are not reported as failed.
        run_of(30, |sample, _, _| sample.without(&[Moment::Finish])),
    ] {
        assert!(found(&run).is_empty(), "{:?}", found(&run));
    }
}

/// Most of the time in the server queue.
fn queued(sample: Sample, start: i64) -> Sample {
    let moments = moments("QueueEnd 400, PrefillEnd 419, ServerFirstToken 420, FirstToken 430");
    set(sample, start, &moments)
}

#[test]
fn findings_are_of_the_window() {
    // a:1 has had a warm-up of 200 requests, which the window leaves out.
    let of = |sample: Sample, n: i64, start| {
        let wait = if n < 200 { 180 } else { 22 };
        let sample = set(sample, start, &[(Moment::QueueEnd, wait)]);
        let sample = sample.with(|record| record.num_retractions = Some(u64::from(n < 210)));
        sample.host(if n < 200 || n % 2 == 0 { "a:1" } else { "b:1" })
    };
    let mut run = run_of(400, of);
    assert!(kinds(&run).contains(&"imbalance"));
    let window = json!({ "from_s": 7.4, "to_s": 20.0, "left_out_first": 200, "left_out_last": 0 });
    run.summary = json!({ "window": window });
    let finding = only(&run, "retractions");
    assert_says(&finding.what, "10 requests left a batch again");
}

#[test]
fn servers_of_different_models_are_not_compared() {
    let two = |models: [&'static str; 2]| {
        run_of(200, move |sample, n, _| {
            let is_first = n % 4 == 0;
            let sample = sample.host(if is_first { "a:1" } else { "b:1" });
            sample.with(|record| record.model = Some(models[usize::from(is_first)].to_owned()))
        })
    };
    only(&two(["m", "m"]), "imbalance");
    only(&two(["", ""]), "imbalance");
    assert!(kinds(&two(["m", "other"])).is_empty());
    // A third server of another model does not hide that those of one model had unequal shares.
    let three = run_of(300, |sample, n, _| {
        let (host, model) = match n % 6 {
            0 | 3 => ("c:1", "other"),
            1 => ("a:1", "m"),
            _ => ("b:1", "m"),
        };
        let sample = sample.host(host);
        sample.with(|record| record.model = Some(model.to_owned()))
    });
    let found = only(&three, "imbalance");
    assert_says(
        &found.what,
        "b:1 had 150 requests, a:1 50; an equal share is 100.",
    );
}

#[test]
fn unequal_shares_are_found_unless_by_chance_or_fault() {
    let share = |of_a: i64| {
        run_of(200, move |sample, n, _| {
            sample.host(if n % 20 < of_a { "a:1" } else { "b:1" })
        })
    };
    let unequal = share(14);
    let expected = "a:1 had 140 requests, b:1 60; an equal share is 100.";
    assert_says(&only(&unequal, "imbalance").what, expected);
    let disturbed = Run {
        faults: vec![FaultRow::default()],
        ..unequal
    };
    // A failed request may name its prefill server, which has no share.
    let named = |record: &mut Row| record.prefill_host = Some("p:1".to_owned());
    let pair = run_of(200, |sample, n, _| match n % 20 {
        0 => sample.host("p:1"),
        _ => sample.host("d:1").with(named),
    });
    let one = share(20);
    for run in [&share(11), &disturbed, &pair, &one] {
        assert!(kinds(run).is_empty());
    }
    // A server that no request reached counts too.
    let idle = only(&with_servers(&one), "imbalance");
    assert_says(&idle.what, "b:1 0");
}

/// A request that got no token.
fn timed_out(sample: Sample, start: i64) -> Sample {
    let sample = cut(sample, Moment::ServerCreated, start + 900);
    sample.ended(Outcome::Timeout, "late")
}

#[test]
fn a_few_failures_are_a_limit() {
    let few = run_of(300, |sample, n, start| match n {
        7 | 207 => timed_out(sample, start),
        _ => sample,
    });
    assert_eq!(only(&few, "failures").level, Level::Limit);
}

#[test]
fn the_generators_own_limit_is_found() {
    let late = with(
        "Sent 100, Arrival 101, Forwarded 102, WorkerArrival 103, WorkerForwarded 104, \
         ServerCreated 105, QueueStart 106, QueueEnd 110",
    );
    let mut run = run_of(100, late);
    run.summary = json!({ "config": { "max_concurrency": 4 } });
    assert_eq!(only(&run, "slots").level, Level::Limit);
    // The verdict reports other lateness.
    run.summary = json!({ "verdict": { "grade": "VALID", "reasons": [] } });
    assert!(kinds(&run).is_empty());
}

#[test]
fn a_server_that_is_back_and_gets_no_requests_is_found() {
    let unused = |back: f64, used_from: i64| {
        let run = run_of(200, |sample, n, _| match n {
            n if n % 2 == 0 && !(40..used_from).contains(&n) => sample.host("a:1"),
            _ => sample.host("b:1"),
        });
        let mut run = with_servers(&run);
        let events = [(1.4, "down"), (back, "ready")];
        let faults = events.map(|(time, event)| FaultRow::of(time, "server-1", "kill", event));
        run.faults = faults.into();
        let mut found = found(&run).into_iter();
        found.find(|of| of.kind == "not_served").map(|of| of.what)
    };
    let expected = "server-1: it served nothing in the 4.37 s after the fault, in which 118";
    assert_says(&unused(3.0, 200).unwrap(), expected);
    assert_eq!(unused(3.0, 150), None, "it was used again");
    assert_eq!(unused(6.5, 200), None, "too soon to say");
}
