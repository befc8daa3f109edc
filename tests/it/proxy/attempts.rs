//! A router's attempts at the worker hops: kept, joined to their request, and never doubled.

use super::*;

/// A front and hops in one process, and a router that retries between them and makes this of heads.
async fn chain(servers: &[&Upstream], edit: Edit) -> (Front, Upstream) {
    let servers: Vec<SocketAddr> = servers.iter().map(|server| server.addr).collect();
    let (hops, workers) = known_workers(&servers);
    let router = Upstream::retrying(hops, edit).await;
    let front = Front::with(&[router.addr], |config| config.workers = workers).await;
    (front, router)
}

type Edit = fn(&str) -> String;

async fn refusing_with_503() -> Upstream {
    Upstream::always("HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}").await
}

/// What a router with tracing of its own does: our span is lost.
fn with_its_own_trace(head: &str) -> String {
    let line = head
        .lines()
        .find(|line| line.to_ascii_lowercase().starts_with("traceparent"));
    let own = format!("traceparent: 00-{:032x}-{:016x}-01", 7, 9);
    head.replace(line.unwrap(), &own)
}

/// Fails unless these moments of a row are known, and follow each other.
#[track_caller]
fn assert_in_order(row: &Row, moments: &str) {
    assert!(
        moments
            .split(' ')
            .map(|moment| number(row, moment))
            .is_sorted(),
        "{row:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retried_request_is_one_row_of_the_attempt_that_answered() {
    for (edit, by) in [
        (str::to_owned as Edit, "span"),
        (with_its_own_trace, "request_id"),
    ] {
        let servers = [
            refusing_with_503().await,
            Upstream::playing(vec![Step::Reset]).await,
            Upstream::ok().await,
        ];
        let (front, _router) = chain(&servers.each_ref(), edit).await;
        let asks = "x-queuescope-stamps: 1\r\n";
        let response = front.ask("/generate", asks, b"{}").await;
        assert_eq!(response.status(), 200);
        let stamps = response.header("x-queuescope-stamps").unwrap();
        let stamps = Stamps::parse(&stamps).unwrap();
        assert_eq!((stamps.attempts, stamps.failed.len()), (Some(3), 2));
        let joins = format!("queuescope_joins_total{{by=\"{by}\"}} ");
        assert_eq!(front.counter(&joins), 3);
        let row = front.only_row().await;
        let cells = "outcome=ok, attempts=3, worker=w2, inconsistency=";
        assert_row(&row, &format!("{cells}, host={}", servers[2].addr));
        // The failed ones came before the send that counts.
        let mut waited = 0.0;
        let said = ["rejected 503", "upstream_died 502"];
        let failed: Vec<&str> = row["failed_attempts"].split("; ").collect();
        assert_eq!(failed.len(), said.len());
        for ((server, said), failed) in servers.iter().zip(said).zip(failed) {
            let (what, seconds) = failed.split_once(" after ").unwrap();
            assert_eq!(what, format!("{} {said}", server.addr));
            waited += seconds.trim_end_matches(" s").parse::<f64>().unwrap();
        }
        assert!(number(&row, "queue_time_in_router") >= waited, "{row:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_without_a_response_shows_where_the_request_was() {
    for edit in [str::to_owned as Edit, with_its_own_trace] {
        let server = Upstream::playing(vec![Step::Silence]).await;
        let (front, _router) = chain(&[&server], edit).await;
        let client = front.asked("/generate", "", b"{}").await;
        until("the request at the server", || !server.seen().is_empty()).await;
        drop(client);
        let row = front.only_row().await;
        let cells =
            "outcome=client_abort, ended_in=server, attempts=1, worker=w0, failed_attempts=, ttft=";
        assert_row(&row, &format!("{cells}, host={}", server.addr));
        assert!(number(&row, "router_send_time") >= number(&row, "arrival_time"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_no_front_saw_has_a_row_of_the_hops_own() {
    let server = Upstream::ok().await;
    let (front, _router) = chain(&[&server], str::to_owned).await;
    let mut client = Client::connect(front.hop_addr()).await;
    let info = "GET /model_info HTTP/1.1\r\nhost: h\r\n\r\n";
    client.send(info).await;
    client.response().await;
    let came = "x-request-id: direct\r\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
    let response = client.ask("/generate", came, b"{\"text\":\"a b\"}").await;
    assert_eq!(response.status(), 200);
    // It is written while the proxy runs.
    let row = &front.only_row().await;
    let sent = server.seen().pop().unwrap().header("traceparent").unwrap();
    // Nobody saw it arrive.
    let cells = "outcome=ok, req_id=direct, seen_by=hop, worker=w0, parent_span_id=00f067aa0ba902b7, \
                 arrival_time=, queue_time_in_router=, input_length=2, inconsistency=";
    assert_row(row, cells);
    assert_eq!(row["span_id"], sent.split('-').nth(2).unwrap());
    assert_in_order(
        row,
        "router_send_time worker_forwarded_time response_head_time",
    );
    assert!(number(row, "server_latency") > 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hops_without_a_front_write_rows_that_join_by_span() {
    let servers = [refusing_with_503().await, Upstream::ok().await];
    let hops = Front::hops(&servers.each_ref().map(|server| server.addr), "").await;
    assert_eq!(hops.proxy.address("listen"), None);
    let at = ["worker w0", "worker w1"].map(|worker| hops.proxy.address(worker).unwrap());
    let router = Upstream::retrying(at.to_vec(), str::to_owned).await;
    let front = Front::start(router.addr).await;
    assert_eq!(front.ask("/generate", "", b"{}").await.status(), 200);
    let row = front.only_row().await;
    assert_row(&row, "outcome=ok, attempts=2, worker=w1");
    let failed = format!("{} rejected 503", servers[0].addr);
    assert_says(&row["failed_attempts"], &failed);
    let mut attempts = hops.rows().await;
    // A row is written when its hop is done, which the router does not wait for.
    attempts.sort_by(|a, b| a["router_send_time"].cmp(&b["router_send_time"]));
    assert_eq!(attempts.len(), 2);
    for (attempt, outcome) in attempts.iter().zip(["rejected", "ok"]) {
        let [parent, id] = ["span_id", "req_id"].map(|name| &row[name]);
        let cells = "seen_by=hop, router_return=, router_return_last=, router_gap_added=";
        let of_front = format!("outcome={outcome}, parent_span_id={parent}, req_id={id}");
        assert_row(attempt, &format!("{cells}, {of_front}"));
        // What a later join needs.
        let moments = "response_head_time worker_first_byte_time worker_last_byte_time";
        assert_in_order(attempt, moments);
    }
    assert_ne!(attempts[0]["span_id"], attempts[1]["span_id"]);
}
