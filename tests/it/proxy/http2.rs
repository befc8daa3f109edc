//! Clients that speak HTTP/2 to the front: the same rows and promises, stream by stream.

use super::*;

const STREAM: &[u8] = br#"{"text":"a b c","stream":true,"sampling_params":{"max_new_tokens":4}}"#;

pub fn header(name: &str, value: &str) -> HeaderMap {
    let name = HeaderName::try_from(name).unwrap();
    HeaderMap::from_iter([(name, HeaderValue::try_from(value).unwrap())])
}

/// One stays to its end, one is reset, and the others go with the connection; one of those is still being sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_ends_one_request_and_a_broken_connection_all_of_its() {
    let gate = Gate::new();
    let opened = gate.clone();
    let upstream = Upstream::start(move |_, request| match request.header("x-case") {
        Some(_) => [begun(), vec![Step::Gate(opened.clone())], done()].concat(),
        None => vec![Step::Silence],
    })
    .await;
    let front = Front::start(upstream.addr).await;
    let in_flight = || front.proxy.metrics().in_flight();
    let mut client = Http2::connect(front.addr()).await;
    let asked = header("x-case", "stays");
    let stays = client.begin("/generate", asked, STREAM, false).await;
    let leaves = client.post("/generate", STREAM).await;
    let _silent = client.post("/generate", STREAM).await;
    let begins = client.begin("/generate", HeaderMap::new(), b"{", true);
    let _begins = begins.await;
    let are_all_here = || upstream.seen().len() == 3 && in_flight() == 4;
    until("all requests", are_all_here).await;
    leaves.reset();
    until("the upstream let go", || upstream.gone() == 1).await;
    gate.open();
    let answer = stays.answer().await;
    assert!(answer.broken.is_none() && answer.body.ends_with(b"[DONE]\n\n"));
    client.kill();
    until("the upstreams let go", || in_flight() == 0).await;
    let rows = front.rows().await;
    let (whole, left): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row["outcome"] == "ok");
    assert_eq!((whole.len(), left.len()), (1, 3));
    for row in left {
        assert_outcome(row, "client_abort", "client");
    }
}

