//! A router's attempts at the worker hops: kept, joined to their request, and never doubled.

use std::net::SocketAddr;

use crate::support::proxy::{Front, Row, assert_outcome, worker, workers};
use crate::support::router::free_port;
use crate::support::upstream::{Step, Upstream};
use crate::support::wire::{Client, json_response, until};

/// A front and hops in one process, and a router that retries between them.
pub async fn chain(
    servers: &[&Upstream],
    edit: impl Fn(&str) -> String + Send + Sync + 'static,
) -> (Front, Upstream) {
    // The router must know the hops and the front the router: so the hops' addresses are asked for first.
    let hops: Vec<SocketAddr> = servers.iter().map(|_| free_port()).collect();
    let router = Upstream::retrying(hops.clone(), edit).await;
    let workers = servers.iter().zip(hops).enumerate();
    let workers = workers.map(|(n, (server, hop))| worker(&format!("w{n}"), hop, server.addr));
    let workers = workers.collect();
    let front = Front::with(&[router.addr], |config| config.workers = workers).await;
    (front, router)
}

async fn refusing_with_503() -> Upstream {
    Upstream::always(b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}".to_vec()).await
}

async fn dying() -> Upstream {
    Upstream::start(|_, _| vec![Step::Reset]).await
}

async fn good() -> Upstream {
    Upstream::always(json_response("{}")).await
}

