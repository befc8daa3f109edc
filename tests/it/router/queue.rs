//! Whether a request waits in the router or in the server: the same load, held back once by the router and once by the
//! server.

use queuescope::clock::Stamp;
use queuescope::request::{Outcome, Period, Row};
use queuescope::stats::Summary;
use queuescope::traffic::Run;

use super::{Stack, traffic};
use crate::support::generator::sim;
use crate::support::router::Which;

/// Streams that run at once, wherever the limit is.
const SLOTS: usize = 4;
const REQUESTS: usize = 200;
/// About a tenth of a second each: 40 a second get through, 60 come.
const FLAGS: &str = "--backend sglang --request-rate 60 --num-prompts 200 --random-input-len 16 --random-output-len 16";
const LIMITED: &str = "--max-concurrent-requests 4 --queue-size 1000 --queue-timeout-secs 60";
const UNLIMITED: &str = "--max-concurrent-requests 100000";

async fn run(limit: &str) -> Run {
    let sim = sim(|config| {
        config.profile.max_running_requests = SLOTS;
        config.profile.decode_step_ms = 6.0;
    });
    let stack = Stack::start(Which::Smg113, vec![(sim, 0)], None, "", limit).await;
    let run = traffic(stack.front.front, "q", FLAGS).await;
    assert_eq!(run.rows.len(), REQUESTS);
    run
}

fn seconds(records: &[Row], of: impl Fn(&Row) -> Option<i64>) -> Vec<f64> {
    let nanos = records.iter().map(|record| of(record).unwrap());
    nanos.map(|nanos| nanos as f64 / 1e9).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// What a request waits when it finds so many before it and one leaves every so often: Little's law for a queue in
/// order of arrival. Queue and rate are counted from the rows' own stamps.
fn by_littles_law(records: &[Row], queue: Period) -> f64 {
    let time = |record: &Row, moment| record.timeline.time(moment).unwrap();
    let span = |record| (time(record, queue.from), time(record, queue.to));
    let spans: Vec<_> = records.iter().map(span).collect();
    let found = spans.iter().map(|(at, _)| {
        let waits = |(from, to): &&(Stamp, Stamp)| from < at && to > at;
        spans.iter().filter(waits).count() as f64
    });
    let found: Vec<f64> = found.collect();
    let mut sends: Vec<Stamp> = spans.iter().map(|(_, send)| *send).collect();
    sends.sort();
    let took = sends[sends.len() - 1].nanos_since(sends[0]) as f64 / 1e9;
    let rate = (sends.len() - 1) as f64 / took;
    mean(&found) / rate
}

/// They waited as long as Little's law says; how long each did, in seconds.
fn lawful(run: &Run, queue: Period) -> Vec<f64> {
    let waits = seconds(&run.rows, |row| row.timeline.nanos(queue));
    let (seen, expected) = (mean(&waits), by_littles_law(&run.rows, queue));
    let is_near = (seen / expected - 1.0).abs() < 0.15;
    assert!(is_near, "waited {seen} s, by Little's law {expected} s");
    waits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_decides_whether_router_or_server_is_waited_in() {
    let limited = run(LIMITED).await;
    let unlimited = run(UNLIMITED).await;
    for record in limited.rows.iter().chain(&unlimited.rows) {
        assert_eq!(record.outcome(), Outcome::Ok, "{:?}", record.error);
        assert_eq!(record.inconsistency, None, "{}", record.request_id());
    }
    let waits = lawful(&limited, Period::QUEUE_IN_ROUTER);
    let server = seconds(&limited.rows, |row| row.pure_queue_time);
    // It grows as the queue does: each quarter of the arrivals waits longer than the one before.
    let quarters: Vec<f64> = waits.chunks(REQUESTS / 4).map(mean).collect();
    let has_grown = quarters.is_sorted() && quarters[3] > 3.0 * quarters[0];
    assert!(has_grown, "{quarters:?}");
    let in_server = mean(&server);
    assert!(in_server < mean(&waits) / 20.0, "it had room: {in_server}");

    let in_router = |row: &Row| row.timeline.nanos(Period::QUEUE_IN_ROUTER);
    let held = Summary::of(seconds(&unlimited.rows, in_router))
        .unwrap()
        .p50;
    let queued = lawful(&unlimited, Period::PURE_QUEUE);
    assert!(held < mean(&queued) / 20.0, "the router held: {held}");
}
