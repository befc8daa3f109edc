//! A router's attempts at the worker hops: kept, joined to their request, and never doubled.

use std::net::SocketAddr;

use queuescope::request::stamps::Stamps;

use crate::support::proxy::{Front, assert_cells, assert_outcome, known_workers, number, workers};
use crate::support::upstream::{Step, Upstream};
use crate::support::wire::{Client, until};

/// A front and hops in one process, and a router that retries between them.
pub async fn chain(
    servers: &[&Upstream],
    edit: impl Fn(&str) -> String + Send + Sync + 'static,
) -> (Front, Upstream) {
    let servers: Vec<SocketAddr> = servers.iter().map(|server| server.addr).collect();
    let (hops, workers) = known_workers(&servers);
    let router = Upstream::retrying(hops, edit).await;
    let front = Front::with(&[router.addr], |config| config.workers = workers).await;
    (front, router)
}

type Edit = fn(&str) -> String;

async fn refusing_with_503() -> Upstream {
    Upstream::always(b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}".to_vec()).await
}

pub fn unchanged(head: &str) -> String {
    head.to_owned()
}

/// What a router with tracing of its own does: our span is lost.
fn with_its_own_trace(head: &str) -> String {
    let line = head
        .lines()
        .find(|line| line.to_ascii_lowercase().starts_with("traceparent"));
    let own = format!("traceparent: 00-{:032x}-{:016x}-01", 7, 9);
    head.replace(line.unwrap(), &own)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retried_request_is_one_row_of_the_attempt_that_answered() {
    for (edit, by) in [
        (unchanged as Edit, "span"),
        (with_its_own_trace, "request_id"),
    ] {
        let servers = [
            refusing_with_503().await,
            Upstream::playing(vec![Step::Reset]).await,
            Upstream::ok().await,
        ];
        let (front, _router) = chain(&servers.each_ref(), edit).await;
        let response = front
            .ask(
                "/generate",
                "x-request-id: mine\r\nx-queuescope-stamps: 1\r\n",
                b"{}",
            )
            .await;
        assert_eq!(response.status(), 200);
        let stamps = response.header("x-queuescope-stamps").unwrap();
        let stamps = Stamps::parse(&stamps).unwrap();
        assert_eq!((stamps.attempts, stamps.failed.len()), (Some(3), 2));
        let joins = format!("queuescope_joins_total{{by=\"{by}\"}} ");
        assert_eq!(front.counter(&joins), 3);
        let row = front.only_row().await;
        assert_outcome(&row, "ok", "");
        assert_cells(&row, [("attempts", "3"), ("worker", "w2")]);
        assert_eq!(row["host"], servers[2].addr.to_string());
        let failed: Vec<&str> = row["failed_attempts"].split("; ").collect();
        let [first, second] = failed[..] else {
            panic!("{row:?}")
        };
        assert!(
            first.starts_with(&format!("{} rejected 503 after ", servers[0].addr)),
            "{first}"
        );
        assert!(
            second.starts_with(&format!("{} upstream_died 502 after ", servers[1].addr)),
            "{second}"
        );
        // The failed ones came before the send that counts.
        let waited = |text: &str| {
            let (_, seconds) = text.split_once(" after ").unwrap();
            seconds.trim_end_matches(" s").parse::<f64>().unwrap()
        };
        let in_router = number(&row, "queue_time_in_router");
        assert!(in_router >= waited(first) + waited(second), "{row:?}");
        assert_eq!(row["inconsistency"], "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_without_a_response_shows_where_the_request_was() {
    for edit in [unchanged, with_its_own_trace] {
        let server = Upstream::playing(vec![Step::Silence]).await;
        let (front, _router) = chain(&[&server], edit).await;
        let client = front.asked("/generate", "", b"{}").await;
        until("the request at the server", || !server.seen().is_empty()).await;
        drop(client);
        let row = front.only_row().await;
        assert_outcome(&row, "client_abort", "");
        assert_eq!(row["ended_in"], "server");
        assert_cells(&row, [("attempts", "1"), ("worker", "w0")]);
        assert_eq!(row["host"], server.addr.to_string());
        assert!(number(&row, "router_send_time") >= number(&row, "arrival_time"));
        assert_eq!(row["failed_attempts"], "");
        assert_eq!(row["ttft"], "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_no_front_saw_has_a_row_of_the_hops_own() {
    let server = Upstream::ok().await;
    let (front, _router) = chain(&[&server], unchanged).await;
    let mut client = Client::connect(front.hop_addr()).await;
    client
        .send("GET /model_info HTTP/1.1\r\nhost: h\r\n\r\n")
        .await;
    client.response().await;
    let came = "x-request-id: direct\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
    let response = client.ask("/generate", came, b"{\"text\":\"a b\"}").await;
    assert_eq!(response.status(), 200);
    // It is written while the proxy runs.
    let row = &front.only_row().await;
    assert_outcome(row, "ok", "");
    let sent = server.seen().pop().unwrap().header("traceparent").unwrap();
    assert_eq!(sent.split('-').nth(2), Some(&*row["span_id"]));
    // Nobody saw it arrive.
    assert_cells(
        row,
        [
            ("req_id", "direct"),
            ("seen_by", "hop"),
            ("worker", "w0"),
            ("parent_span_id", "00f067aa0ba902b7"),
            ("arrival_time", ""),
            ("queue_time_in_router", ""),
            ("input_length", "2"),
            ("inconsistency", ""),
        ],
    );
    assert!(number(row, "router_send_time") <= number(row, "worker_forwarded_time"));
    assert!(number(row, "worker_forwarded_time") <= number(row, "response_head_time"));
    assert!(number(row, "server_latency") > 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hops_without_a_front_write_rows_that_join_by_span() {
    let servers = [refusing_with_503().await, Upstream::ok().await];
    let hops = Front::with(&[], |config| {
        config.workers = workers(&servers.each_ref().map(|server| server.addr))
    })
    .await;
    assert_eq!(hops.proxy.address("listen"), None);
    let at = ["worker w0", "worker w1"].map(|worker| hops.proxy.address(worker).unwrap());
    let router = Upstream::retrying(at.to_vec(), unchanged).await;
    let front = Front::start(router.addr).await;
    assert_eq!(front.ask("/generate", "", b"{}").await.status(), 200);
    let row = front.only_row().await;
    assert_outcome(&row, "ok", "");
    assert_cells(&row, [("attempts", "2"), ("worker", "w1")]);
    let failed = &row["failed_attempts"];
    assert!(
        failed.starts_with(&format!("{} rejected 503", servers[0].addr)),
        "{failed}"
    );
    let mut attempts = hops.rows().await;
    // A row is written when its hop is done, which the router does not wait for.
    attempts.sort_by(|a, b| a["router_send_time"].cmp(&b["router_send_time"]));
    let [first, second] = &attempts[..] else {
        panic!("{attempts:?}")
    };
    assert_outcome(first, "rejected", "503");
    assert_outcome(second, "ok", "");
    for attempt in [first, second] {
        assert_eq!(attempt["parent_span_id"], row["span_id"]);
        assert_eq!(
            (attempt["req_id"].as_str(), attempt["seen_by"].as_str()),
            (row["req_id"].as_str(), "hop")
        );
    }
    assert_ne!(first["span_id"], second["span_id"]);
}
