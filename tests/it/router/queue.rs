//! Whether a request waits in the router or in the server: the same load, held back once by the router and once by the
//! server.

use queuescope::request::{Outcome, Period};
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

/// How long each waited in the router, and in the server, seconds.
fn waits(run: &Run) -> [Vec<f64>; 2] {
    [Period::QUEUE_IN_ROUTER, Period::PURE_QUEUE].map(|queue| {
        let nanos = run.rows.iter().map(|row| row.timeline.nanos(queue));
        nanos.map(|nanos| nanos.unwrap() as f64 / 1e9).collect()
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_decides_whether_router_or_server_is_waited_in() {
    let limited = run(LIMITED).await;
    let unlimited = run(UNLIMITED).await;
    for record in limited.rows.iter().chain(&unlimited.rows) {
        assert_eq!(record.outcome(), Outcome::Ok, "{:?}", record.error);
        assert_eq!(record.inconsistency, None, "{}", record.request_id());
    }
    let [held, queued] = waits(&limited);
    // It grows as the queue does: each quarter of the arrivals waits longer than the one before.
    let quarters: Vec<f64> = held.chunks(REQUESTS / 4).map(mean).collect();
    let has_grown = quarters.is_sorted() && quarters[3] > 3.0 * quarters[0];
    assert!(has_grown, "{quarters:?}");
    let in_server = mean(&queued);
    assert!(in_server < mean(&held) / 20.0, "it had room: {in_server}");

    let [held, queued] = waits(&unlimited);
    let held = Summary::of(held).unwrap().p50;
    assert!(held < mean(&queued) / 20.0, "the router held: {held}");
}
