//! Worker hops: the stamps that processes tell each other; a router's attempts at hops: kept, joined to their request, and never doubled.

use queuescope::request::UpstreamKind;

use super::*;

/// A hop before `server`, a router before the hop, and a front before the router.
async fn chain(server: SocketAddr) -> (Front, Upstream, Front) {
    let hop = Front::hop(server).await;
    let router = Upstream::relay(hop.addr()).await;
    (Front::start(router.addr).await, router, hop)
}

/// A front may send to its own hops, without a router: these count the attempts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_front_sends_to_its_own_hop_is_one_attempt() {
    let server = Upstream::ok().await;
    let (hops, workers) = known_workers(&[server.addr]);
    let upstreams = [hops[0], server.addr];
    let front = Front::with(&upstreams, |config| {
        config.workers = workers;
        config.upstream_kind = UpstreamKind::Server;
    })
    .await;
    for _ in 0..4 {
        assert_eq!(front.ask("/generate", "", b"{}").await.status(), 200);
    }
    let at =
        |worker: &str| format!("queuescope_attempts_total{{outcome=\"ok\",worker=\"{worker}\"}}");
    front.counts(&at("w0"), 2).await;
    front.counts(&at(&server.addr.to_string()), 2).await;
    front.counts("queuescope_attempts_total", 4).await;
    let shown = front.proxy.metrics().text();
    let waits = format!("waiting\",worker=\"{}\"", hops[0]);
    assert!(!shown.contains(&waits), "{shown}");
    let rows = front.rows().await;
    assert!(rows.iter().all(|row| row["attempts"] == "1"), "{rows:?}");
}

/// Its server is down, and what is left of the body is read for a room alone: that refuses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_no_server_takes_comes_to_no_limit() {
    let hop = Front::hops(&[refusing().await], "request_body_max_bytes = 10").await;
    let asks = post_chunked("/generate", &[b'x'; 20], 20);
    assert_eq!(hop.sent(asks).await.response().await.status(), 502);
    let row = hop.first_row().await;
    assert_outcome(&row, "proxy_error", "refused");
    assert_eq!(row["ended_in"], "proxy");
}

