//! The simulator with a collector that does not keep up.

use queuescope::clock::Clock;
use queuescope::sim::config::{Config, Telemetry};
use queuescope::sim::server::Sim;

use super::fast;
use crate::support::collector::{Collector, Mood};
use crate::support::http::exchange;

const BODY: &[u8] = br#"{"text":"one two","sampling_params":{"max_new_tokens":8},"stream":true}"#;

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
