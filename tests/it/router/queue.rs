//! Whether a request waits in the router or in the server: the same load, held back once by the router and once by the
//! server.

use queuescope::request::{Outcome, Period};
use queuescope::traffic::Run;

use super::{Stack, traffic};
use crate::support::generator::sim;
use crate::support::router::Which;

/// Streams that run at once, wherever the limit is.
const SLOTS: usize = 4;
const REQUESTS: usize = 40;
/// All at once.
const FLAGS: &str = "--backend sglang --request-rate inf --num-prompts 40 --random-input-len 16 --random-output-len 16";
const LIMITED: &str = "--max-concurrent-requests 4 --queue-size 1000 --queue-timeout-secs 60";
const UNLIMITED: &str = "--max-concurrent-requests 100000";

async fn run(limit: &str) -> Run {
    let sim = sim(|config| {
        config.profile.max_running_requests = SLOTS;
        config.profile.decode_step_ms = 30.0;
    });
    let stack = Stack::start(Which::Smg113, vec![(sim, 0)], None, "", limit).await;
    let run = traffic(stack.front.front, "q", FLAGS).await;
    assert_eq!(run.rows.len(), REQUESTS);
    run
}

/// How long they waited in the router, and in the server: the means, seconds.
fn waits(run: &Run) -> [f64; 2] {
    [Period::QUEUE_IN_ROUTER, Period::PURE_QUEUE].map(|queue| {
        let nanos = run.rows.iter().map(|row| row.timeline.nanos(queue));
        let seconds = nanos.map(|nanos| nanos.unwrap() as f64 / 1e9);
        seconds.sum::<f64>() / REQUESTS as f64
    })
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
    assert!(queued < held / 3.0, "it had room: {queued} of {held}");
    let [held, queued] = waits(&unlimited);
    assert!(held < queued / 3.0, "the router held: {held} of {queued}");
}