async fn silent() -> Upstream {
    Upstream::start(|_, _| vec![Step::Silence]).await
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

fn time(row: &Row, column: &str) -> f64 {
    row[column]
        .parse()
        .unwrap_or_else(|_| panic!("{column}: {row:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retried_request_is_one_row_of_the_attempt_that_answered() {
    for edit in [unchanged, with_its_own_trace] {
        let servers = [refusing_with_503().await, dying().await, good().await];
        let (front, _router) = chain(&servers.each_ref(), edit).await;
        let mut client = front.client().await;
        let response = client
            .ask(
                "/generate",
                "x-request-id: mine\r\nx-queuescope-stamps: 1\r\n",
                b"{}",
            )
            .await;
        assert_eq!(response.status(), 200);
        let stamps = response.header("x-queuescope-stamps").unwrap();
        assert!(
            stamps.contains("attempts=3;") && stamps.matches("failed=").count() == 2,
            "{stamps}"
        );
        let row = front.only_row().await;
        assert_outcome(&row, "ok", "");
        assert_eq!(
            (row["attempts"].as_str(), row["worker"].as_str()),
            ("3", "w2")
        );
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
            text.split(" after ")
                .nth(1)
                .unwrap()
                .split(' ')
                .next()
                .unwrap()
                .parse::<f64>()
                .unwrap()
        };
        assert!(
            time(&row, "queue_time_in_router") >= waited(first) + waited(second),
            "{row:?}"
        );
        assert_eq!(row["inconsistency"], "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_without_a_response_shows_where_the_request_was() {
    for edit in [unchanged, with_its_own_trace] {
        let server = silent().await;
        let (front, _router) = chain(&[&server], edit).await;
        let mut client = front.client().await;
        client.post("/generate", "", b"{}").await;
        until("the request at the server", || !server.seen().is_empty()).await;
        drop(client);
        let row = front.only_row().await;
        assert_outcome(&row, "client_abort", "");
        assert_eq!(
            (row["attempts"].as_str(), row["worker"].as_str()),
            ("1", "w0")
        );
        assert_eq!(row["host"], server.addr.to_string());
        assert!(time(&row, "router_send_time") >= time(&row, "arrival_time"));
        assert_eq!(row["failed_attempts"], "");
        assert_eq!(row["ttft"], "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_with_the_same_id_keep_apart() {
    for (edit, keeps_spans) in [
        (unchanged as fn(&str) -> String, true),
        (with_its_own_trace, false),
    ] {
        let servers = [refusing_with_503().await, good().await];
        let (front, _router) = chain(&servers.each_ref(), edit).await;
        let mut clients = Vec::new();
        for _ in 0..8 {
            let mut client = front.client().await;
            client
                .post("/generate", "x-request-id: same\r\n", b"{}")
                .await;
            clients.push(client);
        }
        for mut client in clients {
            assert_eq!(client.response().await.status(), 200);
        }
        let rows = front.rows().await;
        let (of_front, of_hops): (Vec<_>, Vec<_>) =
            rows.iter().partition(|row| row["seen_by"] == "front");
        assert_eq!(of_front.len(), 8);
        for row in of_front {
            assert_outcome(row, "ok", "");
            assert_eq!(row["host"], servers[1].addr.to_string());
        }
        // Where nothing tells whose an attempt is, it stands alone rather than in a wrong row.
        assert!(!keeps_spans || of_hops.is_empty(), "{of_hops:?}");
        for row in of_hops {
            let (outcome, error) = match row["host"] == servers[0].addr.to_string() {
                true => ("rejected", "503"),
                false => ("ok", ""),
            };
            assert_outcome(row, outcome, error);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_routers_one_begins_traces_of_its_own() {
    let servers = [refusing_with_503().await, good().await];
    let hops: Vec<SocketAddr> = servers.iter().map(|_| free_port()).collect();
    let keeps = Upstream::retrying(hops.clone(), unchanged).await;
    let loses = Upstream::retrying(hops.clone(), with_its_own_trace).await;
    let workers = servers.iter().zip(hops).enumerate();
    let workers = workers.map(|(n, (server, hop))| worker(&format!("w{n}"), hop, server.addr));
    let workers: Vec<_> = workers.collect();
    let front = Front::with(&[keeps.addr, loses.addr], |config| config.workers = workers).await;
    let mut client = front.client().await;
    for _ in 0..4 {
        assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
    }
    let rows = front.rows().await;
    assert_eq!((keeps.seen().len(), loses.seen().len()), (2, 2));
    let attempts: Vec<&str> = rows.iter().map(|row| row["attempts"].as_str()).collect();
    assert_eq!(attempts, ["2"; 4], "{rows:?}");
    for row in rows {
        let failed = format!("{} rejected 503 after ", servers[0].addr);
        assert!(row["failed_attempts"].starts_with(&failed), "{row:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_no_front_saw_has_a_row_of_the_hops_own() {
    let server = good().await;
    let (front, _router) = chain(&[&server], unchanged).await;
    let mut client = Client::connect(front.hop_addr()).await;
    let parent = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
    assert_eq!(
        client
            .ask(
                "/generate",
                &format!("x-request-id: direct\r\n{parent}"),
                b"{\"text\":\"a b\"}",
            )
            .await
            .status(),
        200
    );
    client
        .send("GET /model_info HTTP/1.1\r\nhost: h\r\n\r\n")
        .await;
    client.response().await;
    let rows = front.rows().await;
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_outcome(row, "ok", "");
    let cell = |name: &str| row[name].as_str();
    assert_eq!(
        (cell("req_id"), cell("seen_by"), cell("worker")),
        ("direct", "hop", "w0")
    );
    assert_eq!(cell("parent_span_id"), "00f067aa0ba902b7");
    let sent = server.seen()[0].header("traceparent").unwrap();
    assert_eq!(sent.split('-').nth(2), Some(cell("span_id")));
    assert_eq!(
        (cell("arrival_time"), cell("queue_time_in_router")),
        ("", ""),
        "nobody saw it arrive"
    );
    assert_eq!(cell("input_length"), "2");
    assert!(time(row, "router_send_time") <= time(row, "worker_forwarded_time"));
    assert!(time(row, "worker_forwarded_time") <= time(row, "response_head_time"));
    assert!(time(row, "server_latency") > 0.0);
    assert_eq!(cell("inconsistency"), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hops_without_a_front_write_rows_that_join_by_span() {
    let servers = [refusing_with_503().await, good().await];
    let hops = Front::with(&[], |config| {
        config.workers = workers(&servers.each_ref().map(|server| server.addr))
    })
    .await;
    assert_eq!(hops.proxy.front_addr(), None);
    let router = Upstream::retrying(hops.proxy.worker_addrs().to_vec(), unchanged).await;
    let front = Front::start(router.addr).await;
    let mut client = front.client().await;
    assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
    let row = front.only_row().await;
    assert_outcome(&row, "ok", "");
    assert_eq!(
        (row["attempts"].as_str(), row["worker"].as_str()),
        ("2", "w1")
    );
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_the_hops_own_is_written_while_the_proxy_runs() {
    let server = good().await;
    let (front, _router) = chain(&[&server], unchanged).await;
    let mut client = Client::connect(front.hop_addr()).await;
    assert_eq!(
        client
            .ask("/generate", "x-request-id: direct\r\n", b"{}")
            .await
            .status(),
        200
    );
    let row = front.only_row().await;
    assert_eq!(
        (row["req_id"].as_str(), row["seen_by"].as_str()),
        ("direct", "hop")
    );
}
