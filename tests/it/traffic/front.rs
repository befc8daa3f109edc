//! Through a front of ours, which knows what it sends to.

use super::*;
use crate::support::proxy::Front;
use queuescope::request::UpstreamKind;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_front_says_when_it_sent_and_to_whom_as_far_as_it_knows() {
    let sim = generator::sim(|_| {});
    for kind in [UpstreamKind::Server, UpstreamKind::Router] {
        let front = Front::with(&[sim.addr()], |config| config.upstream_kind = kind).await;
        for more in ["", "--upstream-kind server"] {
            let line = format!("--num-prompts 3 --random-output-len 4 {more}");
            let run = sent(front.addr(), &line).await;
            assert_eq!(outcomes(&run), [Outcome::Ok; 3]);
            for row in &run.rows {
                let forwarded = at(row, Moment::Forwarded);
                assert!(at(row, Moment::Arrival) >= at(row, Moment::Sent));
                assert_eq!(row.inconsistency, None);
                // Of a router it leaves open when that sent, and to whom.
                let is_known = kind == UpstreamKind::Server;
                let router_send = row.timeline.raw(Moment::RouterSend);
                assert_eq!(router_send, is_known.then_some(forwarded));
                assert_eq!(row.server_latency.is_some_and(|took| took > 0), is_known);
                assert_eq!(row.host, is_known.then(|| sim.addr().to_string()));
            }
        }
    }
}