/// The steps of a server, and the status, body and break that its stream has of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_as_its_answer_does() {
    let not_modified = b"HTTP/1.1 304 Not Modified\r\ncontent-length: 123\r\n\r\n";
    for (steps, status, body, is_broken) in [
        ([begun(), vec![Step::Reset]].concat(), 200, EVENT, true),
        ([begun(), vec![Step::Close]].concat(), 200, EVENT, true),
        (vec![Step::Send(not_modified.to_vec())], 304, "", false),
    ] {
        let (_upstream, front) = playing(steps, "").await;
        let mut client = Http2::connect(front.addr()).await;
        let answer = client.post("/generate", STREAM).await.answer().await;
        assert_eq!(answer.broken.is_some(), is_broken);
        assert_eq!((answer.status, &*answer.body), (status, body.as_bytes()));
        drop(client);
        let row = front.only_row().await;
        assert_eq!(row["outcome"] == "upstream_died", is_broken, "{row:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_count_among_the_connections_that_are_taken() {
    let (upstream, front) = playing(vec![Step::Silence], "max_connections = 2").await;
    let mut client = Http2::connect(front.addr()).await;
    // The first stands for the connection.
    let _first = client.post("/generate", STREAM).await;
    let second = client.post("/generate", STREAM).await;
    until("both requests", || upstream.seen().len() == 2).await;
    let refused = client.post("/generate", STREAM).await.head().await;
    let reason = refused.unwrap_err().reason();
    assert_eq!(reason, Some(h2::Reason::REFUSED_STREAM));
    let health = client.post("/health", b"").await.head().await;
    assert!(health.is_err(), "it generates nothing: no row");
    // One that ends makes room.
    second.reset();
    until("it is over", || upstream.gone() == 1).await;
    until_async("another is taken", async || {
        let _another = client.post("/generate", STREAM).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        upstream.seen().len() > 2
    })
    .await;
    client.kill();
    let rows = front.rows().await;
    let mut refused = rows.iter().filter(|row| row["outcome"] == "rejected");
    let row = refused.next().expect("each generation request has a row");
    assert_outcome(row, "rejected", "as many connections as it takes");
    assert_row(row, "status=, attempts=0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_not_read_shows_as_stall_and_presses_back() {
    let (upstream, front) = playing(endless(), "client_stall_timeout_s = 0.2").await;
    let mut client = Http2::connect(front.addr()).await;
    let response = client.post("/generate", STREAM).await.head().await;
    assert!(upstream.stands_still().await < 300);
    until("it is given up", || front.proxy.metrics().in_flight() == 0).await;
    drop((response, client));
    let row = front.only_row().await;
    assert_outcome(&row, "timeout", "the client: held up the response");
    assert!(number(&row, "client_stall") > 0.19, "{row:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_for_each_stream() {
    let limits = "request_body_max_bytes = 1000\nrequest_head_max_bytes = 2000";
    let (_upstream, front) = answering(limits).await;
    let mut client = Http2::connect(front.addr()).await;
    let large = &[b' '; 1001][..];
    for (field, body, status) in [(0, large, 413), (2000, b"{}", 431), (0, b"{}", 200)] {
        let asked = header("x-large", &"x".repeat(field));
        let call = client.begin("/generate", asked, body, false).await;
        assert_eq!(call.answer().await.status, status);
    }
    drop(client);
    let rows = front.rows().await;
    let outcomes: Vec<&str> = rows.iter().map(|row| &*row["outcome"]).collect();
    assert_eq!(outcomes, ["client_error", "ok"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_lets_streams_end_and_closes_the_connection() {
    let gate = Gate::new();
    let upstream = gated(&gate).await;
    let front = Front::start(upstream.addr).await;
    let mut client = Http2::connect(front.addr()).await;
    let idle = Http2::connect(front.addr()).await;
    let call = client.post("/generate", b"{\"stream\":true}").await;
    until("the request", || upstream.seen().len() == 1).await;
    let ending = async {
        // The idle connection closes while the other's request goes on.
        idle.end().await.unwrap();
        gate.open();
        let answer = call.answer().await;
        assert!(answer.broken.is_none() && answer.body.ends_with(b"[DONE]\n\n"));
        client.end().await.unwrap();
    };
    tokio::join!(front.all_end(1, "ok", ""), ending);
}

/// They end after their connection's task, one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_end_cuts_off_has_its_row() {
    const REQUESTS: usize = 500;
    let (_upstream, front) = playing(vec![Step::Silence], "max_concurrent_requests = 1").await;
    let mut client = Http2::connect(front.addr()).await;
    let mut calls = Vec::new();
    for _ in 0..REQUESTS {
        calls.push(client.post("/generate", STREAM).await);
    }
    let in_flight = || front.proxy.metrics().in_flight() as usize;
    until("all requests", || in_flight() == REQUESTS).await;
    front.proxy.abort().await;
    let rows = rows(&front.records());
    assert_eq!(rows.len(), REQUESTS);
    for row in rows {
        assert_outcome(&row, "proxy_error", "shut down");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_begins_like_it_and_is_not_is_http_1() {
    let (upstream, front) = answering("client_head_timeout_s = 1.0").await;
    // Who asks nothing has no broken head, nor is one that breaks.
    drop(front.client().await);
    Http2::connect(front.addr()).await.end().await.unwrap();
    let garbage = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nno frames, but text";
    front.sent(garbage).await.read_to_close().await;
    assert_eq!(front.counter("queuescope_broken_heads_total "), 0);
    let mut client = front.client().await;
    for piece in ["P", "R", "OPFIND /x HTTP/1.1\r\nhost: h\r\n\r\n"] {
        client.send(piece).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(client.response().await.status(), 200);
    // Part of the preface is part of a head.
    let mut slow = front.sent("PRI * HT").await;
    assert_eq!(slow.response().await.status(), 408);
    assert_eq!(front.counter("queuescope_broken_heads_total "), 1);
    assert_eq!(upstream.seen().len(), 1);
}
