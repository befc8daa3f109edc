//! When a request was over and where it was by then, whoever ended it.

use queuescope::clock::Clock;
use queuescope::config::proxy::Config;
use queuescope::proxy::shared::UpstreamKind;

use super::attempts::{chain, unchanged};
use crate::support::proxy::{Front, Row, assert_outcome};
use crate::support::upstream::{Step, Upstream, begun, done, refusing};
use crate::support::wire::{Client, post, until};

const STREAM: &[u8] = br#"{"text":"a","stream":true}"#;

fn then(mut steps: Vec<Step>, last: Step) -> Vec<Step> {
    steps.push(last);
    steps
}

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

/// Plays `steps` to one client, which reads what comes.
async fn answered(steps: Vec<Step>, change: impl FnOnce(&mut Config)) -> Row {
    let upstream = Upstream::start(move |_, _| steps.clone()).await;
    let front = Front::with(&[upstream.addr], change).await;
    let mut client = front.client().await;
    client.ask("/generate", "", STREAM).await;
    front.only_row().await
}

/// Plays `steps` to one client, which leaves once they are played.
async fn left(steps: Vec<Step>, change: impl FnOnce(&mut Config)) -> Row {
    let reads = steps.len() > 1;
    let upstream = Upstream::start(move |_, _| steps.clone()).await;
    let front = Front::with(&[upstream.addr], change).await;
    let mut client = front.client().await;
    client.post("/generate", "", STREAM).await;
    until("the request", || upstream.seen().len() == 1).await;
    if reads {
        client.read_until(|reader| !reader.body.is_empty()).await;
    }
    drop(client);
    front.only_row().await
}

fn server(config: &mut Config) {
    config.upstream_kind = UpstreamKind::Server;
}

fn impatient(config: &mut Config) {
    config.upstream_read_timeout_s = 1.0.try_into().unwrap();
}

fn as_it_is(_: &mut Config) {}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_is_told_where_it_waited() {
    let row = left(vec![Step::Silence], as_it_is).await;
    assert_ended(&row, "client_abort", "router+server");
    assert_eq!(
        (row["finish_time"].as_str(), row["total_latency"].as_str()),
        ("", "")
    );
    let row = left(vec![Step::Silence], server).await;
    assert_ended(&row, "client_abort", "server");
    let row = left(then(begun(), Step::Silence), as_it_is).await;
    assert_ended(&row, "client_abort", "decode");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_during_its_upload_was_on_the_way() {
    let upstream = Upstream::start(|_, _| vec![Step::Silence]).await;
    let front = Front::start(upstream.addr).await;
    let mut client = front.client().await;
    let all = post("/generate", "", &[b' '; 300_000]);
    client.send(&all[..200_000]).await;
    until("a part of the body", || upstream.received() > 100_000).await;
    drop(client);
    assert_ended(&front.only_row().await, "client_abort", "to proxy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_upstream_does_the_end_is_told() {
    let row = answered(vec![Step::Reset], server).await;
    assert_ended(&row, "upstream_died", "server");
    let row = answered(then(begun(), Step::Reset), server).await;
    assert_ended(&row, "upstream_died", "decode");
    let row = answered(vec![Step::Silence], impatient).await;
    assert_ended(&row, "timeout", "router+server");
    let row = answered(then(begun(), Step::Silence), impatient).await;
    assert_ended(&row, "timeout", "decode");
    let full = b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}".to_vec();
    let row = answered(vec![Step::Send(full)], server).await;
    assert_ended(&row, "rejected", "server");
    assert_eq!(row["end_time"], row["finish_time"]);

    let front = Front::start(refusing().await).await;
    let mut client = front.client().await;
    assert_eq!(client.ask("/generate", "", STREAM).await.status(), 502);
    assert_ended(&front.only_row().await, "proxy_error", "proxy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_went_well_is_done_at_its_last_byte() {
    let row = answered([begun(), done()].concat(), as_it_is).await;
    assert_ended(&row, "ok", "done");
    assert_eq!(row["end_time"], row["finish_time"]);
    assert_eq!(row["elapsed"], row["total_latency"]);
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
