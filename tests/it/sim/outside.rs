//! The simulator with its failures, and with a collector that does not keep up.

use queuescope::clock::Clock;
use queuescope::sim::Outcome;
use queuescope::sim::config::{Config, Telemetry};
use queuescope::sim::failures::Failures;
use queuescope::sim::server::Sim;

use super::{fast, until_served};
use crate::support::collector::{Collector, Mood};
use crate::support::http::{Connection, exchange};

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

    let sim = failing(Failures {
        hang: 1.0,
        ..Failures::default()
    });
    let mut stuck = Connection::open(sim.addr()).await;
    stuck.send("POST", "/generate", &[], BODY).await;
    assert_eq!(stuck.head().await.status(), 200);
    assert!(sim.served().is_empty());
    drop(stuck);
    until_served(&sim, 1).await;
    assert_eq!(sim.served()[0].outcome, Outcome::Aborted);
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
async fn a_collector_that_hangs_holds_nobody_up() {
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
    collector.set(Mood::Holds);
    for _ in 0..20 {
        let whole = exchange(sim.addr(), "POST", "/generate", BODY).await;
        assert!(whole.text().ends_with("[DONE]\n\n"));
    }
}
