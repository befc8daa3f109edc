//! Streamed chat through the real routers, whose answers tell no times: the servers' own spans do. Every row's moments
//! are those of the server's log. What is late, lost or in disorder: `engine/join.rs`, `engine/assembly.rs`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use queuescope::request::outcome::Outcome;
use queuescope::sim::config::Telemetry;
use queuescope::sim::server::Sim;
use queuescope::sim::{Outcome as ServedOutcome, Served};

use crate::support::generator::{self, flags};
use crate::support::proxy::{Front, Row, assert_cells, known_workers, number};
use crate::support::router::{Router, Which, free_port};
use crate::support::stack::traffic;

/// Seconds: how well a moment is to be known.
const TOLERANCE: f64 = 1e-3;
const CHATS: usize = 400;
const LOAD: &str = "--backend sglang-oai-chat --request-rate 50 --random-input-len 64 --random-output-len 16 \
    --random-range-ratio 0.5 --num-prompts 400";

/// Streamed chats, which all must go well, through a router with two servers that send their spans to the front: the rows, and
/// what the servers' logs have, by request id.
async fn chats(which: Which) -> (Vec<Row>, BTreeMap<String, Served>) {
    let (spans, router) = (free_port(), free_port());
    let sims = [(); 2].map(|()| {
        generator::sim(|config| {
            // So few slots that requests queue in the server.
            config.profile.max_running_requests = 4;
            config.telemetry = Telemetry {
                enable_trace: true,
                otlp_traces_endpoint: spans.to_string(),
                ..Telemetry::default()
            };
        })
    });
    let addrs: Vec<SocketAddr> = sims.iter().map(Sim::addr).collect();
    let (hops, workers) = known_workers(&addrs);
    let front = Front::with(&[router], |config| {
        config.workers = workers;
        config.engine.wait_s = 20.0.try_into().unwrap();
        config.engine.traces.listen = Some(spans);
    })
    .await;
    let _router = Router::start_at(which, router, &hops, &[]).await;
    let run = traffic(front.addr(), "chat-", &flags(LOAD)).await;
    for record in &run.rows {
        assert_eq!(record.outcome(), Outcome::Ok, "{record:?}");
    }
    // All rows have gone out when nobody waits any more.
    front.counts("queuescope_engine_waiting", 0).await;
    let served = sims.iter().flat_map(Sim::served).filter_map(|served| {
        assert_eq!(served.outcome, ServedOutcome::Finished);
        Some((served.x_request_id.clone()?, served))
    });
    let served = served.collect();
    let mut rows = front.rows().await;
    rows.retain(|row| row["req_id"].starts_with("chat-"));
    (rows, served)
}

/// A row has what the server's log says: durations, and moments on our clock with an error that the row states.
fn assert_same(row: &Row, served: &Served) {
    assert_cells(row, [("timing_source", "trace")]);
    let moments = [
        served.received,
        served.queue_start,
        served.queue_end,
        served.first_token,
    ];
    let [received, start, end, first] = moments.map(|at| at.unwrap());
    let error = TOLERANCE + number(row, "clock_offset_error");
    for (column, truth, error) in [
        ("tokenize_time", start.since(received), TOLERANCE),
        ("pure_queue_time", end.since(start), TOLERANCE),
        ("queue_time_in_server", first.since(received), TOLERANCE),
        ("server_created_time", received.seconds(), error),
        ("queue_time_start", start.seconds(), error),
        ("queue_time_end", end.seconds(), error),
        ("server_first_token_time", first.seconds(), error),
    ] {
        let told = number(row, column);
        assert!((told - truth).abs() < error, "{column} {told} {truth}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_streamed_chat_has_the_servers_moments() {
    for which in Which::ALL {
        let (rows, served) = chats(which).await;
        assert_eq!(rows.len(), CHATS, "{which:?}");
        for row in &rows {
            assert_same(row, &served[&row["req_id"]]);
        }
        let mut waited = rows.iter().map(|row| number(row, "pure_queue_time"));
        assert!(waited.any(|waited| waited > 0.0), "nothing waited");
    }
}
