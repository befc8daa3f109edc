//! Through a front of ours, which knows what it sends to.

use super::*;
use crate::support::proxy::Front;
use queuescope::proxy::shared::UpstreamKind;
use queuescope::sim::server::Sim;

/// A simulated server, and a run of three requests through a front that takes it for `kind`.
async fn run(kind: UpstreamKind, more: &[&str]) -> (Sim, Run) {
    let sim = generator::sim(|_| {});
    let front = Front::with(&[sim.addr()], |config| config.upstream_kind = kind).await;
    let line = ["--num-prompts", "3", "--random-output-len", "4"];
    let more = [&line[..], more].concat();
    let run = drive(plan(front.addr(), &more)).await.unwrap();
    assert_eq!(outcomes(&run), [Outcome::Ok; 3]);
    (sim, run)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_front_before_the_server_says_when_it_sent_and_to_whom() {
    for more in [&[][..], &["--upstream-kind", "server"]] {
        let (sim, run) = run(UpstreamKind::Server, more).await;
        for row in &run.records {
            assert_eq!(row.host, Some(sim.addr().to_string()));
            assert!(at(row, Moment::Arrival) >= at(row, Moment::Sent));
            assert_eq!(at(row, Moment::RouterSend), at(row, Moment::Forwarded));
            assert!(row.server_latency.unwrap() > 0);
            assert_eq!(row.inconsistency, None);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_front_before_a_router_leaves_open_when_that_sent() {
    for more in [&[][..], &["--upstream-kind", "server"]] {
        let (_sim, run) = run(UpstreamKind::Router, more).await;
        for row in &run.records {
            assert!(row.timeline.raw(Moment::Forwarded).is_some());
            assert_eq!(row.timeline.raw(Moment::RouterSend), None);
            assert_eq!(row.server_latency, None);
            assert_eq!(row.host, None, "the router knows, we do not");
        }
    }
}
