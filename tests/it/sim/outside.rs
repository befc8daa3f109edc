//! The simulator with its failures, and with a collector that does not keep up.

use queuescope::clock::Clock;
use queuescope::sim::Outcome;
use queuescope::sim::config::{Config, Telemetry};
use queuescope::sim::failures::Failures;
use queuescope::sim::server::Sim;

use super::{fast, until_served};
use crate::support::collector::{Collector, Mood};
use crate::support::http::{Connection, exchange};
use crate::support::wire::until;

const BODY: &[u8] = br#"{"text":"one two","sampling_params":{"max_new_tokens":8},"stream":true}"#;

fn failing(failures: Failures) -> Sim {
    let config = Config { failures, ..fast() };
    Sim::start(config, Clock::system()).unwrap()
}

#[tokio::test]
async fn a_server_that_dies_cuts_its_answer_and_one_that_hangs_stops_it() {
    let sim = failing(Failures {
        die: 1.0,
        ..Failures::default()
    });
    let mut cut = Connection::open(sim.addr()).await;
    cut.send("POST", "/generate", &[], BODY).await;
    let text = String::from_utf8(cut.rest().await).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 200") && !text.contains("[DONE]"),
        "{text}"
    );
    assert!(
        text.ends_with("\r\n") && !text.ends_with("0\r\n\r\n"),
        "{text}"
    );
    until_served(&sim, 1).await;

    let hangs = br#"{"hang":1.0}"#;
    let set = exchange(sim.addr(), "POST", "/sim/failures", hangs).await;
    assert_eq!(set.status(), 200, "{}", set.text());
    let mut stuck = Connection::open(sim.addr()).await;
    stuck.send("POST", "/generate", &[], BODY).await;
    assert_eq!(stuck.head().await.status(), 200);
    until("all tokens are made", || sim.served().len() == 1).await;
    drop(stuck);
    until_served(&sim, 2).await;
    assert_eq!(sim.served()[1].outcome, Outcome::Aborted);

    let wrong = exchange(sim.addr(), "POST", "/sim/failures", br#"{"die":2}"#).await;
    assert_eq!(wrong.status(), 400);
    let none = exchange(sim.addr(), "POST", "/sim/failures", b"{}").await;
    assert_eq!(none.status(), 200);
    let whole = exchange(sim.addr(), "POST", "/generate", BODY).await;
    assert!(whole.text().ends_with("[DONE]\n\n"));
}

#[tokio::test]
async fn a_server_refuses_or_is_slow_as_it_was_told() {
    let sim = failing(Failures {
        unavailable: 1.0,
        ..Failures::default()
    });
    let refused = exchange(sim.addr(), "POST", "/generate", BODY).await;
    assert_eq!(refused.status(), 503);
    let sim = failing(Failures {
        slow: 1.0,
        slow_ms: 50,
        ..Failures::default()
    });
    let slow = exchange(sim.addr(), "POST", "/generate", BODY).await;
    assert_eq!(slow.status(), 200);
    let served = sim.served();
    let waited = served[0]
        .queue_start
        .unwrap()
        .since(served[0].received.unwrap());
    assert!(waited >= 0.05, "{waited}");
}

#[tokio::test]
async fn a_level_leaves_out_what_is_finer_and_a_collector_that_hangs_holds_nobody_up() {
    let collector = Collector::start().await;
    let telemetry = Telemetry {
        enable_trace: true,
        otlp_traces_endpoint: collector.grpc.to_string(),
        ..Telemetry::default()
    };
    let config = Config {
        telemetry,
        ..fast()
    };
    let sim = Sim::start(config, Clock::system()).unwrap();
    let refused = exchange(sim.addr(), "GET", "/set_trace_level?level=4", b"").await;
    assert_eq!(refused.status(), 422);
    for path in ["/set_trace_level?level=1", "/sim/failures"] {
        let refused = exchange(sim.addr(), "PUT", path, b"{}").await;
        assert_eq!(refused.status(), 405, "{path}");
    }
    // Which spans a level has is held by `golden`; here, that it is set while the server runs.
    let told = async |level: u8, count: usize| {
        let path = format!("/set_trace_level?level={level}");
        let set = exchange(sim.addr(), "GET", &path, b"").await;
        assert_eq!(set.status(), 200);
        let before = collector.spans().len();
        exchange(sim.addr(), "POST", "/generate", BODY).await;
        until("the spans", || collector.spans().len() >= before + count).await;
        collector.spans().len() - before
    };
    assert_eq!(
        (told(1, 7).await, told(2, 9).await, told(0, 0).await),
        (7, 9, 0)
    );
    collector.set(Mood::Holds);
    assert_eq!(told(3, 0).await, 0);
    for _ in 0..20 {
        let whole = exchange(sim.addr(), "POST", "/generate", BODY).await;
        assert!(whole.text().ends_with("[DONE]\n\n"));
    }
}