/// What a front tells a client that asks for its stamps.
async fn told(front: &Front) -> Stamps {
    let asks = "x-queuescope-stamps: 1\r\n";
    let response = front.ask("/generate", asks, b"{}").await;
    Stamps::parse(&response.header("x-queuescope-stamps").unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_on_this_machine_gets_stamps_when_it_asks() {
    let server = Upstream::ok().await;
    let (front, _router, _hop) = chain(server.addr).await;
    let stamps = told(&front).await;
    assert!(!stamps.joins_engine, "no engine is listened to");
    assert_eq!(stamps.attempts, Some(1));
    assert_eq!(stamps.host, Some(server.addr.to_string()));
    let hop = stamps.hop.unwrap();
    assert_eq!(hop.clock, stamps.clock, "one process");
    let of_front = [stamps.arrival, stamps.forwarded];
    let of_hop = [hop.arrival, hop.forwarded, hop.now];
    let order = [&of_front[..], &of_hop, &[stamps.now]].concat();
    assert!(
        order.iter().all(Option::is_some) && order.is_sorted(),
        "{order:?}"
    );
    let row = front.only_row().await;
    let arrival = Stamp::from_seconds(number(&row, "arrival_time")).unwrap();
    assert!(arrival.nanos_since(stamps.arrival.unwrap()).abs() < 1_000);
    // And it hears that more will be told later.
    let listens = format!("[engine.traces]\nlisten = \"{}\"", free_port());
    let listens = Front::keyed(&[server.addr], &listens).await;
    assert!(told(&listens).await.joins_engine);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hop_that_answers_itself_tells_what_it_stamped() {
    let server = Upstream::always("no HTTP\r\n\r\n").await;
    let (front, _router, _hop) = chain(server.addr).await;
    let response = front.ask("/generate", "", b"{}").await;
    assert_eq!(response.status(), 502);
    // Whoever stands before the front hears how the hop judged.
    let told = response.header("x-queuescope-outcome");
    assert_eq!(told.as_deref(), Some("upstream_died"));
    let row = front.only_row().await;
    assert_outcome(&row, "upstream_died", "502");
    assert_eq!(row["host"], server.addr.to_string());
    assert!(number(&row, "router_send_time") > 0.0);
}

/// What somebody could say in a hop's name.
const FORGED: &str = r#"["evil",1795000000000000000,null,null,null,"evil:1",77,false,false,"w9"]"#;

/// A row as if no hop had been there.
const NO_HOP: &str = "host=, worker=, router_send_time=, worker_forwarded_time=, hop_clock_offset=, \
    failed_attempts=, inconsistency=, error=, attempts=1, outcome=ok, success=True";

/// What a hop with this secret signs for a request with this id.
async fn signed(server: SocketAddr, secret: Option<&str>, id: &str) -> String {
    let keys = secret.map(|secret| format!("hop_secret = {secret:?}"));
    let hop = Front::hops(&[server], &keys.unwrap_or_default()).await;
    let id = format!("x-request-id: {id}\r\n");
    let response = hop.ask("/generate", &id, b"{}").await;
    response.header("x-queuescope-hop").unwrap()
}

/// What becomes of a hop's word on its way.
type Change = fn(String) -> String;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_a_hop_of_ours_said_of_this_request_is_believed() {
    const OURS: Option<&str> = Some("the secret of the front");
    const THEIRS: Option<&str> = Some("some other long secret");
    let server = Upstream::ok().await;
    // The secrets of hop and front, the request that the hop speaks of, and whether it is believed.
    for (of_hop, of_front, said_of, is_believed) in [
        (None, None, "mine", true),
        (OURS, OURS, "mine", true),
        (THEIRS, OURS, "mine", false),
        (None, OURS, "mine", false),
        (THEIRS, None, "mine", false),
        (None, None, "another", false),
    ] {
        let said = signed(server.addr, of_hop, said_of).await;
        assert_believed(&said, of_front, is_believed.then_some(server.addr)).await;
    }
    let changes: [Change; 8] = [
        |said| said.replacen("0", "1", 1),
        |said| said[..said.len() - 2].to_owned(),
        |said| said + "00",
        |said| said.replace("mac=", "mac=é"),
        |said| said[..said.len() - 64].to_owned(),
        |_| format!("{FORGED};mac={}", "0".repeat(64)),
        |_| r#"["evil",-9223372036854775808]"#.to_owned(),
        |_| String::new(),
    ];
    for change in changes {
        let said = change(signed(server.addr, None, "mine").await);
        assert_believed(&said, None, None).await;
    }
}

/// Fails unless a front of this secret takes this, beside a forged one, for the word of a hop before `server`, or for
/// nobody's.
async fn assert_believed(said: &str, secret: Option<&str>, server: Option<SocketAddr>) {
    let [forged, said] = [FORGED, said].map(|said| format!("x-queuescope-hop: {said}\r\n"));
    let answer = format!("HTTP/1.1 200 OK\r\n{forged}{said}content-length: 2\r\n\r\n{{}}");
    let router = Upstream::always(answer).await;
    let front = Front::with(&[router.addr], |config| {
        config.hop_secret = secret.map(Into::into);
    })
    .await;
    let asks = "x-request-id: mine\r\nx-queuescope-stamps: 1\r\n";
    let response = front.ask("/generate", asks, b"{}").await;
    assert_eq!(response.header("x-queuescope-hop"), None, "{said}");
    let stamps = response.header("x-queuescope-stamps").unwrap();
    let has_hop = !stamps.ends_with("null]");
    assert_eq!(has_hop, server.is_some(), "{said}: {stamps}");
    assert!(!stamps.contains("evil"), "{said}: {stamps}");
    let (refused, count) = ("queuescope_hop_stamps_refused_total ", server.is_none());
    front.counts(refused, count.into()).await;
    let row = front.only_row().await;
    match server {
        Some(server) => assert_eq!(row["host"], server.to_string(), "{said}"),
        None => assert_row(&row, NO_HOP),
    }
}

/// A front and hops in one process, and a router that retries between them and makes this of heads.
async fn retried_chain(servers: &[&Upstream], edit: Edit) -> (Front, Upstream) {
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
    let times = moments.split(' ').map(|moment| number(row, moment));
    assert!(times.is_sorted(), "{row:?}");
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
        let (front, _router) = retried_chain(&servers.each_ref(), edit).await;
        let stamps = told(&front).await;
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
        let (front, _router) = retried_chain(&[&server], edit).await;
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
    let (front, _router) = retried_chain(&[&server], str::to_owned).await;
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
