//! When a request was over and where it was by then, whoever ended it.

use queuescope::clock::Clock;
use queuescope::proxy::shared::UpstreamKind;

use super::attempts::{chain, unchanged};
use crate::support::proxy::{Front, Row, assert_outcome};
use crate::support::upstream::{Step, Upstream, begun, done, refusing};
use crate::support::wire::{Client, until};

const STREAM: &[u8] = br#"{"text":"a","stream":true}"#;

#[track_caller]
fn assert_ended(row: &Row, outcome: &str, ended_in: &str) {
    assert_outcome(row, outcome, "");
    assert_eq!(row["ended_in"], ended_in, "{row:?}");
    let start = match row["seen_by"].as_str() {
        "hop" => "router_send_time",
        _ => "arrival_time",
    };
    let seconds = |column: &str| row[column].parse::<f64>().unwrap();
    let waited = seconds("end_time") - seconds(start);
    assert!((waited - seconds("elapsed")).abs() < 2e-6, "{row:?}");
    assert!(seconds("elapsed") >= 0.0, "{row:?}");
    if !row["finish_time"].is_empty() {
        assert!(row["end_time"] >= row["finish_time"], "{row:?}");
    }
}

/// What a client does once the steps are played.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Reads,
    Leaves,
    Resets,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_ends_it_is_told_where_it_was() {
    use Step::{Reset, Silence};
    use Then::{Leaves, Reads, Resets};
    use UpstreamKind::{Router, Server};
    let full = b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}".to_vec();
    let within = |last: Step| [begun(), vec![last]].concat();
    for (kind, steps, end, outcome, ended_in) in [
        (
            Router,
            vec![Silence],
            Leaves,
            "client_abort",
            "router+server",
        ),
        (Server, vec![Silence], Resets, "client_abort", "server"),
        (Router, within(Silence), Leaves, "client_abort", "decode"),
        (Router, within(Silence), Resets, "client_abort", "decode"),
        (Server, vec![Reset], Reads, "upstream_died", "server"),
        (Server, within(Reset), Reads, "upstream_died", "decode"),
        (Router, vec![Silence], Reads, "timeout", "router+server"),
        (Router, within(Silence), Reads, "timeout", "decode"),
        (Server, vec![Step::Send(full)], Reads, "rejected", "server"),
        (Router, [begun(), done()].concat(), Reads, "ok", "done"),
    ] {
        let streams = steps.len() > 1;
        let upstream = Upstream::start(move |_, _| steps.clone()).await;
        let front = Front::with(&[upstream.addr], |config| {
            config.upstream_kind = kind;
            if end == Then::Reads {
                config.upstream_read_timeout_s = 1.0.try_into().unwrap();
            }
        })
        .await;
        let mut client = front.client().await;
        client.post("/generate", "", STREAM).await;
        if end == Then::Reads {
            client.response().await;
        } else {
            until("the request", || upstream.seen().len() == 1).await;
            if streams {
                client.read_until(|reader| !reader.body.is_empty()).await;
            }
            match end {
                Then::Resets => client.reset(),
                _ => drop(client),
            }
            until("the upstream let go", || upstream.gone() == 1).await;
        }
        let row = front.only_row().await;
        assert_ended(&row, outcome, ended_in);
        assert_eq!(row["attempts"], "1");
        if kind == Server {
            assert_eq!(row["host"], upstream.addr.to_string(), "answered or not");
        }
        match outcome {
            "ok" | "rejected" => assert_eq!(row["end_time"], row["finish_time"]),
            "client_abort" if !streams => {
                let cells = ["status", "finish_time", "total_latency"];
                assert_eq!(cells.map(|cell| &*row[cell]), ["", "", ""]);
            }
            "client_abort" => assert_eq!(row["status"], "200"),
            _ => {}
        }
        if outcome == "ok" {
            assert_eq!(row["elapsed"], row["total_latency"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_hop_saw_tells_router_and_server_apart() {
    let silent = Upstream::start(|_, _| vec![Step::Silence]).await;
    let (front, _router) = chain(&[&silent], unchanged).await;
    let mut client = front.client().await;
    client.post("/generate", "", STREAM).await;
    until("the request", || silent.seen().len() == 1).await;
    drop(client);
    assert_ended(&front.only_row().await, "client_abort", "server");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hops_own_row_counts_from_its_own_reading() {
    let silent = Upstream::start(|_, _| vec![Step::Silence]).await;
    let hop = Front::hop(silent.addr).await;
    let mut client = Client::connect(hop.hop_addr()).await;
    client.post("/generate", "", STREAM).await;
    until("the request", || silent.seen().len() == 1).await;
    drop(client);
    assert_ended(&hop.only_row().await, "client_abort", "server");

    let hop = Front::hop(refusing().await).await;
    let mut client = Client::connect(hop.hop_addr()).await;
    client.ask("/generate", "", STREAM).await;
    assert_ended(&hop.only_row().await, "proxy_error", "proxy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_we_refuse_is_over_with_our_answer() {
    let silent = Upstream::start(|_, _| vec![Step::Silence]).await;
    let front = Front::with(&[silent.addr], |config| {
        config.request_body_max_bytes = 10.try_into().unwrap()
    })
    .await;
    let mut client = front.client().await;
    // Its body never comes: for a while it is waited for, so that the answer is not lost.
    client
        .send("POST /generate HTTP/1.1\r\nhost: h\r\ncontent-length: 11\r\n\r\n")
        .await;
    client.read_until(|reader| reader.is_whole(0)).await;
    let read = Clock::system().now().nanos();
    let row = front.only_row().await;
    assert_ended(&row, "client_error", "proxy");
    let ended: i64 = row["end_time"].replace('.', "").parse().unwrap();
    assert!(ended <= read, "{row:?}");
}
