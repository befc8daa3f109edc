//! Findings of pairs of prefill and decode servers.

use super::*;
use crate::request::PrefillTimes;

/// Requests of a pair: when each had memory at decode, its KV cache, and a slot of decode's batch, ms after its send; how long prefill
/// had it queued and at work meanwhile. It then decodes until 500 ms.
fn paired(reserved: i64, (queue, forward): (i64, i64), arrived: i64, entered: i64) -> Run {
    run_of(100, move |sample, _, start| {
        let sample = sample.without(&[Moment::QueueEnd, Moment::PrefillEnd]);
        let moments = [
            (Moment::KvReserved, reserved),
            (Moment::KvArrived, arrived),
            (Moment::DecodeStart, entered),
            (Moment::ServerFirstToken, entered + 1),
            (Moment::FirstToken, entered + 2),
        ];
        let pair = PrefillTimes {
            queue: Some(ms(queue)),
            forward: Some(ms(forward)),
            sending: None,
        };
        // The start of decode's queue comes from a span, the rest from its response.
        let sample = sample.with(move |record| record.timeline.set_pair(pair));
        set(sample, start, &moments).at(Moment::QueueStart, start + 20)
    })
}

/// Runs: when each request had memory, was queued and at work in prefill, had arrived and entered; the cause, the title, and a part of the
/// text. In the fifth the waits are a third of the time together only; in the last two, requests that have memory wait as well.
const NARROW: &str = "\
230 1 20 255 256 | decode_memory | Decode is full | (42 %) until decode had memory for it; those that had it were decoding for
30 300 20 360 361 | prefill_queue | Prefill is too slow | 0.30 s of 0.50 s on average (60 %) in prefill's queue
30 1 20 350 351 | kv_transfer | The link is too slow | 0.30 s of 0.50 s on average (60 %) for its KV cache
30 1 20 60 350 | decode_slots | Decode's batch is full | (58 %) for a slot of decode's batch
130 1 20 155 250 | decode_memory | Decode is full | 0.11 s of 0.50 s on average (22 %) until decode had memory
230 1 20 400 401 | decode_memory | The link is too slow | those that had it were in the transfer of their KV cache
230 1 20 255 400 | decode_memory | Decode's batch is full | those that had it were waiting for a slot";

#[test]
fn the_bottleneck_of_a_pair_is_named() {
    for line in NARROW.lines() {
        let [times, cause, title, what] = line.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let times: Vec<i64> = times.split(' ').map(|ms| ms.parse().unwrap()).collect();
        let run = paired(times[0], (times[1], times[2]), times[3], times[4]);
        let finding = only(&run, "pair");
        assert!(finding.title.starts_with(title), "{finding:?}");
        assert_says(&finding.what, what);
        assert_causes(&run, cause);
    }
}

/// Asserts what such a run's requests waited for most, and that all of their waiting has a cause.
fn assert_causes(run: &Run, cause: &str) {
    let why = WaitReport::of(run);
    assert_eq!(why.waited(), 0, "no server's queue is blamed");
    let json = why.to_json(&run.table);
    let main = why.causes.main().unwrap();
    assert_eq!(main.name(), cause, "{json}");
    let waits = [
        ColumnId::decode_bootstrap_time,
        ColumnId::prefill_queue_time,
        ColumnId::kv_transfer_time,
        ColumnId::decode_queue_time,
    ];
    let waited = waits.map(|column| run.table.numbers(column).iter().sum::<f64>());
    let seconds = |key: &str| json[key].as_f64().unwrap();
    // The waiting caused by requests, and that without a cause, is all of it.
    let laid = seconds("held_up_others_s") + seconds("by_nobody_seen_s");
    for sum in [seconds("at_pairs_s"), laid] {
        assert!((sum - waited.iter().sum::<f64>()).abs() < 1e-6, "{json}");
    }
    let over_time = RunReport::of(run).summary.all.over_time.unwrap();
    assert_eq!(over_time.missing[3], 0, "all were in a queue, then ran");
    let first = why.of_row(&run.table, 0).unwrap();
    assert_says(first["words"].as_str().unwrap(), main.description());
    // No request holds the link: what passes there is not split by request.
    let mut all = (0..100).filter_map(|row| why.of_row(&run.table, row));
    let is_held = all.any(|of| of["held_up_by"][0].is_object());
    assert_eq!(is_held, main != Cause::Transfer, "{first}");
}

#[test]
fn a_request_of_a_pair_is_held_up_by_the_holder_of_memory() {
    // Decode has memory for one request: the first has it from 1 to 9 s; the second, which arrived at 2 s, from then on.
    let requests = [("a", 0.0, 1.0, 9.0), ("b", 2.0, 9.0, 12.0)];
    let run = Run::of_lines(requests.map(|(id, queued, reserved, ended)| {
        format!(
            "req_id={id}, host=d:1, prefill_host=p:1, disaggregated=True, actual_prompt_tokens=96000, queue_time_start={queued}, \
            decode_bootstrap_time={}, kv_reserved_time={reserved}, prefill_queue_time=0, prefill_time=0.5, kv_transfer_time=0, \
            kv_arrived_time={}, decode_queue_time=0.25, decode_start_time={}, pure_queue_time={}, finish_time={ended}",
            reserved - queued,
            reserved + 0.5,
            reserved + 0.75,
            reserved - queued + 0.25
        )
    }));
    let why = WaitReport::of(&run);
    let words = |row| why.of_row(&run.table, row).unwrap()["words"].take();
    let first = "waited 1.25 s: for 1.00 s the decode server had no memory for it";
    let second = "waited 7.25 s: for 7.00 s the decode server had no memory for it; longest by a (96k-token prompt)";
    assert_eq!([words(0), words(1)], [first, second]);
    let servers: Vec<&str> = why.servers.iter().map(|server| &*server.name).collect();
    assert_eq!(servers, ["d:1", "p:1"]);
}
